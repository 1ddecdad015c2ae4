"""Partners at doubled distances, each sending its own chunk alone.
"""

def all_gather(comm, chunks):
    distance = 1
    while distance < comm.size:
        partner = comm.rank ^ distance
        if partner < comm.size:
            comm.exchange(chunks[comm.rank], to=partner, into=chunks[partner], source=partner)
        distance *= 2
