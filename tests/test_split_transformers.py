"""Transformers split over context ranks and by vocabulary: their bits, bytes by hand, and what the law of one function
finds in wrong ones."""

from dataclasses import replace

import numpy as np
import pytest

from tests.test_split_models import EVEN, GPT, LLAMA, outcome, read
from zerosim.autograd import ring_attention
from zerosim.autograd.operations.shapes import reshape
from zerosim.autograd.tape_collectives import copy_to, own_rows
from zerosim.data import load_dataset
from zerosim.errors import ScenarioError
from zerosim.models import context_parallel, tensor_parallel, transformer
from zerosim.training.experiment import prepare
from zerosim.training.one_function import Difference, differences

ALL_TO_ALL = 'parallel.context_by="all_to_all"'
VOCABULARY = ("parallel.vocabulary_parallel=true", "parallel.tensor_ranks=2", *EVEN)


@pytest.mark.parametrize("changes", [
    ["parallel.context_ranks=4", 'parallel.stages=["ddp"]'],
    ["parallel.context_ranks=4", "train.precision=bf16", 'parallel.stages=["zero3"]', *LLAMA],
    ["parallel.context_ranks=2", "parallel.autocast=bf16", "parallel.recompute=true", 'parallel.stages=["zero2"]'],
    ["parallel.context_ranks=2", "train.precision=fp16", 'parallel.stages=["zero1"]', ALL_TO_ALL, *LLAMA],
    ["parallel.context_ranks=2", "parallel.sequence_parallel=true", 'parallel.stages=["zero3"]', *VOCABULARY],
    ["model.tied_embeddings=true", "parallel.sequence_parallel=true", 'parallel.stages=["zero2"]', *VOCABULARY, *LLAMA],
    ["parallel.context_ranks=2", ALL_TO_ALL, 'parallel.stages=["zero2"]'],
])
def test_a_split_transformer_has_the_bits_of_one_process_and_the_figures_due(changes, tmp_path):
    assert outcome(GPT, tmp_path, *changes).failures == []


@pytest.mark.parametrize(("changes", "due"), [
    ([], {"shift": 3 * 3}),
    ([ALL_TO_ALL], {"all_to_all": 2 * 2}),
    (LLAMA, {"shift": 3 * 3}),
])
def test_the_collectives_of_a_blocks_attention_by_hand(changes, due, tmp_path):
    """On C = 4 ranks a ring sends (C − 1)/C of keys and values in forward, and twice as much in backward, with the
    gradients; an all-to-all (C − 1)/C of queries, keys and values, and of the output, in both."""
    (row,) = outcome(GPT, tmp_path, "parallel.context_ranks=4", 'parallel.stages=["ddp"]', *changes).trained
    steps, blocks, micro_batches, size, batch, tokens, width = 2, 2, 4, 4, 2, 8, 16
    passes, found = steps * blocks * micro_batches, row.measured.traffic[1].by_collective
    ((name, calls),) = due.items()
    whole = batch * tokens * 4
    keys_and_values = 2 * whole * (width // 2 if changes == LLAMA else width)
    sent = {"shift": 3 * keys_and_values * (size - 1) // size,
            "all_to_all": 2 * 4 * whole * width // size * (size - 1) // size}
    assert found[f"context_{name}"]["calls"] == passes * calls
    assert found[f"context_{name}"]["sent_bytes"] == passes * sent[name]


def test_a_vocabulary_in_pieces_sends_three_numbers_of_each_position(tmp_path):
    (row,) = outcome(GPT, tmp_path, 'parallel.stages=["ddp"]', *VOCABULARY).trained
    passes, batch, tokens, width = 2 * 2, 2, 8, 16
    found = row.measured.traffic[0].by_collective
    assert found["tensor_all_gather"]["sent_bytes"] == passes * 3 * batch * tokens * 4
    assert found["tensor_all_reduce"]["sent_bytes"] == passes * (2 * 4 + 2) * batch * tokens * width * 4


def hidden_too_late(tokens, dtype):
    return np.triu(np.full((tokens, tokens), -np.inf, dtype), 2)


def rows_of_the_next(indices, *, out, empty, group, count):
    np.subtract(indices, (group.place + 1) % group.size * count, out=out)
    np.copyto(out, -1, where=(out < 0) | (out >= count))


def untransposed(x, context):
    return reshape(x, shape=(x.shape[0], x.shape[1] // context.size, x.shape[2] * context.size))


def copied_twice(w, group):
    return {name: copy_to(copy_to(each, group=group), group=group) for name, each in w.items()}


@pytest.mark.parametrize(("module", "name", "wrong", "changes", "said"), [
    (ring_attention, "hidden", hidden_too_late, ["parallel.context_ranks=2"],
     "loss: not the value of the model in one piece: first in the outputs of h.0 on place 0"),
    (tensor_parallel, "own_rows", replace(own_rows, forward=rows_of_the_next), VOCABULARY, "loss: "),
    (context_parallel, "to_sequence", untransposed, ["parallel.context_ranks=2", ALL_TO_ALL], "loss: "),
    (transformer, "on_pieces", lambda w, group: w, ["parallel.context_ranks=2"],
     "lm_head.weight: place 1 and place 0 have different gradients"),
    (transformer, "on_pieces", copied_twice, ["parallel.context_ranks=2"],
     "lm_head.weight: 2 times the gradient of the model in one piece: 2 ranks add what each has whole"),
])
def test_a_wrong_split_is_named(module, name, wrong, changes, said, tmp_path, monkeypatch):
    scenario = read(GPT, tmp_path, *changes)
    config = prepare(scenario, load_dataset(scenario)).rows[0]
    assert list(differences(config)) == []
    monkeypatch.setattr(module, name, wrong)
    config = prepare(scenario, load_dataset(scenario)).rows[0]
    assert str(differences(config)[0]).startswith(said)


def test_a_ratio_just_below_two_is_two():
    assert "2 ranks add what each has whole" in str(Difference("x", np.nextafter(2.0, 1.0)))


@pytest.mark.parametrize(("changes", "message"), [
    (["parallel.expert_ranks=2"], "a transformer is split over tensor and context ranks; remove parallel.expert_ranks"),
    (["parallel.vocabulary_parallel=true", "parallel.tensor_ranks=2"], "must divide vocabulary = 65; set it to a"),
    (["parallel.context_ranks=4", "parallel.tensor_ranks=2", "world.ranks=8", ALL_TO_ALL], "the 8 ranks that cut"),
    (["parallel.context_ranks=2", "model.sequence=7"], "the 2 ranks that cut it must divide sequence = 7"),
    (["parallel.context_ranks=2", "model.dropout=0.1"], "these ranks have pieces of them; set it to 0"),
    (["parallel.vocabulary_parallel=true"], "tensor_ranks is 1; set tensor_ranks, or leave it out"),
    ([ALL_TO_ALL], "context_ranks is 1; set context_ranks, or leave it out"),
])
def test_a_transformer_that_cannot_be_split_is_refused(changes, message, tmp_path):
    with pytest.raises(ScenarioError, match=message):
        outcome(GPT, tmp_path, *changes)
