"""A partner is assumed for everyone.

Says: it needs a power of two
"""


def broadcast(comm, vector, root):
    position, reach = (comm.rank - root) % comm.size, 1
    while reach < comm.size:
        if position < reach:
            comm.send(vector, to=(position + reach + root) % comm.size)
        elif position < 2 * reach:
            comm.recv(into=vector, source=(position - reach + root) % comm.size)
        reach *= 2
