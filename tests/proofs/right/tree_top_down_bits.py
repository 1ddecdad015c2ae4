"""A broadcast, the far distances first."""

def broadcast(comm, vector, root):
    me = (comm.rank - root) % comm.size
    bit = 1
    while bit < comm.size:
        bit <<= 1
    got = me == 0
    while bit > 1:
        half = bit // 2
        if got and me % bit == 0 and me + half < comm.size:
            comm.send(vector, to=(me + half + root) % comm.size)
        elif not got and me % bit == half:
            comm.recv(into=vector, source=(me - half + root) % comm.size)
            got = True
        bit = half
