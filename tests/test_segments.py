"""Segments that are played again are as a player plays them: the same arrays are taken and given back in that order."""

from dataclasses import replace
from itertools import product

import pytest

from tests.test_rehearsal import CLUSTER, config, difference
from zerosim.autograd.player import Player
from zerosim.autograd.selection import SELECTIONS
from zerosim.autograd.tape import Tape
from zerosim.core.extents import Extent
from zerosim.models.units import Task
from zerosim.observe.memory import Ledger
from zerosim.plan.rehearsal import rehearsed_at_once
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import Check, ModelKeys, Parallel, Train, WorldKeys
from zerosim.training.config import configured
from zerosim.verdict import segments, shapes
from zerosim.verdict.segments import SeenSegments
from zerosim.verdict.shapes import StepsOnShapes, extent

LLAMA = ModelKeys(kind="transformer", architecture="llama", layers=4, width=8, heads=4, key_value_heads=2,
                  vocabulary=11, sequence=5)
GPT2 = ModelKeys(kind="transformer", layers=4, width=8, heads=2, vocabulary=11, sequence=5, tied_embeddings=True)
TOKENS, NUMBERS = Task(5, 11, "cross_entropy", tokens=True), Task(7, 3, "mean_squared_error")


class Diary(Ledger):
    """A ledger that notes what there is, and has been at most, each time that what stays changes."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def begin(self):
        self.lines.append((+self.now, +self.peak, self.peak_total))
        self.begin_peak()


def row(model, task, precision="fp32", **parallel):
    scenario = Scenario(
        world=WorldKeys(2), model=model, check=Check(reference=False),
        train=Train(micro_batch=2, micro_batches=6, precision=precision),
        parallel=Parallel(stages=("ddp",), **parallel),
    )
    (found,) = scenario.rows
    return configured(found, task)


def diary_of(found):
    """Of every segment what is alive before it, and the most there has been since the one before."""
    diary = Diary()
    with pytest.MonkeyPatch.context() as patched:
        for each in ("forward", "backward", "recompute"):
            honest = getattr(Tape, each)
            patched.setattr(Tape, each, lambda *args, honest=honest: (diary.begin(), honest(*args))[1])
        ledgers = [diary]
        patched.setattr(shapes, "Ledger", lambda: ledgers.pop() if ledgers else Ledger())
        run = StepsOnShapes(found, 1, skipped=False)
    diary.begin()
    return diary.lines, dict(run.replica.tape.operations)


ROWS = [
    *(row(model, TOKENS, precision, recompute=recompute)
      for model, precision, recompute in product((GPT2, LLAMA), ("fp32", "bf16"), (False, True, (2,)))),
    *(row(model, TOKENS, precision, recompute=(1, 2, 4), recompute_keeps=keeps)
      for model, precision, keeps in product((GPT2, LLAMA), ("fp32", "bf16"), SELECTIONS)),
    row(GPT2, TOKENS, "bf16", units=((0, 5), (1, 2), (3, 4)), recompute=True, recompute_keeps="products"),
    row(GPT2, TOKENS, "bf16", units=((0, 5), (1, 2), (3, 4)), recompute=(1, 2), offload_activations=True),
    *(row(ModelKeys(hidden=(5, 5, 5, 4), activation=activation), NUMBERS, precision)
      for activation, precision in product(("relu", "tanh", "gelu"), ("fp32", "fp16"))),
    row(ModelKeys(hidden=(5, 5, 5), frozen=(0, 1)), NUMBERS, "fp16"),
    row(replace(GPT2, dropout=0.5, frozen=(1, 2)), TOKENS, "bf16"),
]


@pytest.mark.parametrize("found", ROWS, ids=lambda found: f"{found.model.words}, {found.train.precision}")
def test_memory_is_taken_and_given_back_as_by_players(found, monkeypatch):
    remembered = diary_of(found)
    monkeypatch.setattr(SeenSegments, "player", staticmethod(Player))
    assert diary_of(found) == remembered


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("stage", "keys"), [
    ("ddp", {"overlap": True}), ("zero3", {"prefetch": True, "recompute": True}),
    ("zero3", {"recompute": True, "recompute_keeps": "half_products"}),
    ("zero2", {"accumulation": "micro_batch", "accumulate_dtype": "fp32"}),
])
def test_a_step_takes_as_long_as_one_by_players(stage, keys, fused, monkeypatch):
    cluster = replace(CLUSTER, fused=fused)
    rows = [config(stage, keys, number=number) for number in range(4)]
    remembered = [rehearsed_at_once(each, cluster) for each in rows]
    monkeypatch.setattr(SeenSegments, "player", staticmethod(Player))
    for each, found in zip(rows, remembered, strict=True):
        assert difference(found, rehearsed_at_once(each, cluster), 0) == []


def test_a_block_that_is_seen_once_is_played_as_often_as_there_are():
    def seen(layers):
        watched = SeenSegments(Ledger().pass_by)
        model = replace(GPT2, layers=layers)
        tape = Tape(extent, players=watched.player)
        found = row(model, TOKENS)
        x = Extent((2, 5, 8), "f4")
        for unit in found.model.units[1:]:
            tape.forward(unit, Extent(unit.count, "f4"), [x])
        return len(watched._seen)

    assert seen(2) == seen(50) == 1


@pytest.mark.parametrize("forgotten", [segments.Give, segments.Take, segments.Above])
def test_what_is_forgotten_is_seen(forgotten, monkeypatch):
    """The comparison above can fail: if nothing is given back, what is taken is small, or nothing passes by."""
    play = segments.SeenSegment.play

    def forgetful(self, *args):
        kept = [event for event in self.events if not isinstance(event, forgotten) or forgotten is segments.Take]
        small = [event._replace(shape=(1,)) if isinstance(event, forgotten) else event for event in kept]
        play(replace(self, events=tuple(small)), *args)

    found = row(GPT2, TOKENS)
    with monkeypatch.context() as patched:
        patched.setattr(SeenSegments, "player", staticmethod(Player))
        due = diary_of(found)
    monkeypatch.setattr(segments.SeenSegment, "play", forgetful)
    assert diary_of(found) != due
