"""Records a script while it trains: batches, each backward's gradients before any reduction, clipping, updates.

Five observers share one window: forward, backward, clipping, update, wrapping. Nothing is computed again, nothing is
sent, and no rank waits for another: a rank only writes down what it sees. Sketches and digests stay on their device
until an update is over, and are then copied at once. Nothing here keeps an optimizer, a model or its group alive.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from zerosim.torch.check.backward import Backwards
from zerosim.torch.check.clipping import Clipping
from zerosim.torch.check.forward import Forwards
from zerosim.torch.check.record import Facts, Frame
from zerosim.torch.check.updating import Updates
from zerosim.torch.check.window import Window
from zerosim.torch.check.wrapping import Wrapping


class ScriptRecorder:
    """The frames of this rank, given to `keep` one by one, while `listening`."""

    def __init__(self, keep: Callable[[Frame], None], first: int = 1, last: int | None = None) -> None:
        self.window = Window(keep, first, last)

    @property
    def facts(self) -> Facts:
        """What is known of this rank."""
        return self.window.facts

    @property
    def failed(self) -> str:
        """Why the observation has ended before the script; empty if it has not."""
        return self.window.failed

    @contextmanager
    def listening(self) -> Iterator["ScriptRecorder"]:
        """A context in which everything that trains is recorded."""
        window = self.window
        wrapping, backwards = Wrapping(window), Backwards(window)
        for observer in (wrapping, Forwards(window), backwards, Clipping(window), Updates(window, backwards, wrapping)):
            observer.listen()
        try:
            yield self
        finally:
            window.leaving.close()
            backwards.leave()
            window.forget()
