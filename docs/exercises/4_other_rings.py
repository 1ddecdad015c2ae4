"""Exercise 4: other rings, and two levels. Fill in the functions, then run `zerosim grade 4_other_rings.py`.

You have what exercise 1 had. To see what yours does:

    zerosim show 4_other_rings.py:reduce_scatter_left --ranks 4
"""

import numpy as np

from zerosim.comm import left, right  # noqa: F401


def reduce_scatter_left(comm, chunks, reduce=np.add):
    """As `reduce_scatter`, but every message goes to the left: the sum of chunk c must still end on rank c.

    Chunk c is then added as ((g[c−1] + g[c−2]) + …) + g[c], in comm.size − 1 messages from every rank.
    """
    raise NotImplementedError


def reduce_scatter_elsewhere(comm, chunks, reduce=np.add):
    """As `reduce_scatter`, but leave in `chunks[comm.rank - 1]` the sum of that chunk: its owner is the rank after it.

    (Rank 0 owns the last chunk.) In comm.size − 1 messages of one chunk from every rank, whichever way they go.
    """
    raise NotImplementedError


def all_reduce_two_level(comm, chunks, per_host, reduce=np.add):
    """All-reduce on hosts of `per_host` ranks each: rank r is number r % per_host on host r // per_host.

    Links inside a host are fast, those between hosts slow, so little may pass between hosts: from each rank its share
    of 2 (H − 1) chunks on H hosts. Reduce-scatter within each host; all-reduce between ranks of the same number, of
    what they own; all-gather within each host. `chunks[a:b]` are chunks a … b − 1 in one piece, so that a host's ranks
    can cut the vector into per_host pieces. Target: no slower on 2 hosts of 4 ranks than these three.
    """
    raise NotImplementedError
