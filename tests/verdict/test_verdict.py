"""Bugs planted in a stage, in a collective and on the wire are caught and located, to the element and the ULP."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pages import printed
from tests.training import labelled, run, scenario
from tests.training.checkpointing import go
from tests.verdict.outcomes import plant
from zerosim.autograd.tape import left_to_right
from zerosim.collectives import ALGORITHMS, ring
from zerosim.collectives.own import collective
from zerosim.core.comm import left, right
from zerosim.core.parts import Named
from zerosim.scenario.sections import Variant
from zerosim.show.document import document
from zerosim.show.page import page as page_of
from zerosim.stages.adding import ADDITIONS, in_order
from zerosim.verdict import flows, traffic
from zerosim.verdict.diagnosis import ulps_apart


def instead_of(name, function):
    """`function` in the row of an algorithm, whose closed form it should then send."""
    return replace(ALGORITHMS[name], function=function).carry_out


def plant_addition(monkeypatch, reduce_scatter):
    """Let stages add by another reduce-scatter than the ring's."""
    planted = in_order(left_to_right, instead_of("ring.reduce_scatter", reduce_scatter))
    monkeypatch.setitem(ADDITIONS, "ring", planted)


def only_stage(outcome):
    (stage,) = outcome.trained
    return stage


def test_a_stale_gathered_weight_is_caught(monkeypatch):
    """From step 3 on, rank 1 uses what it gathered of the last layer in step 2."""
    honest, calls = ring.all_gather, []
    stale = {}

    def all_gather(comm, chunks):
        honest(comm, chunks)
        if comm.rank != 1:
            return
        calls.append(len(chunks.flat))
        last_layer = len(chunks.flat) == 15
        if last_layer and len(calls) <= 2 * 2 * 6:      # two steps of two micro-batches
            stale[0] = chunks.flat.copy()
        elif last_layer:
            chunks.flat[:] = stale[0]

    monkeypatch.setitem(ADDITIONS, "ring", replace(
        ADDITIONS["ring"], all_gather=instead_of("ring.all_gather", all_gather)))
    stage = only_stage(run(stages=("zero3",)))
    assert stage.equal is False
    assert stage.first_divergence.step == 3
    assert stage.first_divergence.parameter == "loss"


def twice_around(comm, chunks):
    """A ring's all-gather that goes round twice: its result is right."""
    for step in range(2 * comm.size - 1):
        comm.exchange(chunks[(comm.rank - step) % comm.size], to=right(comm),
                      into=chunks[(comm.rank - step - 1) % comm.size], source=left(comm))


@pytest.fixture
def unrecorded():
    """Flows that are recorded anew before a test and after it."""
    def forget():
        for known in (flows.recorded, flows.by_formula, traffic.tape_flow):
            known.cache_clear()

    forget()
    yield
    forget()


@pytest.mark.parametrize("rows", [{}, {"bucket_mb": 0.00004}, {"tensor_ranks": 2, "hidden": (6, 4)}], ids=str)
def test_a_shipped_collective_that_sends_everything_twice_is_caught_in_every_row(monkeypatch, unrecorded, rows):
    """Its code is swapped in place, so that whatever records it sees the same: the closed form does not."""
    monkeypatch.setattr(ring.all_gather, "__code__", twice_around.__code__)
    outcome = run(stages=("ddp", "zero1", "zero3"), steps=2, **{"ranks": 4, "micro_batches": 8, **rows})
    assert {row.equal for row in outcome.trained} == {True}
    assert [name for name, what in outcome.failures if "bytes sent are not the formula's" in what] == [
        row.name for row in outcome.trained]


@pytest.mark.parametrize(("declared", "words"), [
    (lambda ranks: ranks - 1, "sends 5 chunks on average, and chunks_sent declares 2 on 3 ranks"), (None, None)])
def test_a_users_collective_is_held_to_the_chunks_that_it_declares(declared, words):
    row = collective(chunks_sent=declared)(twice_around)
    row = replace(row, name="mine.py:twice", collective="all_gather")
    failures = run(stages=("zero3",), steps=2, all_gather=Named("mine.py:twice", row, "")).failures
    assert failures == ([("Stage III", f"mine.py:twice {words}")] if words else [])


WORLD = {"kind": "local", "ranks": 4, "library": "threads"}


@pytest.mark.parametrize("name", ["ddp", "zero3"])
def test_another_order_of_addition_is_caught_and_named(monkeypatch, name):
    """The ring that starts at a rank's own chunk adds c, c+1, …, c−1."""
    def starts_at_own(comm, chunks, reduce=np.add):
        for step in range(comm.size - 1):
            comm.exchange(chunks[(comm.rank - step) % comm.size], to=right(comm),
                          into=chunks[(comm.rank - step - 1) % comm.size], source=left(comm),
                          reduce=reduce)
        done = chunks[(comm.rank + 1) % comm.size].copy()
        comm.exchange(done, to=right(comm), into=chunks[comm.rank], source=left(comm))

    plant_addition(monkeypatch, starts_at_own)
    stage = only_stage(run(stages=(name,), steps=1, optimizer="sgd", learning_rate=10.0))
    assert stage.equal is False
    chunk = stage.first_divergence.chunk
    turned = [f"(g{2 * rank} + g{2 * rank + 1})" for rank in ((chunk + k) % 3 for k in range(3))]
    assert stage.first_divergence.order_of_addition["ours"] == f"(({turned[0]} + {turned[1]}) + {turned[2]})"
    assert stage.first_divergence.order_of_addition["reference"] == f"(({turned[1]} + {turned[2]}) + {turned[0]})"
    assert stage.first_divergence.ulps is not None


