"""Progress of a run on rank 0's standard error: live on a terminal, plain lines elsewhere."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

PLAIN_LINES = 3


class Plain:
    """A few lines for each training, at evenly spaced steps."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._title, self._steps = "", 0

    def begin(self, title: str, steps: int) -> None:
        self._title, self._steps = title, steps

    def step(self, step: int, loss: float) -> None:
        marks = {max(1, self._steps * mark // PLAIN_LINES) for mark in range(PLAIN_LINES + 1)}
        if step in marks:
            self._console.print(
                f"{self._title:<12} step {step:>{len(str(self._steps))}}/{self._steps}   loss {loss:.4f}",
                markup=False,
            )

    def end(self) -> None: ...


class LiveProgress:
    """A bar for each training, which stays when it has ended."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: Progress | None = None
        self._task = TaskID(0)

    def begin(self, title: str, steps: int) -> None:
        self._bars = Progress(
            TextColumn("{task.description:<12}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            console=self._console,
        )
        self._task = self._bars.add_task(title, total=steps, loss="…")
        self._bars.start()

    def step(self, step: int, loss: float) -> None:
        assert self._bars is not None
        self._bars.update(self._task, completed=step, loss=f"{loss:.4f}")

    def end(self) -> None:
        """Stop the bar; may be called again, and before `begin`."""
        if self._bars is not None:
            self._bars.stop()
