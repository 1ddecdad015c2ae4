"""P_a: kept inputs divided by the tensor ranks, with the bits, the bytes and the memory that are due."""

import pytest

from tests.test_split_models import GPT, MLP, outcome
from zerosim.autograd.shelf import Partitioned
from zerosim.errors import ScenarioError

KEPT = ["parallel.tensor_ranks=2", 'parallel.stages=["zero3"]', "parallel.recompute=[1, 2]"]
DIVIDED = [*KEPT, "parallel.partition_activations=true"]
OFFLOADED = [*DIVIDED, "parallel.offload_activations=true"]


@pytest.mark.parametrize(("text", "changes"), [
    (GPT, ["parallel.tensor_ranks=4", "model.sequence=5", "model.width=12", "train.micro_batch=1"]),
    (GPT, ["parallel.offload_activations=true", "parallel.prefetch=true", "train.precision=bf16"]),
    (GPT, ["parallel.recompute=true", 'parallel.recompute_keeps="products"', "world.ranks=2",
           "parallel.accumulation=layered"]),
    (MLP, ["parallel.recompute=[2]"]),
])
def test_bits_bytes_and_memory_are_as_due(text, changes, tmp_path):
    assert outcome(text, tmp_path, *DIVIDED, *changes).failures == []


def test_a_twelfth_of_the_traffic_halves_the_kept_inputs(tmp_path):
    whole, divided, offloaded = (
        outcome(GPT, tmp_path, *changes).trained[0].measured for changes in (KEPT, DIVIDED, OFFLOADED))
    inputs = 2 * 8 * 16 * 4                                        # b·s·h·w of a block
    sent, more, same = ({name: each["sent_bytes"] for name, each in row.traffic[0].by_collective.items()
                         if "tensor" in name} for row in (whole, divided, offloaded))
    assert more == same == sent | {"tensor_all_gather": sent["tensor_all_reduce"] // 12}
    assert more["tensor_all_gather"] == 2 * 2 * 2 * inputs // 2      # steps · micro-batches · blocks, (N − 1)/N of each
    assert sum(more.values()) < 1.1 * sum(sent.values())
    peaks = [row.memory[0].peak_bytes["activations"] for row in (whole, divided)]
    assert peaks[0] - peaks[1] == inputs // 2
    assert (divided.memory[0].offloaded_bytes, offloaded.memory[0].offloaded_bytes) == (0, 2 * inputs // 2)


def test_a_piece_of_a_different_rank_and_inputs_kept_whole_are_noticed(tmp_path, monkeypatch):
    honest = Partitioned._mine
    with monkeypatch.context() as planted:
        planted.setattr(Partitioned, "_mine", lambda self, flat: honest(self, flat)[::-1])
        assert ("Stage III", "bits differ") not in outcome(GPT, tmp_path, *DIVIDED).failures
        planted.setattr(Partitioned, "_piece", lambda self, owner, flat: honest(self, flat).copy())
        assert ("Stage III", "bits differ") in outcome(GPT, tmp_path, *DIVIDED).failures
    monkeypatch.setattr(Partitioned, "begin", lambda self, segment: self._shelf.begin(segment))
    monkeypatch.setattr(Partitioned, "_whole", lambda self, shape, owner, piece: self._allocate(
        shape, piece.dtype, kind="activations", owner=owner))
    assert outcome(GPT, tmp_path, *DIVIDED).failures


@pytest.mark.parametrize(("text", "changes", "said"), [
    (GPT, ["parallel.recompute=false"], "partition_activations divides the inputs of recomputed units; set par"),
    (GPT, ["parallel.tensor_ranks=1"], "divides inputs by tensor ranks, and tensor_ranks is 1"),
    (GPT, ["parallel.sequence_parallel=true"], "each has a piece of the input of h.0; leave it out of recompute, or"),
    (MLP, ["parallel.recompute=true"], "each has a piece of the input of layers.1; leave it out of recompute, or"),
])
def test_nothing_to_divide_is_refused(text, changes, said, tmp_path):
    with pytest.raises(ScenarioError, match=said):
        outcome(text, tmp_path, *DIVIDED, *changes)
