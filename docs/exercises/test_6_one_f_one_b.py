"""The passes of all ranks together: each once, no rank waits forever, and the memory and the bubble of 1F1B."""

import pytest

from zerosim.stages.pipeline import Slot
from zerosim.verdict.pipelines import bubble, bubble_due, held, held_due

one_f_one_b = __import__("6_one_f_one_b").one_f_one_b


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (4, 6), (4, 3), (4, 2), (2, 1), (1, 3)])
def test_the_schedule_is_1f1b(ranks, micro_batches):
    schedule = []
    for rank in range(ranks):
        where = f"rank {rank} of {ranks}, {micro_batches} micro-batches"
        result = one_f_one_b(rank, ranks, micro_batches)
        if result is None:
            pytest.fail(f"{where}: it returns None; return the passes")
        passes = [*result]
        for one in passes:
            if not isinstance(one, tuple | list) or len(one) != 2 or one[0] not in ("F", "B"):
                pytest.fail(f'{where}: {one!r} is no pass; write ("F", m) or ("B", m)')
        for what, pass_name in (("F", "forward"), ("B", "backward")):
            numbers = [number for kind, number in passes if kind == what]
            if numbers != [*range(micro_batches)]:
                pytest.fail(f"{where}: {pass_name} runs {numbers}; each micro-batch is due once, in order: "
                            f"{[*range(micro_batches)]}")
        warm = min(ranks - 1 - rank, micro_batches)
        forwards = [kind for kind, _ in passes].index("B")
        due = min(warm + 1, micro_batches)
        if forwards != due:
            pytest.fail(f"{where}: {forwards} forward(s) before the first backward, {due} due: warm-up has {warm}, one "
                        "for each rank after this one; then one forward, one backward")
        schedule.append([Slot(what, number, 0) for what, number in passes])
    for rank, own in enumerate(schedule):
        due = held_due("1f1b", rank, ranks, micro_batches)
        if held(own) != due:
            pytest.fail(f"rank {rank} of {ranks} holds activations of {held(own)} micro-batches at a time, {due} due: "
                        "a backward follows each forward")
    if bubble(schedule) != bubble_due(ranks, micro_batches):
        pytest.fail(f"{bubble(schedule)} of the step is bubble; {bubble_due(ranks, micro_batches)} is due")
