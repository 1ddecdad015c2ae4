"""Sequences with different numbers of counted targets, cut in several ways: PyTorch in float64 agrees."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.oracles import uneven
from tests.oracles.our_functions import model_of
from tests.sampling import one_in
from zerosim.autograd.operations.losses import LOSSES, counted, cross_entropy
from zerosim.scenario import load
from zerosim.scenario.data.dataset import Dataset
from zerosim.training.experiment import prepare
from zerosim.verdict.judged_run import run_locally

PYTORCH = json.loads(uneven.FILE.read_text())
CUTS = [{"world.ranks": 1, "train.micro_batch": 12, "train.micro_batches": 1, "parallel.stages": ["ddp"]},
        {"world.ranks": 2, "train.micro_batch": 1, "train.micro_batches": 12, "parallel.stages": ["zero3"],
         "parallel.accumulation": "layered"},
        {"world.ranks": 3, "train.micro_batch": 2, "train.micro_batches": 6, "parallel.stages": ["zero2"],
         "parallel.accumulation": "micro_batch"}]


def ours(case, cut, folder):
    """What a run of zerosim comes to, from the case's own initial weights."""
    model = {name: getattr(case, name) for name in (
        "layers", "width", "heads", "key_value_heads", "inner", "vocabulary", "sequence", "tied_embeddings",
        "norm_epsilon", "gelu")}
    places = [place for unit in model_of(case).units for place in unit.places]
    first = folder / "first.safetensors"
    save_file({place.name: case.parameter(place.name, place.shape) for place in places}, first)
    document = {
        "model": model | {"kind": "transformer", "architecture": case.family, "weights": str(first)},
        "train": {"steps": uneven.STEPS, "learning_rate": uneven.LEARNING_RATE, "optimizer": "sgd",
                  "precision": "fp64"}}
    for key, value in cut.items():
        section, name = key.split(".")
        document.setdefault(section, {})[name] = value
    x, y = case.batch()
    experiment = prepare(load(document), Dataset(x, y, None, None, case.vocabulary), keep_weights=True)
    (row,) = run_locally(experiment).trained
    assert row.failures == []
    weights = {name: view for unit, flat in row.measured.weights.items() for name, view in unit.views(flat).items()}
    return uneven.told(case, [loss[0] for loss in row.measured.losses], weights)


@pytest.mark.parametrize("cut", CUTS, ids=["whole", "layered", "by micro-batch"])
@pytest.mark.parametrize("case", one_in(2, uneven.CASES), ids=lambda case: case.name)
def test_pytorch_in_float64_agrees_however_a_step_is_cut(case, cut, tmp_path):
    assert uneven.furthest(ours(case, cut, tmp_path), PYTORCH[case.name]) < 1e-12


def test_a_loss_that_is_normalised_for_each_micro_batch_disagrees(monkeypatch, tmp_path):
    monkeypatch.setitem(LOSSES, "cross_entropy", lambda outputs, classes, _, **named: cross_entropy(
        outputs, classes, 6 * max(counted(np.asarray(classes)), 1), **named))
    assert uneven.furthest(ours(uneven.CASES[0], CUTS[2], tmp_path), PYTORCH[uneven.CASES[0].name]) > 1e-3
