"""Each rank sends to two others, as in a binary heap, and is idle afterwards: 4 rounds for 7 ranks.

Says: in round 3 ranks 1 and 2 send, but not ranks 0 and 3, which have the data already
"""


def broadcast(comm, vector, root):
    place = (comm.rank - root) % comm.size
    if place:
        comm.recv(into=vector, source=((place - 1) // 2 + root) % comm.size)
    for child in (2 * place + 1, 2 * place + 2):
        if child < comm.size:
            comm.send(vector, to=(child + root) % comm.size)
