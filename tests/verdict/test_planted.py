"""Faults planted in what a rank holds, sends and takes: each must fail the run, and only the row that has it."""

from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest

from tests.training import sabotaged
from tests.verdict.outcomes import fails, outcome_of, plant
from zerosim.autograd.player import Player
from zerosim.autograd.tape import Tape
from zerosim.observe.ledger import MEMORY_KINDS, Ledger
from zerosim.scenario import Check
from zerosim.scenario.sections import Variant
from zerosim.stages import STAGES
from zerosim.stages.replica import Replica
from zerosim.training import collect
from zerosim.training.measurement import Figures
from zerosim.training.program import Run

ALL = ("ddp", "zero1", "zero2", "zero3")
NARROW = {"precision": "fp16", "publish": "updates"}


def after(change, *, rank=None, step=2):
    """A fault after one step, on one rank or all."""
    def fault(replica, batch):
        yield
        if batch.step == step and rank in (None, replica.comm.rank):
            change(replica)
    return fault


def set_weights(value, unit=0, index=0):
    def change(replica):
        replica.state.weights[replica.units[unit]][index] = value
    return change


def set_slot(name, value=np.nan):
    def change(replica):
        replica.state.optimizer[replica.units[1]][name][0] = value
    return change


def set_gradient(where, value=np.nan):
    def change(replica):
        held = getattr(replica.state, where)[replica.units[1]]
        mine = held if len(held) < replica.units[1].count else replica.own(held)
        mine[0] = value
    return change


# What a rank holds.


EVERYTHING = [("zero1", set_weights(7, index=slice(None)), None, NARROW, None),
              ("zero2", set_weights(7, index=slice(None)), 2, NARROW, None)]
EVERYTHING += [(name, set_weights(7), 1, {"frozen": (0,)}, None) for name in ("ddp", "zero3")]
EVERYTHING += [(name, set_slot(slot), rank, {"optimizer": optimizer, "precision": precision}, slot)
               for name, optimizer, precision, slot, rank in (
                   ("ddp", "adam", "fp32", "variance", 2), ("zero1", "momentum", "fp32", "momentum", None),
                   ("zero2", "adam", "bf16", "master", 0), ("zero3", "adamw", "bf16", "momentum", 2))]
EVERYTHING += [("ddp", set_gradient("gradients"), 2, {}, "gradient"),
               ("zero3", set_gradient("gradients"), 2, {}, "gradient"),
               ("zero1", set_gradient("accumulated"), 2, {"accumulate_dtype": "fp32"}, "accumulated gradient")]


@pytest.mark.parametrize(("name", "change", "rank", "keys", "state"), EVERYTHING)
def test_all_that_a_rank_holds_is_compared_after_every_step(monkeypatch, name, change, rank, keys, state):
    """Weights, those of 16 bits and frozen ones too, every slot, gradients and their sums."""
    plant(monkeypatch, name, after(change, rank=rank, step=1 if name == "ddp" else 2))
    outcome = outcome_of(stages=(name,), **keys)
    fails(outcome, "bits differ")
    assert outcome.trained[0].first_divergence.state == state


@pytest.mark.parametrize(("name", "rank", "value"), [("ddp", 2, np.nan), ("zero3", 4, -0.0)])
def test_padding_is_compared(monkeypatch, name, rank, value):
    plant(monkeypatch, name, after(set_weights(value, unit=1, index=-1), rank=rank))
    outcome = outcome_of(stages=(name,), ranks=5, micro_batches=5)
    found = outcome.trained[0].first_divergence
    fails(outcome, "bits differ")
    assert (found.parameter, found.index, found.layer) == ("padding", (0,), 1)


def test_without_a_reference_rows_are_compared_in_their_losses_and_their_optimizer_state(monkeypatch):
    plant(monkeypatch, "zero2", after(set_slot("momentum", 7.0)))
    outcome = outcome_of(stages=("zero1", "zero2"), reference=False)
    assert outcome.failures == [("Stage II", "bits differ from Stage I")]
    monkeypatch.undo()

    honest = STAGES["zero3"]
    monkeypatch.setitem(STAGES, "zero3", sabotaged(
        STAGES, "zero3", step=lambda replica, batch: honest.step(replica, batch) + np.float32(1)))
    outcome = outcome_of(stages=("zero1", "zero3"), reference=False)
    assert outcome.failures == [("Stage III", "bits differ from Stage I")]


