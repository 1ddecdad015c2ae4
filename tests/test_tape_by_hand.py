"""What a tape draws, scales, counts and adds up, on a unit or two; and what formulas say of rows that go on."""

import weakref
from dataclasses import replace

import numpy as np
import pytest

from tests import transformers
from tests.test_formulas import config
from tests.training import run, scenario
from zerosim.autograd.tape import Tape
from zerosim.errors import CollectiveError
from zerosim.figures.traffic import most_messages, volume
from zerosim.models.mlp import mlp
from zerosim.scenario.sections import Variant
from zerosim.stages.beside import Beside
from zerosim.stages.gathering import Prefetched
from zerosim.training.config import Resumed


def model_of(**keys):
    """The model of a small transformer's row, and its weights before the first step."""
    model = transformers.prepared(layers=1, **keys).rows[0].model
    return model, {unit: unit.initial(0) for unit in model.units}


def backpropagated(tape, model, weights, batches):
    """Each unit's gradient, of these micro-batches together."""
    activations, gradients = [x for x, _ in batches], {}
    for unit in model.forward_units:
        activations = tape.forward(unit, weights[unit], activations)
    loss, upstreams = tape.loss(model.loss, activations, [y for _, y in batches], 4)
    for unit in model.backward_units:
        tape.recompute(unit, weights[unit])
        upstreams, found = tape.backward(unit, weights[unit], upstreams)
        if found is not None:
            assert unit not in gradients, "a unit's gradient comes with its last segment"
            gradients[unit.name] = found.tobytes()
    return loss.tobytes(), gradients


def batches(count=2):
    data = transformers.tokens()
    return [(data.x[2 * number : 2 * number + 2].astype(np.int64), data.y[2 * number : 2 * number + 2].astype(np.int64))
            for number in range(count)]


@pytest.mark.parametrize("recomputed", ["none", "all", "the tied unit", "the block"])
def test_what_is_computed_again_has_the_same_gradients_even_of_a_unit_with_two_segments(recomputed):
    model, weights = model_of(tied_embeddings=True)
    tied, block = model.units
    assert len(tied.segments) == 2
    again = {"none": [], "all": [tied, block], "the tied unit": [tied], "the block": [block]}[recomputed]
    plain = backpropagated(Tape(), model, weights, batches())
    assert backpropagated(Tape(recomputed=again), model, weights, batches()) == plain
    assert set(plain[1]) == {unit.name for unit in model.units}


def test_the_padding_of_a_gradient_is_zero_whatever_was_in_its_memory():
    (unit,) = mlp(2, [], 1, "relu", "mean_squared_error").units                # 3 numbers
    tape, weights = Tape(lambda shape, dtype, **_: np.full(shape, 7, dtype)), np.ones(5)
    outputs = tape.forward(unit, weights, [np.ones((1, 2))])
    _, upstreams = tape.loss("mean_squared_error", outputs, [np.zeros((1, 1))], 1)
    _, gradient = tape.backward(unit, weights, upstreams)
    assert gradient.tolist() == [6, 6, 6, 0, 0]
    with pytest.raises(CollectiveError, match=r"backward of layers.0: forward has not run for it"):
        tape.backward(unit, weights, upstreams)


def test_each_micro_batch_draws_its_own_numbers():
    model, weights = model_of(dropout=0.5)
    drawn = []
    tape = Tape(draw=lambda array, micro_batch, layer, operation: (drawn.append(micro_batch), array.fill(1.0)))
    tape.first_micro_batch = 5
    backpropagated(tape, model, weights, batches())
    assert set(drawn) == {5, 6}
    assert drawn.count(5) == drawn.count(6)


def test_a_gradient_is_scaled_before_it_is_rounded_to_16_bits():
    """2⁻²⁹ is nothing in float16; 2¹⁶ times as much is 2⁻¹³."""
    tape = Tape()
    tape.loss_scale = 2.0**16
    loss, (upstream,) = tape.loss(
        "mean_squared_error", [np.full((1, 1), 2.0, np.float16)], [np.ones((1, 1), np.float32)], 2**30)
    assert (upstream.dtype, upstream.item()) == (np.float16, 2.0**-13)
    assert (loss.dtype, loss.item()) == (np.float32, 2.0**-30)


def test_what_is_computed_again_counts_as_such():
    model = mlp(3, [4], 2, "relu", "cross_entropy")                              # 12 and 8 products for each sample
    weights = {unit: unit.initial(0) for unit in model.units}
    tape = Tape(recomputed=model.units[1:])
    backpropagated(tape, model, weights, [(np.ones((5, 3), np.float32), np.zeros(5, np.int64))])
    assert tape.operations == {"forward": 2 * 5 * 20, "recomputation": 2 * 5 * 8, "backward": 2 * 5 * (12 + 2 * 8)}


def test_with_prefetch_only_the_first_unit_of_a_step_is_waited_for_from_its_beginning(monkeypatch):
    late, honest = [], Prefetched.gather

    def gather(self, replica, unit):
        waits, full = unit not in self._pending, honest(self, replica, unit)
        if waits and replica.comm.rank == 0 and isinstance(full, np.ndarray):       # in the run, not on shapes
            late.append((replica.state.step, unit.name))
        return full

    monkeypatch.setattr(Prefetched, "gather", gather)
    rows = (Variant(stage="zero3", prefetch=True),)
    outcome = run(base=replace(scenario(steps=2), variant=rows))
    assert outcome.failures == []
    assert late == [(1, "layers.0"), (2, "layers.0")]


def test_what_was_on_its_way_is_held_by_nobody_but_who_has_taken_it():
    pending = Beside(None).begin(lambda comm: np.ones(3))
    found = pending.take()
    there = weakref.ref(found)
    del found
    assert there() is None


def test_what_goes_on_beside_the_step_has_the_channel_to_itself():
    assert [Beside("own", channel).begin(lambda comm: comm).take() for channel in (None, "second")] == ["own", "second"]


@pytest.mark.parametrize("stage", ["ddp", "zero1", "zero2", "zero3"])
@pytest.mark.parametrize("step", [1, 3])
def test_what_a_step_sends_does_not_depend_on_where_a_run_goes_on(stage, step):
    begins = config(stage, {"steps": 4, "clip_norm": 0.5})
    goes_on = replace(begins, resumed=Resumed("", step, ()))
    assert (most_messages(goes_on), volume(goes_on)) == (most_messages(begins), volume(begins))
    assert volume(begins) > 0
