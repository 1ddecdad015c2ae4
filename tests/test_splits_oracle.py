"""Models that two ranks split against what PyTorch's DTensor and Megatron-Core answered, in float64."""

from dataclasses import replace

import numpy as np
import pytest

from tests.oracles import splits
from tests.oracles.our_functions import model_of
from zerosim.autograd.tape_collectives import Direction, join_from
from zerosim.models import tensor_parallel
from zerosim.models.units import ModelParallel
from zerosim.places import side_by_side
from zerosim.sharding import Directions
from zerosim.training.one_function import computed

DIRECTIONS = Directions(tensor=splits.RANKS)


def ours(split):
    """The loss and the joined gradients of zerosim's model, in numbers."""
    case, whole = split.model, model_of(split.model)
    model = model_of(case, ModelParallel(tensor=Direction("tensor", splits.RANKS), sequence=split.sequence))
    full = {place.name: case.parameter(place.name, place.shape).astype(np.float64) for place in whole.places}

    def of_place(place, groups):
        at = DIRECTIONS.coordinates(place)
        pieces = {unit: np.concatenate([each.parameter.piece(full[each.name], at).ravel() for each in unit.places])
                  for unit in model.units}
        x, targets = case.batch()
        return computed(model, pieces, groups, (x.astype(np.float64) if x.dtype.kind == "f" else x, targets))

    (found,) = side_by_side(DIRECTIONS, of_place)
    answers = {"loss": found[0].loss} | {name: np.empty(array.shape) for name, array in full.items()}
    for place, computed_there in enumerate(found):
        for each in model.places:
            each.parameter.join(answers[each.name], computed_there.gradients[each.name], DIRECTIONS.coordinates(place))
    return splits.in_numbers(split, answers)


@pytest.mark.parametrize("split", splits.SPLITS, ids=lambda split: split.name)
def test_zerosim_has_the_loss_and_the_gradients_of_others(split):
    found, due = ours(split), splits.read()
    assert found.keys() == {name for name in due if name.startswith(f"{split.name}|")}
    assert splits.disagreements(found, due) == []


def copied(upstream, into, *, empty, group):
    into["x"][...] = upstream


@pytest.mark.parametrize(("name", "sequence", "forgetting"), [
    ("copy_to", False, copied), ("copy_to", True, copied), ("gather_from", True, join_from.backward)])
def test_a_forgotten_sum_disagrees(name, sequence, forgetting, monkeypatch):
    monkeypatch.setattr(tensor_parallel, name, replace(getattr(tensor_parallel, name), backward=forgetting))
    assert splits.disagreements(ours(splits.Split("DTensor", splits.LLAMA, sequence)), splits.read()) != []
