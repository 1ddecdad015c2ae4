"""A list of the default argument grows from call to call and on all ranks.
"""

from zerosim.comm import left, right


def all_gather(comm, chunks, seen=[]):  # noqa: B006 - the mistake
    for _ in range(comm.size - 1):
        outgoing = (comm.rank - len(seen)) % comm.size
        comm.exchange(chunks[outgoing], to=right(comm), into=chunks[outgoing - 1], source=left(comm))
        seen.append(outgoing)
