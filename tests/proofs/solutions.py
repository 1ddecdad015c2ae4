"""Solutions of exercises 5 and 6, whose tests are in their files; test_exercise_files.py has those of the others."""

import numpy as np


def split_pair(all_reduce, x, up, down, upstream):
    inner = np.maximum(x @ up.T, 0.0)
    of_inner = (upstream @ down) * (inner > 0.0)
    return all_reduce(inner @ down.T), all_reduce(of_inner @ up), of_inner.T @ x, upstream.T @ inner


def one_f_one_b(rank, ranks, micro_batches):
    warm = min(ranks - 1 - rank, micro_batches)
    passes = [("F", number) for number in range(warm)]
    for number in range(warm, micro_batches):
        passes += [("F", number), ("B", number - warm)]
    return passes + [("B", number) for number in range(micro_batches - warm, micro_batches)]
