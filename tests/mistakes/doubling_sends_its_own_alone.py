"""Partners at doubled distances, each sending its own chunk alone.

Says: is on rank 2 when rank 2 sends to rank 0 in round 2
Says: send all that has arrived by then
"""

def all_gather(comm, chunks):
    distance = 1
    while distance < comm.size:
        partner = comm.rank ^ distance
        if partner < comm.size:
            comm.exchange(chunks[comm.rank], to=partner, into=chunks[partner], source=partner)
        distance *= 2
