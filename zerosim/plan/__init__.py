"""Plans: a step on a cluster, simulated by running the code of the stages on shapes over a virtual clock.

Plans are checked against closed forms (exactly), against SimGrid (to 10⁻⁴), against runs of drawn scenarios (to the
byte) and against published runs (`tests/accuracy`). `docs/accuracy.md` states the errors.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerosim.scenario import Scenario
    from zerosim.show.shown import Shown


def plan(
    path: "str | os.PathLike[str] | Mapping[str, Any] | Scenario", ranks: int | Sequence[int] = (), *,

    set: Mapping[str, Any] = {}, sweep: Mapping[str, Sequence[Any]] = {}, search: int | str | None = None,
) -> "Shown":
    """The plan of a scenario on its own number of ranks, on `ranks` ranks, or on each of `ranks`; `path` is as in
    `run`.

    `set` replaces keys of the scenario, `sweep` gives several values of a key; all combinations are planned. `search`
    finds so many of the fastest layouts that fit, or "all": of stage, groups, micro-batch and recomputation, and of the
    keys in `sweep`, unless `set` has them; all train on the same batch. Raises `ScenarioError` as `zerosim plan` does,
    and `UsageError` for invalid `ranks`.

    >>> import zerosim as zs
    >>> found = zs.plan("mpt_7b", 64, set={"model.layers": 2, "parallel.stages": ["ddp", "zero3"]})
    >>> found
               memory
                   GB  fits    step    waits    MFU
    DDP          24.4   yes  899 ms  9.41 ms  51.4%
    Stage III    16.3   yes  886 ms  8.14 ms  52.1%
    Best that fits: Stage III, 41,605 tokens a second on each device
    >>> [(row["name"], row["fits"], row["peak_bytes"]) for row in found.rows()]
    [('DDP', True, 24404590592), ('Stage III', True, 16324575744)]
    """
    from zerosim.plan.page import shown_plan  # noqa: PLC0415 - most programs do not need it
    from zerosim.plan.reading import read_plan  # noqa: PLC0415
    from zerosim.plan.search import read_search  # noqa: PLC0415

    counts = list(ranks) if isinstance(ranks, Iterable) else [ranks]
    read = read_plan if search is None else partial(read_search, most=search)
    return shown_plan(read(path, counts, set, sweep))


def operations(path: str | None = None) -> "Shown":
    """The public operations, or those of a file, with their formulas, kept arrays, matrix products and moved bytes.

    Figures are those of an example, whose shapes `rows()` has, in float32. `path` is a Python file whose `EXAMPLES` has
    an example for each of its operations. Raises `UsageError` if there is none.

    >>> import zerosim as zs
    >>> row = zs.operations().rows()[0]
    >>> row["name"], row["inputs"], row["keeps"], row["kept_bytes"], row["forward_products"]
    ('linear', {'x': (4, 16), 'weight': (8, 16), 'bias': (8,)}, ('x',), 256, 1024)
    """
    from zerosim.plan.operations import operations_of  # noqa: PLC0415

    return operations_of(path)
