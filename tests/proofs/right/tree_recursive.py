"""A broadcast that halves by recursion."""

def broadcast(comm, vector, root):
    me = (comm.rank - root) % comm.size

    def share(low, high):
        if high - low < 2:
            return
        middle = (low + high + 1) // 2
        if me == low:
            comm.send(vector, to=(middle + root) % comm.size)
        elif me == middle:
            comm.recv(into=vector, source=(low + root) % comm.size)
        if me < middle:
            share(low, middle)
        else:
            share(middle, high)
    share(0, comm.size)
