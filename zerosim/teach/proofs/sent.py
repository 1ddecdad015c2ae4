"""The chunks that a collective sends, beside the least that any algorithm for it can send.

    chunks    the elements of all messages of all ranks, in a run whose chunks have one element each
    least     the contributions to an element meet at some rank, and the sum reaches its holders from there: every other
              contributor sends it at least once, and every other holder receives it once more. That makes
              contributors + holders − 1 messages, or one fewer if some rank is both
"""

from collections import defaultdict
from math import isclose
from typing import NamedTuple

from zerosim.collectives.kinds import CollectiveKind
from zerosim.instruments.record import Recording
from zerosim.payloads.terms import Term
from zerosim.teach.proofs.case import expected_terms
from zerosim.words import plural


class SentChunks(NamedTuple):
    """The messages, the rounds and the chunks of a run, and the least chunks for this collective."""

    ranks: int
    messages: int
    rounds: int
    chunks: int
    least: int

    def __str__(self) -> str:
        """
        >>> str(SentChunks(4, messages=24, rounds=3, chunks=24, least=12))
        '24 chunks in 24 messages and 3 rounds; 12 chunks is the least, so it sends 2 times as many'
        """
        often = self.chunks / self.least if self.least else 0
        more = f", so it sends {often:.3g} times as many" if often > 1 else ""
        least = f"; {plural(self.least, 'chunk')} is the least{more}" if self.ranks > 1 else ""
        return (f"{plural(self.chunks, 'chunk')} in {plural(self.messages, 'message')} and "
                f"{plural(self.rounds, 'round')}{least}")

    def differs_from(self, declared: float) -> str:
        """The fault if each rank should send `declared` chunks on average; empty if it does."""
        if isclose(self.chunks, declared * self.ranks, rel_tol=1e-9):
            return ""
        return (f"a rank sends {self.chunks / self.ranks:.6g} chunks on average, and chunks_sent declares "
                f"{declared:.6g} on {plural(self.ranks, 'rank')}")


def sent_in(recording: Recording, kind: CollectiveKind, root: int) -> SentChunks:
    """The messages and chunks of a run with one element in each chunk.

    >>> from zerosim.teach.proofs.proof import run
    >>> from zerosim.teach.proofs.subject import named_subject
    >>> for name in ("ring.all_reduce", "naive.all_reduce", "tree.broadcast"):
    ...     subject = named_subject(name)
    ...     print(sent_in(run(subject, 4, 4), subject.kind, root=0))
    24 chunks in 24 messages and 6 rounds; 24 chunks is the least
    24 chunks in 6 messages and 6 rounds; 24 chunks is the least
    12 chunks in 3 messages and 2 rounds; 12 chunks is the least
    """
    chunks = sum(len(message.carried) for message in recording.messages)
    return SentChunks(
        recording.size, len(recording.messages), recording.rounds, chunks, least_chunks(kind, recording.size, root))


def least_chunks(kind: CollectiveKind, size: int, root: int) -> int:
    """The least chunks that any algorithm sends for this collective.

    Source for all-reduce: Patarasuk and Yuan (2009), section 2.
    """
    holders: defaultdict[tuple[Term, ...], set[int]] = defaultdict(set)
    for (rank, _), due in expected_terms(kind, size, size, root).items():
        holders[due].add(rank)
    return sum(
        len(contributors) + len(holding) - 1 - bool(contributors & holding)
        for due, holding in holders.items() for contributors in [{term.rank for term in due}])
