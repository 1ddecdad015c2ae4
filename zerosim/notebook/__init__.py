"""Objects for notebooks and the Python prompt: they display themselves, offline, and print well.

A shown outcome is an object besides the outcome. A verdict knows no terminal and no picture, and `report` reads
verdicts, so the shown one has the outcome and its document and calls `report` for everything. `zerosim/__init__`
imports functions that import the rest when they are called, so that `import zerosim` stays light.

The HTML of several cells is one page, so a cell has no styles, scripts or names of its own. SVG inside it would share
its `clip0` and its `text{…}` with all others: pictures are images that contain their data, and whole pages are in
frames.

A notebook has one process. Under a launcher `zs.run` refuses and names `zerosim run`.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerosim.collectives import Algorithm
    from zerosim.models.units import ModelKind
    from zerosim.notebook.outcome import ShownOutcome
    from zerosim.notebook.shown import Shown
    from zerosim.optim.optimizers import Optimizer
    from zerosim.scenario import Scenario
    from zerosim.stages import Stage


def run(
    scenario: "str | os.PathLike[str] | Mapping[str, Any] | Scenario", set: Mapping[str, Any] | None = None
) -> "ShownOutcome | Shown":
    """The outcome of a scenario, run in this process, a thread for each rank; its last step is traced.

    `scenario` is a path, the name of a shipped one, a dict such as `{"train": {"steps": 5}}`, or a `zs.Scenario`.

    `set` replaces keys of the scenario, as `--set` does on the command line. Raises `ScenarioError` for errors in the
    file or in `set`; `LaunchError` under `mpirun`, where `zerosim run` is to be used, and for a scenario that limits
    memory, which needs one process for each rank.

    >>> import os, tempfile
    >>> import zerosim as zs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "mine.toml")
    ...     with open(path, "w") as file:
    ...         _ = file.write('title = "Two ranks"\\n[world]\\nranks = 2\\n')
    ...     outcome = zs.run(path, set={"train.steps": 2, "parallel.stages": ["ddp", "zero3"]})
    >>> outcome
    <outcome of 'Two ranks': PASSED: 2 rows on 2 ranks: every bit equal to one process>
    >>> [(row["name"], row["kept_bytes"]) for row in outcome.rows()]
    [('DDP', 143520), ('Stage III', 71760)]
    """
    from zerosim.notebook.outcome import run_here  # noqa: PLC0415

    return run_here(scenario, set or {})


def plan(
    path: "str | os.PathLike[str] | Mapping[str, Any] | Scenario", ranks: int | Sequence[int] = (), *,
    set: Mapping[str, Any] = {}, sweep: Mapping[str, Sequence[Any]] = {}, tokens: str | float | None = None,
    days: float | None = None,
) -> "Shown":
    """The plan of a scenario on its own number of ranks, on `ranks` ranks, or on each of `ranks`; `path` is as in
    `run`.

    `set` replaces keys of the scenario, `sweep` gives several values of a key; all combinations are planned. `tokens`,
    a number or a string such as "2T", adds the time for that many tokens, and `days` the fewest devices that need no
    more time; without `ranks` increasing numbers are tried. Raises `ScenarioError` as `zerosim plan` does, and
    `UsageError` for invalid `ranks`.

    >>> import zerosim as zs
    >>> found = zs.plan("mpt_7b", 64, set={"model.layers": 2, "parallel.stages": ["ddp", "zero3"]})
    >>> found
               memory
                   GB  fits    step    waits    MFU
    DDP          28.4   yes  899 ms  9.41 ms  51.4%
    Stage III    20.7   yes  886 ms  8.14 ms  52.1%
    Best that fits: Stage III, 41,605 tokens a second on each device
    >>> [(row["name"], row["fits"], row["peak_bytes"]) for row in found.rows()]
    [('DDP', True, 28420112384), ('Stage III', True, 20742857216)]
    """
    from zerosim.notebook.plans import shown_plan  # noqa: PLC0415 - most programs do not need it
    from zerosim.planner.questions import Question  # noqa: PLC0415
    from zerosim.planner.reading import read_plan  # noqa: PLC0415

    question = None if tokens is None else Question.read(tokens, days)
    counts = [ranks] if isinstance(ranks, int) else list(ranks)
    return shown_plan(read_plan(path, counts, set, sweep, question=question))


def show(
    collective: "str | Algorithm | Stage | Callable[..., Any]", ranks: int = 4, root: int | None = None, *,
    claims: str | None = None,
) -> "Shown":
    """The schedule of a collective, or a step of a stage, from a recorded run on that many ranks.

    `collective` is a name from the table of algorithms, `my_file.py:my_all_reduce`, a function, or a stage such as
    `"zero3"`; `claims` names the collective of a function if its name does not. Raises `UsageError` for an unknown
    name, and for ranks or a root that it does not support. A wrong collective raises nothing: its schedule has the
    faults.

    >>> import zerosim as zs
    >>> zs.show("ring.all_reduce", ranks=3)
    <ring.all_reduce on 3 ranks: 4 rounds, 12 messages; PASSED: every rank holds what all_reduce promises>
    """
    from zerosim.notebook.schedule import shown  # noqa: PLC0415

    return shown(collective, ranks, root, claims)


def operations(path: str | None = None) -> "Shown":
    """The public operations, or those of a file, with their formulas, kept arrays, matrix products and moved bytes.

    Figures are those of an example, whose shapes `rows()` has, in float32. `path` is a Python file whose `EXAMPLES` has
    an example for each of its operations. Raises `UsageError` if there is none.

    >>> import zerosim as zs
    >>> row = zs.operations().rows()[0]
    >>> row["name"], row["inputs"], row["keeps"], row["kept_bytes"], row["forward_products"]
    ('linear', {'x': (4, 16), 'weight': (8, 16), 'bias': (8,)}, ('x',), 256, 1024)
    """
    from zerosim.notebook.schedule import operations_of  # noqa: PLC0415

    return operations_of(path)


def prove(
    collective: "str | Algorithm | Callable[..., Any]", ranks: int | Iterable[int] = 4, *, claims: str | None = None
) -> "Shown":
    """The proofs of a collective on symbols, on `ranks` ranks or on each of `ranks`.

    `collective` and `claims` are as in `show`. Raises `UsageError` for an unknown name and for ranks that it does not
    support. A wrong collective raises nothing: its proofs have the faults.

    >>> import zerosim as zs
    >>> zs.prove("ring.all_reduce", ranks=range(2, 5))
    <ring.all_reduce on 2, 3, 4 ranks: proved>
    """
    from zerosim.notebook.proof import proved  # noqa: PLC0415

    return proved(collective, ranks, claims)


def grade(function: "str | Algorithm | Stage | Optimizer | ModelKind | Callable[..., Any]") -> "Shown":
    """The grade of a user's part, or of a function for an exercise, computed in this process.

    `function` is the function, the object that a decorator made from it, or `FILE.py:NAME`. One with the name of an
    exercise is graded as that; `zerosim grade` gives each learner's file a process of its own. Raises `UsageError` for
    an object that is no part.

    >>> import zerosim as zs
    >>> def all_gather(comm, chunks): raise NotImplementedError
    >>> zs.grade(all_gather)
    <grade of all_gather: not yet written>
    >>> def signs(g, *, t, h, a, b): g *= h.learning_rate
    >>> print(zs.grade(signs).document["complaint"].splitlines()[-1])
    it writes to the gradient g, which is read-only; use the scratch arrays a and b
    """
    from zerosim.notebook.proof import graded  # noqa: PLC0415

    return graded(function)