def test_without_a_reference_rows_that_add_in_another_order_are_not_compared():
    rows = (Variant(stage="zero2", name="a"), Variant(stage="zero2", name="b", accumulation="micro_batch"),
            Variant(stage="zero3", name="c", accumulation="micro_batch"), Variant(stage="ddp", name="d"))
    outcome = outcome_of(variant=rows, check=Check(reference=False), learning_rate=0.3)
    assert outcome.passed
    assert [stage.compared_with for stage in outcome.trained] == [None, None, "b", "a"]
    assert len({stage.measured.weights_sha256 for stage in outcome.trained}) == 2


@pytest.mark.parametrize(("order", "steps"), [("exact", 0), ("tree", 2)])
def test_the_digest_of_the_optimizer_does_not_depend_on_how_layers_are_grouped(order, steps):
    rows = tuple(Variant(stage="zero3", units=units) for units in ("layer", "model", ((0, 1), (2,))))
    outcome = outcome_of(variant=rows, ranks=2, micro_batches=4, order=order, steps=steps)
    assert outcome.passed
    assert len({stage.measured.optimizer_sha256 for stage in outcome.trained}) == 1


def hides_a_gradient(replica):
    """Its memory is still there."""
    unit = replica.units[1]
    replica.state.hidden = replica.state.gradients.pop(unit)


def says_it_has_no_chunk(replica):
    layouts, unit = replica.state.gradient_layouts, replica.units[1]
    layouts[unit] = replace(layouts[unit], last=layouts[unit].first)


def optimizes_what_is_frozen(replica):
    unit = replica.units[0]
    replica.state.optimizer[unit] = {"momentum": replica.allocate(
        replica.state.placement.shard(unit).length, np.float32, kind="optimizer", owner=unit.name)}


FP16 = {"precision": "fp16", "optimizer": "sgd"}


@pytest.mark.parametrize(("name", "rank", "change", "keys", "words"), [
    ("zero2", 1, hides_a_gradient, {}, "after step 2 rank 1 keeps no gradient of layers.1"),
    ("zero2", 1, says_it_has_no_chunk, {}, "after step 2 rank 1 keeps no gradient of layers.1"),
    ("zero1", None, optimizes_what_is_frozen, {"frozen": (0,)}, "after step 2 rank 0 keeps a momentum of layers.0"),
    ("ddp", 1, lambda replica: setattr(replica.state, "updates", 3), FP16, "has updates 3, one process has 2"),
    ("zero3", None, lambda replica: setattr(replica.state.scaling, "loss_scale", 1.0), FP16,
     "has loss scale 1, one process has 65536"),
    ("zero1", 1, lambda replica: setattr(replica.state.scaling, "good_steps", 7), FP16,
     "has steps since it changed 7, one process"),
])
def test_state_that_is_missing_or_added_and_what_is_counted_are_noticed(monkeypatch, name, rank, change, keys, words):
    plant(monkeypatch, name, after(change, rank=rank))
    fails(outcome_of(stages=(name,), **keys), words)


@pytest.mark.parametrize("name", ["zero1"])
def test_a_row_that_never_updates_fails_without_a_reference_too(monkeypatch, name):
    honest = Replica.unscale_and_clip

    def skips(replica):
        honest(replica)
        replica.factor = None
        replica.state.updates -= 1

    monkeypatch.setattr(Replica, "unscale_and_clip", skips)
    fails(outcome_of(stages=(name,), reference=False), "counts 0 updates in 2 steps, but no update may be skipped")


# What comes home.


@pytest.mark.parametrize(("name", "words"), [
    ("zero1", "optimizer state gathered on rank 0"), ("zero3", "weights gathered on rank 0")])
def test_what_is_brought_to_rank_0_is_held_to_the_reference(monkeypatch, name, words):
    honest = collect.whole

    def reversed_shards(comm, unit, buffer, layout):
        whole = honest(comm, unit, buffer, layout)
        return whole if layout.last - layout.first == comm.size else whole[::-1]

    monkeypatch.setattr(collect, "whole", reversed_shards)
    fails(outcome_of(stages=(name, "ddp")), words)


