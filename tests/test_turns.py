"""Turns that are played again are as a player plays them: the same arrays are taken and given back in that order."""

from dataclasses import replace
from itertools import product

import pytest

from tests.test_rehearsal import CLUSTER, config, difference
from zerosim.autograd.player import Player
from zerosim.instruments.observed import ObservedAllocator
from zerosim.models.units import Task
from zerosim.plan import activations, rehearsal, turns
from zerosim.plan.activations import extent, run_passes
from zerosim.plan.rehearsal import rehearsed_at_once
from zerosim.plan.turns import Give, Turns
from zerosim.scenario.schema import Check, Model, Parallel, Scenario, Train, World
from zerosim.training.config import configured

LLAMA = Model(kind="transformer", architecture="llama", layers=4, width=8, heads=4, key_value_heads=2, vocabulary=11,
              sequence=5)
GPT2 = Model(kind="transformer", layers=4, width=8, heads=2, vocabulary=11, sequence=5, tied_embeddings=True)
TOKENS, NUMBERS = Task(5, 11, "cross_entropy", tokens=True), Task(7, 3, "mean_squared_error")


class Diary:
    """All that an allocator tells, in order."""

    def __init__(self):
        self.lines = []

    def taken(self, *said):
        self.lines.append(("taken", *said))

    def given_back(self, *said):
        self.lines.append(("given back", *said))


class Players:
    """In place of turns that are remembered."""

    player = Player


def row(model, task, precision="fp32", **parallel):
    scenario = Scenario(
        world=World(2), model=model, check=Check(reference=False),
        train=Train(micro_batch=2, micro_batches=6, precision=precision),
        parallel=Parallel(stages=("ddp",), **parallel),
    )
    (found,) = scenario.rows
    return configured(found, task)


def diary_of(found, count=2):
    diary = Diary()
    tape = run_passes(found, ObservedAllocator(extent, diary), count)
    operations = dict(tape.operations)
    del tape
    return diary.lines, operations


ROWS = [
    *(row(model, TOKENS, precision, recompute=recompute)
      for model, precision, recompute in product((GPT2, LLAMA), ("fp32", "bf16"), (False, True, (2,)))),
    row(GPT2, TOKENS, "bf16", units=((0, 5), (1, 2), (3, 4)), recompute=(1, 2), offload_activations=True),
    *(row(Model(hidden=(5, 5, 5, 4), activation=activation), NUMBERS, precision)
      for activation, precision in product(("relu", "tanh", "gelu"), ("fp32", "fp16"))),
    row(Model(hidden=(5, 5, 5), frozen=(0, 1)), NUMBERS, "fp16"),
    row(replace(GPT2, dropout=0.5, frozen=(1, 2)), TOKENS, "bf16"),
]


@pytest.mark.parametrize("found", ROWS, ids=lambda found: f"{found.model.words}, {found.row.train.precision}")
def test_memory_is_taken_and_given_back_as_by_players(found, monkeypatch):
    remembered = diary_of(found)
    monkeypatch.setattr(activations, "Turns", Players)
    assert diary_of(found) == remembered


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("stage", "keys"), [
    ("ddp", {"overlap": True}), ("zero3", {"prefetch": True, "recompute": True}),
    ("zero2", {"accumulation": "micro_batch", "accumulate_dtype": "fp32"}),
])
def test_a_step_takes_as_long_as_one_by_players(stage, keys, fused, monkeypatch):
    cluster = replace(CLUSTER, fused=fused)
    rows = [config(stage, keys, number=number) for number in range(4)]
    remembered = [rehearsed_at_once(each, cluster) for each in rows]
    monkeypatch.setattr(rehearsal, "Turns", lambda *_: Players)
    for each, found in zip(rows, remembered, strict=True):
        assert difference(found, rehearsed_at_once(each, cluster), 0) == []


def test_a_block_that_is_seen_once_is_played_as_often_as_there_are():
    def seen(layers):
        watched = Turns()
        model = replace(GPT2, layers=layers)
        tape = activations.Tape(
            extent, activations.not_added, 0, activations.nothing_drawn, players=watched.player)
        found = row(model, TOKENS)
        x = activations.Extent((2, 5, 8), "f4")
        for unit in found.model.units[1:]:
            tape.forward(unit, activations.Extent(unit.count, "f4"), [x])
        return len(watched._seen)

    assert seen(2) == seen(50) == 1


@pytest.mark.parametrize("forgotten", ["give", "take"])
def test_what_is_forgotten_is_seen(forgotten, monkeypatch):
    """The comparison above can fail: without the first array that a turn gives back, or with one of another size."""
    play = turns.Turn.play

    def forgetful(self, *args):
        events = list(self.events)
        if forgotten == "give":
            first = next((number for number, event in enumerate(events) if isinstance(event, Give)), None)
            events = events[:first] + events[first + 1:] if first is not None else events
        else:
            events = [event._replace(shape=(1,)) if hasattr(event, "shape") else event for event in events]
        object.__setattr__(self, "events", tuple(events))
        play(self, *args)

    found = row(GPT2, TOKENS)
    monkeypatch.setattr(activations, "Turns", Players)
    due = diary_of(found)
    monkeypatch.undo()
    monkeypatch.setattr(turns.Turn, "play", forgetful)
    assert diary_of(found) != due
