"""The root is taken to be rank 0.
"""


def broadcast(comm, vector, root):
    reach = 1
    while reach < comm.size:
        if comm.rank < reach and comm.rank + reach < comm.size:
            comm.send(vector, to=comm.rank + reach)
        elif reach <= comm.rank < 2 * reach:
            comm.recv(into=vector, source=comm.rank - reach)
        reach *= 2
