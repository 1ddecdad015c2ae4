"""One law for every way to cut a step: micro-batches, ranks and pieces of a model change no loss and no weight beyond
rounding.

Bits cannot show it, because the reference is cut as the ranks are: a loss that is normalised for each micro-batch has
the bits of one process and is wrong wherever micro-batches have different numbers of targets that count.
"""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from tests.laws.runs import Refused, prepared
from tests.laws.scenarios import GPT, in_sections
from zerosim.autograd.operations.losses import LOSSES, UNCOUNTED, cross_entropy
from zerosim.training.keeping import with_checkpoints
from zerosim.verdict.judged_run import run_locally

STEP = 12
"""The samples of a step."""
ROUNDING = 1e-12
MODELS = (
    {}, {"architecture": "llama", "width": 8, "heads": 2}, {"tied_embeddings": True, "layers": 2},
    {"kind": "mixture", "experts": 4, "width": 8, "heads": 2}, {"architecture": "llama", "width": 8, "heads": 2,
                                                              "latent": 4, "rotary_size": 2, "head_size": 4})
PIECES = ({}, {}, {"context_ranks": 2}, {"context_ranks": 2, "context_by": "all_to_all"}, {"tensor_ranks": 2},
          {"tensor_ranks": 2, "vocabulary_parallel": True}, {"pipeline_ranks": 2}, {"expert_ranks": 2},
          {"pipeline_ranks": 2, "schedule": "zb_h1"})
WAYS = ({"stages": ["ddp"]}, {"stages": ["zero2"], "accumulation": "micro_batch"}, {"stages": ["zero3"]},
        {"stages": ["zero3"], "accumulation": "layered"}, {"stages": ["zero1"], "order": "rank"})


def trained(*settings, resume=None):
    """The losses and the last weights of a run, every check of which holds, in one vector; from a checkpoint, if there
    is one."""
    whole = GPT | {"precision": "fp64", "data.uncounted": 0.6, "steps": 3, "optimizer": "sgd"}
    for keys in settings:
        whole |= keys
    outcome = run_locally(with_checkpoints(replace(prepared(in_sections(whole)), keep_weights=True), resume))
    assert outcome.failures == [], whole
    (row,) = outcome.trained
    views = {name: view for unit, flat in row.measured.weights.items() for name, view in unit.views(flat).items()}
    return np.concatenate([*row.measured.losses, *(views[name].ravel() for name in sorted(views))])


def in_one_piece(model):
    return trained(model, {"ranks": 1, "micro_batch": STEP, "micro_batches": 1, "stages": ["ddp"]})


def cuts(model, number, count):
    """What `count` drawn cuts come to; what is refused is drawn again."""
    chance = Random(number)
    while count:
        micro_batch, pieces = chance.choice((1, 2, 3, 4, 6)), chance.choice(PIECES)
        micro_batches, places = STEP // micro_batch, int(np.prod([2 for key in pieces if key.endswith("_ranks")]))
        ranks = chance.choice([ranks for ranks in (1, 2, 3) if micro_batches % ranks == 0])
        cut = {"micro_batch": micro_batch, "micro_batches": micro_batches, "ranks": ranks * places}
        cut |= pieces | chance.choice(WAYS)
        try:
            yield cut, trained(model, cut)
        except Refused:
            continue
        count -= 1


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_how_a_step_is_cut_changes_no_loss_and_no_weight(model):
    whole = in_one_piece(model)
    for cut, of_cut in cuts(model, len(str(model)), 3):
        assert np.abs(of_cut - whole).max() < ROUNDING, cut


def test_a_step_over_two_hops_or_resumed_is_cut_as_another(tmp_path):
    model, whole = MODELS[1], in_one_piece(MODELS[1])
    hops = {"micro_batch": 1, "micro_batches": STEP, "ranks": 4, "ranks_per_host": 2, "order": "two_hop"}
    trained(model, hops, {"stages": ["zero2"], "steps": 2, "checkpoint.folder": str(tmp_path)})
    for cut in ({"stages": ["zero3"]}, {"ranks": 2, "ranks_per_host": 0, "order": "ring", "stages": ["ddp"]}):
        for resume in (None, str(tmp_path)):
            assert np.abs(trained(model, hops, cut, resume=resume) - whole).max() < ROUNDING, cut


def test_a_loss_that_is_normalised_for_each_micro_batch_passes_every_check_but_this_law(monkeypatch):
    def of_micro_batch(outputs, classes, count, **named):
        return cross_entropy(outputs, classes, STEP * (int((classes != UNCOUNTED).sum()) // len(classes) or 1), **named)

    monkeypatch.setitem(LOSSES, "cross_entropy", of_micro_batch)
    cut = {"ranks": 2, "micro_batch": 3, "micro_batches": 4, "stages": ["zero3"]}
    assert np.abs(trained(cut) - in_one_piece({})).max() > 0.1


def test_a_step_without_a_target_that_counts_is_refused():
    message = r"data.source .*: none of the 1 samples of step \d has a target that counts, since all are -1"
    with pytest.raises(Refused, match=message):
        trained({"ranks": 1, "micro_batch": 1, "micro_batches": 1, "data.uncounted": 0.9, "steps": 9})
