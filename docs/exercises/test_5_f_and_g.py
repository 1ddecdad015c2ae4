"""The pair of products on integers, whose sums are exact: the results of the whole matrices, with two all-reduces."""

import numpy as np
import pytest

import zerosim as zs

NAMES = "y", "∂L/∂x", "∂L/∂up", "∂L/∂down"
split_pair = __import__("5_f_and_g").split_pair


@pytest.mark.parametrize("ranks", [2, 4, 1])
def test_results_are_those_of_the_whole_matrices(ranks):
    random = np.random.default_rng(ranks)
    x, up, down, upstream = (random.integers(-9, 10, shape).astype(float) for shape in ((5, 3), (8, 3), (3, 8), (5, 3)))
    inner, of_relu = np.maximum(x @ up.T, 0), upstream @ down
    of_inner = of_relu * (inner > 0)

    def program(comm):
        calls, mine = [], slice(comm.rank * 8 // ranks, (comm.rank + 1) * 8 // ranks)

        def all_reduce(array):
            calls.append(array)
            return zs.all_reduce(comm, array)

        def check_calls():
            if len(calls) != 2:
                pytest.fail(f"rank {comm.rank} calls all_reduce {len(calls)} times, 2 are due: g once in forward, f "
                            "once in backward")

        results = split_pair(all_reduce, x, up[mine], down[:, mine], upstream)
        if not isinstance(results, tuple | list) or len(results) != len(NAMES):
            pytest.fail(f"return y, ∂L/∂x, ∂L/∂up, ∂L/∂down, not {results!r:.60}")
        due = inner @ down.T, of_inner @ up, of_inner.T[mine] @ x, upstream.T @ inner[:, mine]
        own = inner[:, mine] @ down[:, mine].T, of_inner[:, mine] @ up[mine], None, None
        without_relu = None, of_relu @ up, of_relu.T[mine] @ x, upstream.T @ (x @ up.T)[:, mine]
        for name, has, wants, part, unmasked in zip(NAMES, results, due, own, without_relu, strict=True):
            if np.shape(has) != wants.shape:
                pytest.fail(f"{name} of rank {comm.rank} has shape {np.shape(has)}; {wants.shape} is due")
            if np.array_equal(has, wants):
                continue
            if part is not None and np.array_equal(has, part):
                why = f"it is this rank's part of the sum: {'g' if name == 'y' else 'the backward of f'} adds the parts"
            elif any(np.array_equal(has, ranks * value) for value in (wants, part) if value is not None):
                why = f"it is {ranks} times too large: what all ranks have already was added over ranks"
            elif unmasked is not None and np.array_equal(has, unmasked):
                why = "relu is missing: its backward lets through only where its input was positive"
            else:
                why = "it is not that of the whole matrices"
                check_calls()
            pytest.fail(f"{name} of rank {comm.rank} is wrong: {why}")
        check_calls()

    zs.spawn(program, ranks)