def test_a_row_that_does_not_fit_on_other_ranks_fails(monkeypatch):
    honest = Replica.begin

    def begin(replica, initial):
        if replica.comm.size == 1:
            raise MemoryError
        honest(replica, initial)

    monkeypatch.setattr(Replica, "begin", begin)
    fails(outcome_of(stages=("zero1",), order="exact", same_bits_on=(1,)), "does not fit on 1 rank")


# What it takes.


def extra(kind, size, owner="planted"):
    """Memory that is taken during a step and given back after it."""
    def fault(replica, batch):
        held = [replica.allocate(size, np.uint8, kind=kind, owner=owner)]
        yield
        held.clear()
    return fault


@pytest.mark.parametrize(("name", "kind", "keys"), [
    ("ddp", "activations", {"precision": "fp16"}), ("zero1", "buffers", {"precision": "fp16"}),
    ("zero2", "optimizer", {}), ("zero3", "parameters", {}), ("zero3", "gradients", {"order": "exact"})])
def test_a_byte_more_of_any_kind_at_the_peak_fails(monkeypatch, name, kind, keys):
    plant(monkeypatch, name, extra(kind, 1))
    fails(outcome_of(stages=(name,), **keys), "more memory than allowed is in use at the peak: rank 0 holds")


def test_what_is_held_before_the_first_step_is_no_part_of_a_peak(monkeypatch):
    honest = Replica.begin

    def begin(replica, initial):
        for kind in MEMORY_KINDS:
            replica.allocate(10**6, np.uint8, kind=kind, owner="gone at once")
        honest(replica, initial)

    monkeypatch.setattr(Replica, "begin", begin)
    assert outcome_of(stages=("zero3",)).failures == []


@pytest.mark.parametrize("keys", [
    {"frozen": (1,), "prefetch": True}, {"units": ((0, 1), (2,)), "reshard_after_forward": False},
    {"overlap": True, "precision": "fp16", "gradients": "all_reduce"},
], ids=str)
def test_every_kind_reaches_its_bound_at_the_peak(keys):
    for stage in outcome_of(**keys).trained:
        for measured, due in stage.memory:
            assert {kind: measured.peak_bytes[kind] for kind in due.least_bytes} == due.least_bytes
            assert {**due.peak_bytes, **due.least_bytes} == due.peak_bytes
            assert {*MEMORY_KINDS} <= {*due.least_bytes}


@pytest.mark.parametrize(("kind", "rank"), [("buffers", 0), ("activations", 2)])
def test_what_outlives_a_step_fails(monkeypatch, kind, rank):
    hoard = []

    def leaks(replica, batch):
        if replica.comm.rank == rank:
            hoard.append(replica.allocate(4, np.uint8, kind=kind, owner="hoard"))

    plant(monkeypatch, "zero2", leaks)
    fails(outcome_of(stages=("zero2",)), f"rank {rank} keeps 8 B of {kind} for hoard after the step")


@pytest.mark.parametrize("kind", ["activations", "gradients"])
def test_what_outlives_one_step_and_not_the_last_fails(monkeypatch, kind):
    hoard = []

    def leaks(replica, batch):
        hoard.clear()
        yield
        if batch.step == 1:
            hoard.append(replica.allocate(4, np.uint8, kind=kind, owner="hoard"))

    plant(monkeypatch, "zero2", leaks)
    fails(outcome_of(stages=("zero2",)), f"B of {kind} between steps")


def test_weights_that_are_gathered_past_the_ledger_fail(monkeypatch):
    def past(replica, batch):
        def full(unit, kind, dtype=None):
            length = replica.state.placement.full(unit).length
            return np.empty(length, dtype or replica.rule.precision.weights)
        replica.full = full

    plant(monkeypatch, "zero3", past)
    fails(outcome_of(stages=("zero3",)), "less memory than required is in use at the peak: rank 0 holds")


