"""Views of a run, a schedule and a step: the terminal, pages, pictures and notebooks.

    document, columns         one document of a run, one declaration of its figures; everything below reads these
    table, grid               the terminal
    page.py and page.html     the pages that need no network; pictures, the pictures in them
    schedule, drawing         a collective round by round; step, a stage event by event; recorded, where both come from
    shown, notebook           objects that display themselves
    trace_events              a step for Perfetto
    proofs, transposes, collectives    proofs, checks and programs

The functions below are those of `zerosim`. They import the rest when they are called: `import zerosim` stays light.
A notebook has one process: under a launcher `zs.run` refuses and names `zerosim run`.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerosim.collectives import Algorithm
    from zerosim.models.units import ModelKind
    from zerosim.scenario import Scenario
    from zerosim.show.notebook import ShownOutcome
    from zerosim.show.shown import Shown
    from zerosim.stages import Stage
    from zerosim.stages.optimizers import Optimizer


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
    from zerosim.show.notebook import run_here  # noqa: PLC0415

    return run_here(scenario, set or {})


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
    from zerosim.show.notebook import shown  # noqa: PLC0415

    return shown(collective, ranks, root, claims)


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
    from zerosim.show.proofs import proved  # noqa: PLC0415

    return proved(collective, ranks, claims)


def check(part: "str | Algorithm | Stage | Optimizer | ModelKind | Callable[..., Any]") -> "Shown":
    """The check of a part: all that its kind and its declarations promise. `FILE.py:NAME` is loaded first.

    Raises `UsageError` for an object that is no part.

    >>> import zerosim as zs
    >>> def all_gather(comm, chunks): raise NotImplementedError
    >>> zs.check(all_gather)
    <check of zerosim.show:all_gather: not yet written>
    """
    from zerosim.show.proofs import checked_part  # noqa: PLC0415

    return checked_part(part)