@pytest.mark.parametrize(("name", "rank"), [("ddp", 2), ("zero1", 0), ("zero3", 2)])
def test_one_flipped_mantissa_bit_is_located(monkeypatch, name, rank):
    def flips(replica, batch):
        yield
        if batch.step == 3 and replica.comm.rank == rank:
            unit = replica.units[1]
            held = replica.state.weights[unit]
            own = held if len(held) == 8 else replica.own(held)
            own.view(np.uint32)[3] ^= 1

    plant(monkeypatch, name, flips)
    found = only_stage(run(stages=(name,))).first_divergence
    offset = rank * 8 + 3
    assert (found.step, found.layer, found.rank, found.ulps) == (3, 1, rank, 1)
    assert (found.parameter, found.index) == (
        ("weight", divmod(offset, 5)) if offset < 20 else ("bias", (offset - 20,))
    )
    assert found.differing_elements == 1
    assert found.ours != found.reference


@pytest.mark.parametrize("name", ["zero2"])
def test_minus_zero_in_place_of_zero_is_located(monkeypatch, name):
    """The first feature is always 0, and so is the momentum of its weights."""
    def negates(replica, batch):
        yield
        if batch.step == 4 and replica.comm.rank == 0:
            replica.state.optimizer[replica.units[0]]["momentum"][0] *= -1

    plant(monkeypatch, name, negates)
    found = only_stage(run(stages=(name,), optimizer="momentum")).first_divergence
    assert (found.step, found.layer, found.parameter, found.index) == (4, 0, "weight", (0, 0))
    assert found.state == "momentum"
    assert (str(found.ours), str(found.reference), found.ulps) == ("-0.0", "0.0", 0)
    assert (found.ours_bits, found.reference_bits) == ("0x80000000", "0x00000000")


@given(st.floats(width=32, allow_nan=False))
def test_neighbours_are_one_ulp_apart(value):
    here = np.float32(value)
    with np.errstate(over="ignore"):
        above = np.nextafter(here, np.float32(np.inf))
    assert ulps_apart(here, above) == (here != above)
    assert ulps_apart(above, here) == (here != above)


# Rows that are each equal to their own reference and not to each other: where they part, and why.


def parted(*variants, **changes):
    built = replace(scenario(ranks=4, micro_batches=8, steps=2, hidden=(24, 16), **changes), variant=tuple(
        Variant(name=f"row {number}", **({"stage": "zero3"} | variant)) for number, variant in enumerate(variants)))
    return run(base=built)


def test_units_move_elements_to_other_chunks_and_that_is_why_they_differ():
    outcome = parted({"units": "layer"}, {"units": "model"})
    assert [row.equal for row in outcome.trained] == [True, True]
    (found,) = outcome.differences
    assert (found.first, found.other, found.step, found.what) == ("row 0", "row 1", 1, "gradient")
    assert found.chunks[0] != found.chunks[1]
    assert found.orders[0] != found.orders[1]
    assert found.values[0] != found.values[1]
    assert 0 < found.differing < found.elements
    assert found.orders[0].startswith("(((")


def test_rows_of_which_one_casts_are_told_what_it_casts():
    (found,) = parted({}, {"autocast": "bf16"}).differences
    first, second = found.orders
    assert second == f"{first}, of products in bfloat16"


def test_rows_that_resume_from_one_checkpoint_part_where_they_train_by_themselves(tmp_path):
    """The row that saved has one leg, the other has two, and with them two snapshots of the step between."""
    rows = (Variant(name="a", stage="zero3"), Variant(name="b", stage="zero3", units="model"))
    both = replace(scenario(ranks=4, micro_batches=8, steps=3, hidden=(24, 16)), variant=rows)
    go(replace(both, variant=rows[:1]), labelled(), save=tmp_path / "a", steps=1)
    (found,) = go(both, labelled(), resume=tmp_path / "a").differences
    assert (found.step, found.what) == (2, "gradient")


def test_the_first_is_held_beside_every_row_that_ends_otherwise():
    outcome = parted({"units": "layer"}, {"stage": "zero2"}, {"units": ((0, 1), (2,))}, {"units": ((0,), (1, 2))},
                     {"units": "model"}, {"accumulation": "micro_batch"})
    assert [(each.first, each.other) for each in outcome.differences] == [("row 0", f"row {n}") for n in (2, 3, 4, 5)]


def test_it_is_shown_written_and_on_the_page_and_of_rows_that_add_alike_once():
    outcome = parted({"units": "layer"}, {"units": "model"})
    lines = printed(outcome)
    assert "row 1 is not row 0, and each has the bits of one process. Reason:" in lines
    assert any(" elements differ." in line for line in lines)
    page = page_of(document(outcome, WORLD))
    assert "Both correct, but different" in page
    assert outcome.differences[0].orders[1] in page
    alike = replace(outcome, differences=[
        replace(outcome.differences[0], chunks=(1, 1), orders=("all at once", "all at once"))])
    (line,) = [line for line in printed(alike, 400) if "adds it in chunk" in line]
    assert line.startswith("    each of row 0 and row 1 adds it in chunk")
    assert page_of(document(alike, WORLD)).count("all at once") == 1
