"""Exercise 6: 1F1B, a schedule of a pipeline. Fill in the function, then run `pytest test_6_one_f_one_b.py`.

    1. warm-up: one forward for each rank after this one, or for each micro-batch if there are fewer
    2. steady: one forward, then one backward
    3. cool-down: the remaining backwards, in the order of the micro-batches
"""


def one_f_one_b(rank, ranks, micro_batches):
    """The passes of a rank in one step, in order: ("F", m) is forward of micro-batch m, ("B", m) backward."""
    raise NotImplementedError
