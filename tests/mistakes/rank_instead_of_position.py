"""Positions are counted from the root, partners are not.

Says: right from root 0, wrong from root 1
"""


def broadcast(comm, vector, root):
    position, reach = (comm.rank - root) % comm.size, 1
    while reach < comm.size:
        if position < reach and position + reach < comm.size:
            comm.send(vector, to=position + reach)
        elif reach <= position < 2 * reach:
            comm.recv(into=vector, source=position - reach)
        reach *= 2
