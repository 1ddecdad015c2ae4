"""The passes of all ranks together: each once, no rank waits forever, and the memory and the bubble of 1F1B."""

import pytest

from zerosim.stages.pipeline import Slot
from zerosim.verdict.pipelines import bubble, bubble_due, held, held_due

one_f_one_b = __import__("6_one_f_one_b").one_f_one_b


@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 3), (2, 1), (2, 4), (4, 3), (4, 6)])
def test_the_schedule_is_1f1b(ranks, micro_batches):
    found = [one_f_one_b(rank, ranks, micro_batches) for rank in range(ranks)]
    for rank, passes in enumerate(found):
        for what in "FB":
            numbers = [number for kind, number in passes if kind == what]
            assert numbers == [*range(micro_batches)], (
                f"rank {rank} of {ranks} runs {what} of micro-batches {numbers}; each is due once, in order")
        warm = min(ranks - 1 - rank, micro_batches)
        forwards = [kind for kind, _ in passes].index("B")
        assert forwards == min(warm + 1, micro_batches), (
            f"rank {rank} of {ranks} runs {forwards} forwards before its first backward; {warm} to warm up, and then "
            "one forward, one backward")
    slots = [[Slot(what, number, 0) for what, number in passes] for passes in found]
    for rank, own in enumerate(slots):
        due = held_due("1f1b", rank, ranks, micro_batches)
        assert held(own) == due, (f"rank {rank} of {ranks} holds activations of {held(own)} micro-batches at a time; "
                                  f"1F1B holds {due}: a backward follows each forward")
    assert bubble(slots) == bubble_due(ranks, micro_batches), (
        f"{bubble(slots)} of the step of {ranks} ranks is bubble; {bubble_due(ranks, micro_batches)} is due")
