"""The binomial tree from the root, with positions counted from it."""


def broadcast(comm, vector, root):
    position, reach = (comm.rank - root) % comm.size, 1
    while reach < comm.size:
        if position < reach and position + reach < comm.size:
            comm.send(vector, to=(position + reach + root) % comm.size)
        elif reach <= position < 2 * reach:
            comm.recv(into=vector, source=(position - reach + root) % comm.size)
        reach *= 2
