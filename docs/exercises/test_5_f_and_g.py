"""The pair of products on integers, whose sums are exact: the results of the whole matrices, with two all-reduces."""

import numpy as np
import pytest

import zerosim as zs

NAMES = "y", "∂L/∂x", "∂L/∂up", "∂L/∂down"
split_pair = __import__("5_f_and_g").split_pair


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_results_are_those_of_the_whole_matrices(ranks):
    random = np.random.default_rng(ranks)
    x, up, down, upstream = (random.integers(-9, 10, shape).astype(float) for shape in ((3, 4), (8, 4), (4, 8), (3, 4)))
    inner = np.maximum(x @ up.T, 0)
    of_inner = (upstream @ down) * (inner > 0)

    def program(comm):
        calls, mine = [], slice(comm.rank * 8 // ranks, (comm.rank + 1) * 8 // ranks)

        def all_reduce(array):
            calls.append(array)
            return zs.all_reduce(comm, array)

        found = split_pair(all_reduce, x, up[mine], down[:, mine], upstream)
        assert isinstance(found, tuple), "return y, ∂L/∂x, ∂L/∂up, ∂L/∂down"
        due = inner @ down.T, of_inner @ up, of_inner.T[mine] @ x, upstream.T @ inner[:, mine]
        own = inner[:, mine] @ down[:, mine].T, of_inner[:, mine] @ up[mine]
        for name, has, wants, part in zip(NAMES, found, due, (*own, None, None), strict=True):
            where = f"{name} of rank {comm.rank}"
            assert np.shape(has) == wants.shape, f"{where} has shape {np.shape(has)}; {wants.shape} is due"
            assert ranks == 1 or part is None or not np.array_equal(has, part), (
                f"{where} is this rank's part of the sum: {'g' if name == 'y' else 'the backward of f'} adds the parts")
            np.testing.assert_array_equal(has, wants, err_msg=where)
        assert len(calls) == 2, (f"rank {comm.rank} calls all_reduce {len(calls)} times; g does once in forward, and f "
                                 "once in backward")

    zs.spawn(program, ranks)
