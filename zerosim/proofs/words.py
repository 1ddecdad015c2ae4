"""Words about a mistake: what is certain, and what was seen."""


class Observation(str):
    """What was seen of a mistake, in words, where its cause is not certain."""

    __slots__ = ()
