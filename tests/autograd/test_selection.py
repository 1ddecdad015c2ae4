"""Selective recomputation: gradients keep their bits, memory and repeated operations are as chosen."""

import numpy as np
import pytest

from tests.autograd.tapes import backpropagated, batches, model_of
from zerosim.autograd.player import Player
from zerosim.autograd.selection import SELECTIONS, SelectedPlan
from zerosim.autograd.tape import Tape
from zerosim.models.units import Task
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import ModelKeys
from zerosim.training.config import configured

LLAMA = {"architecture": "llama", "key_value_heads": 1}


@pytest.mark.parametrize("keeps", SELECTIONS)
@pytest.mark.parametrize("shape", [{}, LLAMA, {"tied_embeddings": True, "dropout": 0.3}])
def test_gradients_have_the_bits_of_a_step_that_keeps_everything(keeps, shape):
    model, weights = model_of(**shape)
    plain = backpropagated(Tape(draw=drawn), model, weights, batches())
    assert backpropagated(Tape(draw=drawn, recomputed=model.units, keeps=keeps), model, weights, batches()) == plain


def drawn(array, micro_batch, layer, operation):
    array[...] = np.random.default_rng([micro_batch, layer, operation]).random(array.shape)


def test_a_selection_whose_kept_results_are_wrong_is_noticed(monkeypatch):
    model, weights = model_of()
    plain = backpropagated(Tape(), model, weights, batches())
    right = Player.again

    def wrong(player, x, selected, given):
        for value in given.values.values():
            np.multiply(value, 1.5, out=value)
        return right(player, x, selected, given)

    monkeypatch.setattr(Player, "again", wrong)
    assert backpropagated(Tape(recomputed=model.units, keeps="products"), model, weights, batches()) != plain


@pytest.fixture
def block():
    """The plan of a Llama's block for 2 sequences of 16, width 8, inner 24, one head of keys and values of two."""
    shape = ModelKeys(kind="transformer", layers=1, width=8, heads=2, inner=24, vocabulary=11, sequence=16, **LLAMA)
    scenario = Scenario(model=shape)
    row, *_ = scenario.rows
    (segment,) = configured(row, Task(16, 11, "cross_entropy", tokens=True)).model.units[1].segments
    return segment.plan((2, 16, 8), of_parameters=True, of_input=True)


@pytest.mark.parametrize(("keeps", "numbers", "repeated"), [
    ("products", 8 + 4 + 4 + 8 + 8 + 24 + 24 + 8, []),
    ("half_products", 8 + 4 + 8 + 24 + 8, ["k", "o", "up"]),
])
def test_what_is_kept_and_which_products_are_repeated(block, keeps, numbers, repeated):
    """Of products q, k, v, o, gate, up, down every other one; the output of down is kept, and of o repeated."""
    selected = SelectedPlan(block, keeps)
    assert sum(np.prod(block.graph.values[slot].shape) for slot in selected.forward.chosen) == 32 * numbers
    widths = {"k": 8 * 4, "o": 8 * 8, "up": 8 * 24}
    operations = sum(step.forward_operations for step in selected.again)
    assert operations == sum(2 * 32 * widths[name] for name in repeated)


def test_megatrons_selection_repeats_attention_alone(block):
    selected = SelectedPlan(block, "all_but_attention")
    multiplies = [step.instruction.operation.name for step in selected.again if step.forward_operations]
    assert multiplies == ["causal_attention"]
    assert [step for step in selected.again if step.instruction.operation.name == "rms_norm"] == []
