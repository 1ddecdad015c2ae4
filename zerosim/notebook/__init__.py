"""What notebooks and the Python prompt ask for: objects that show themselves there, offline, and print well."""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerosim.notebook.outcome import ShownCollectives, ShownOutcome
    from zerosim.notebook.schedule import ShownSchedule


def run(
    scenario: str | os.PathLike[str], set: Mapping[str, Any] | None = None
) -> "ShownOutcome | ShownCollectives":
    """The outcome of a scenario, run in this process, a thread for each rank; its last step is traced.

    `set` replaces keys of the scenario, as `--set` does on the command line. Raises `ScenarioError` for what is wrong
    in the file or in `set`; `LaunchError` under `mpirun`, where `zerosim run` is to be used, and for a scenario that
    limits memory, which only processes of their own can have.

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


def show(
    collective: str | Callable[..., Any], ranks: int = 4, root: int | None = None, *, claims: str | None = None
) -> "ShownSchedule":
    """The schedule of a collective, from a recorded run on that many ranks.

    `collective` is a name from the table of algorithms, `my_file.py:my_all_reduce`, or a function; `claims` says which
    collective a function is, where its name does not. Raises `UsageError` for a name that is nothing, and for ranks or
    a root that it does not serve. A collective that is wrong raises nothing: its schedule says what is wrong.

    >>> import zerosim as zs
    >>> zs.show("ring.all_reduce", ranks=3)
    <ring.all_reduce on 3 ranks: 4 rounds, 12 messages; PASSED: every rank holds what all_reduce promises>
    """
    from zerosim.notebook.schedule import shown  # noqa: PLC0415

    return shown(collective, ranks, root, claims)