def test_weights_that_are_full_while_gradients_are_reduced_fail(monkeypatch):
    """No kind's peak is higher for it: what all kinds have together is."""
    honest, held = {verb: getattr(Replica, verb) for verb in ("gather", "keep_shard")}, {}

    def gather(replica, unit):
        held.pop(replica.comm.rank, None)
        held[replica.comm.rank] = honest["gather"](replica, unit)
        return held[replica.comm.rank]

    def keep_shard(replica, unit, full):
        held.pop(replica.comm.rank)
        honest["keep_shard"](replica, unit, full)

    monkeypatch.setattr(Replica, "gather", gather)
    monkeypatch.setattr(Replica, "keep_shard", keep_shard)
    outcome = outcome_of(stages=("zero3",), units="model")
    assert [what for _, what in outcome.failures] == [
        "memory is held too long: rank 0 holds 400 B of parameters as a reduce-scatter begins; expected 100"]


@pytest.mark.parametrize(("kind", "due"), [("activations", 24), ("parameters", 100), ("gradients", 100)])
def test_what_is_held_as_weights_are_updated_fails(monkeypatch, kind, due):
    def held_then(replica, batch):
        honest = replica.unscale_and_clip

        def unscale_and_clip():
            held.append(replica.allocate(1, np.uint8, kind=kind, owner="planted"))
            honest()

        held = []
        replica.unscale_and_clip = unscale_and_clip
        yield
        replica.unscale_and_clip = honest

    plant(monkeypatch, "zero3", held_then)
    fails(outcome_of(stages=("zero3",)), f"{due + 1} B of {kind} as an update begins; expected {due}")


@pytest.mark.parametrize(("kind", "rank"), [("parameters", 0), ("gradients", 2), ("optimizer", 0)])
def test_what_rests_is_judged_on_every_rank_from_above_and_from_below(monkeypatch, kind, rank):
    states = {"parameters": lambda replica: replica.state.weights, "gradients": lambda replica: replica.state.gradients,
              "optimizer": lambda replica: replica.state.optimizer[replica.units[1]]}[kind]

    def shorter(replica):
        held = states(replica)
        key = next(reversed(held))
        held[key] = held[key].copy()

    plant(monkeypatch, "ddp", after(shorter, rank=rank))
    fails(outcome_of(stages=("ddp",)), "bytes kept are not the formula's")


# What it sends.


def sends(count, times=None):
    def fault(replica, batch):
        if times is None or batch.step <= times:
            replica.comm.exchange(np.zeros(count, np.uint8), to=replica.comm.rank,
                                  into=np.zeros(count, np.uint8), source=replica.comm.rank)
    return fault


@pytest.mark.parametrize(("name", "count"), [("ddp", 0), ("zero3", 1)])
def test_a_message_more_fails_even_if_it_is_empty(monkeypatch, name, count):
    plant(monkeypatch, name, sends(count, times=1))
    fails(outcome_of(stages=(name,)), "are not the formula's")


def test_volumes_claimed_are_compared_to_many_digits():
    assert outcome_of(stages=("zero1",), volumes=(2.0,)).passed
    assert not outcome_of(stages=("zero1",), volumes=(2.001,)).passed


# What rows, their formulas and their code on shapes share.


def counts_twice(monkeypatch):
    honest = Tape.forward

    def forward(tape, unit, weights, activations):
        outputs = honest(tape, unit, weights, activations)
        tape.operations["forward"] *= 2
        return outputs

    monkeypatch.setattr(Tape, "forward", forward)


def keeps_what_it_played(monkeypatch):
    honest, kept = Player.forward, []

    def forward(player, x):
        y, keep = honest(player, x)
        kept.append([*keep.values.values()])
        return y, keep

    monkeypatch.setattr(Player, "forward", forward)


def takes_a_peak_thrice(monkeypatch):
    honest = Ledger.taken

    def taken(ledger, array):
        honest(ledger, array)
        ledger.peak[array.kind] = max(ledger.peak[array.kind], 3 * ledger.now[array.kind])

    monkeypatch.setattr(Ledger, "taken", taken)


def loses_activations(monkeypatch):
    honest = Ledger._change
    monkeypatch.setattr(Ledger, "_change", lambda ledger, kind, held: honest(
        ledger, kind, held * (kind != "activations")))


def moves_thrice(monkeypatch):
    honest = Ledger.moved
    monkeypatch.setattr(Ledger, "moved", lambda ledger, name, owner, size: honest(ledger, name, owner, 3 * size))


