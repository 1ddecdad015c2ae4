"""Not written yet, beside one that is.
"""


def my_all_reduce(comm, x):
    raise NotImplementedError
