"""The ledger of moves: an instrument that counts the bytes that a lane copies between tiers of memory."""

from collections import Counter


class Moves:
    """The bytes that were copied since `begin`, by kind and direction.

    >>> moves = Moves()
    >>> moves.moved("gradients, device to host", "layers.0", 40)
    >>> dict(moves.moved_bytes)
    {'gradients, device to host': 40}
    """

    def __init__(self) -> None:
        self.moved_bytes = Counter[str]()

    def begin(self) -> None:
        """Drop the copies before the first step."""
        self.moved_bytes.clear()

    def moved(self, name: str, owner: str, moved_bytes: int) -> None:
        if moved_bytes:
            self.moved_bytes[name] += moved_bytes
