"""Words about an error: certain causes, and observations."""


class Observation(str):
    """An observation about an error, in words, if its cause is not certain."""

    __slots__ = ()
