"""The distance of partners grows by one in each round instead of doubling.

Says: rank 3 receives the data 2 times, in rounds 2 and 3
"""


def broadcast(comm, vector, root):
    position, reach = (comm.rank - root) % comm.size, 1
    while reach < comm.size:
        if position < reach and position + reach < comm.size:
            comm.send(vector, to=(position + reach + root) % comm.size)
        elif reach <= position < 2 * reach:
            comm.recv(into=vector, source=(position - reach + root) % comm.size)
        reach += 1
