"""Records a script while it trains: batches, each backward's gradients before any reduction, clipping, updates.

Five observers are one window: of forward, backward, clipping, update, wrapping. Nothing is computed again, nothing is
sent, and no rank waits for another: a rank only writes down what it sees. Sketches and digests stay on their device
until an update is over, and are then copied at once. Nothing here keeps an optimizer, a model or its group alive.
"""

from zerosim.torch.check.clipping import Clipping
from zerosim.torch.check.forward import Forwards
from zerosim.torch.check.updating import Updates


class ScriptRecorder(Forwards, Clipping, Updates):
    """The frames of this rank, given to `keep` one by one, while `listening`."""