@pytest.mark.parametrize(("fault", "keys", "words"), [
    (counts_twice, {}, "operations of forward are beyond their bounds"),
    (takes_a_peak_thrice, {}, "bytes are beyond their bounds"),
    (loses_activations, {}, "B of activations at the peak; the model's sizes allow"),
    (moves_thrice, {"offload_optimizer": "host"}, "B of moved between host and device; the model's sizes allow"),
    (keeps_what_it_played, {}, "of activations"),
])
def test_a_fault_of_code_that_formulas_run_too_fails(monkeypatch, fault, keys, words):
    fault(monkeypatch)
    fails(outcome_of(stages=("zero2",), **keys), words)


# Every figure that is judged.


def numbers(value, path=()):
    """Every whole number in a value, with the way to it."""
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, dict | list | tuple):
        for key, inside in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(inside, (*path, key))
    elif isinstance(value, int) and not isinstance(value, bool):
        yield path


def one_off(value, path, by):
    """A copy of a value whose number at the end of a way is off by so much."""
    if not path:
        return value + by
    key, *rest = path
    if is_dataclass(value):
        return replace(value, **{key: one_off(getattr(value, key), rest, by)})
    if isinstance(value, dict):
        return {**value, key: one_off(value[key], rest, by)}
    return type(value)(one_off(inside, rest, by) if number == key else inside for number, inside in enumerate(value))


NOT_DUE = {"rank", "alive_bytes", "resident_bytes", "padding_bytes", "curve", "least_bytes"}
"""What is measured and not due: numbers of ranks, what the system says, a curve, and bounds."""
ELSEWHERE = {"disagreement", "layout", "weights_sha256", "optimizer_sha256", "test", "sample", "wire_errors", "passes",
             "hosts", "seconds"}
"""Figures of a document that are no counts: digests and passes have tests above, others are not due."""
AT_MOST = {"owners", "held_at_beginning"}
"""Figures that may be lower than what is due: the sums of owners are held from below too."""
MANY = {"frozen": (0,), "offload_optimizer": "host", "recompute": (1,), "clip_norm": 0.5, "precision": "bf16"}


@pytest.mark.parametrize("keys", [{"stages": ("zero3",)}, {"stages": ("ddp",), "overlap": True},
                                  {"stages": ("zero2",), **MANY}], ids=str)
def test_every_judged_figure_that_is_one_off_fails(keys):
    (row,), judged = outcome_of(**keys).trained, set()
    assert {each.name for each in fields(Figures)} - ELSEWHERE == {"operations", "updates"}
    assert row.failures == []
    due = {path[1:] for path in numbers(row.due.memory[0].held_at_beginning, (0, "held_at_beginning"))}
    for what in ("traffic", "memory", "operations", "updates"):
        measured = getattr(row.measured, what)
        for path in [()] if what == "updates" else numbers(measured):
            names = {name for name in path if isinstance(name, str)}
            unordered = path[1:] == ("peak_bytes", "total") and "total" not in row.due.memory[0].least_bytes
            unasked = "held_at_beginning" in names and path[1:] not in due
            if names & NOT_DUE or path[1:] == ("calls",) or unasked or unordered:
                continue
            for by in (1, -1)[: 1 if names & AT_MOST else 2]:
                off = replace(row, measured=replace(row.measured, **{what: one_off(measured, path, by)}))
                assert off.failures, (what, path, by)
                judged |= names
    assert judged >= {
        "sent_bytes", "received_bytes", "messages", "largest_message_bytes", "by_collective", "calls", "between_bytes",
        "resting_bytes", "peak_bytes", "owners", "at_rest", "forward", "backward", "recomputation", "total"} - (
            {"total"} if "overlap" in keys else set())


@pytest.mark.parametrize("name", ["ddp", "zero2"])
def test_a_loss_that_is_off_by_its_last_bit_fails(monkeypatch, name):
    honest = Run.total

    def total(run, partial_loss):
        loss = honest(run, partial_loss)
        return np.nextafter(loss, np.float32(9)) if (len(run.losses), run.comm.rank) == (1, 1) else loss

    monkeypatch.setattr(Run, "total", total)
    outcome = outcome_of(stages=(name,))
    fails(outcome, "bits differ")
    first = outcome.trained[0].first_divergence
    assert (first.parameter, first.step, first.rank, first.ulps) == ("loss", 2, 1, 1)
