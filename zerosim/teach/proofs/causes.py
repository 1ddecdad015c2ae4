"""The cause of a wrong result, found in the recorded run of a collective.

Each of `CAUSES` detects one kind of error in a run and says in words what the function did and what to do instead; it
returns None for other errors. The first that returns words is the cause. Causes about chunk numbers identify a chunk by
its memory if the function works in place, and by the contributions in a message if it has buffers of its own.
"""

from collections import Counter
from collections.abc import Callable

from zerosim.teach.proofs.case import Case, Observation
from zerosim.teach.proofs.chunk_numbers import (
    ends_elsewhere,
    mixes_up_places,
    same_chunk,
    slice_ends,
    stays_on_one_chunk,
    unlike_numbers,
)
from zerosim.teach.proofs.contributions import (
    adds_elements_up,
    drops_what_arrived,
    goes_no_further,
    passes_its_sum_on,
    replaces,
    sends_what_it_lacks,
)
from zerosim.teach.proofs.rounds import adds_in_the_gather, ends_too_early, gathers_no_full_sum

Cause = Callable[[Case], str | None]


def cuts_evenly(case: Case) -> str | None:
    """The result is right with one element in each chunk, which is tried first."""
    if case.count == case.size:
        return None
    lengths = Counter(case.chunk_of.values())
    cut = ", ".join(str(lengths[chunk]) for chunk in range(min(case.size, 8))) + ", …" * (case.size > 8)
    return (
        f"right with one element in each chunk, wrong where chunks have {cut} elements: a chunk has ceil(count / size) "
        "elements, the last may have fewer or none. Take lengths from chunks[c] itself, or cut with "
        "zerosim.sharding.split, not by count // size or np.array_split"
    )


def adds_in_another_order(case: Case) -> str | None:
    """All terms are there, but ranks add them in different orders."""
    if case.wrong or not case.subject.kind.agreeing or not case.subject.kind.reducing:
        return None
    return (
        "each rank adds in the order in which contributions reach it, so bits differ: add each chunk on one rank "
        "and send the sum to the others, or keep all contributions and add them in the order of ranks"
    )


CAUSES: tuple[Cause, ...] = (
    adds_elements_up,
    cuts_evenly,
    slice_ends,
    sends_what_it_lacks,
    adds_in_the_gather,
    gathers_no_full_sum,
    same_chunk,
    stays_on_one_chunk,
    unlike_numbers,
    ends_elsewhere,
    replaces,
    mixes_up_places,
    drops_what_arrived,
    passes_its_sum_on,
    ends_too_early,
    adds_in_another_order,
    goes_no_further,
)
"""The most specific first."""


OBSERVATIONS: tuple[Cause, ...] = (drops_what_arrived, passes_its_sum_on, goes_no_further)
"""The causes that tell where a contribution was lost or doubled, and not always why."""


def why_it_is_wrong(case: Case) -> str | None:
    """The first cause that is found; an `Observation` if it is not certain."""
    for cause in CAUSES:
        if said := cause(case):
            return Observation(said) if cause in OBSERVATIONS else said
    return None
