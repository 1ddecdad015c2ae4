"""The contents of a step: who holds what, whose gradients are in it, and what is wrong, by its code on symbols."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.conftest import ROOT
from zerosim.core.allocation import MODEL_STATES
from zerosim.core.errors import UsageError
from zerosim.core.parts import Loader
from zerosim.core.sharding import split
from zerosim.core.terms import Term, leaves
from zerosim.extend import stage
from zerosim.proofs.contents import State, complete
from zerosim.proofs.symbolic_step import contents_of
from zerosim.show.recorded import panel_of, recorded_stage, stage_in
from zerosim.stages import STAGES, zero2, zero3

LOADER = None


def recorded(subject, ranks, **groups):
    """The recorded step of a stage, and its contents."""
    step = recorded_stage(subject if isinstance(subject, str) else stage_in(subject, LOADER), ranks, **groups)
    return step, contents_of(step.config)


def first_difference(contents, events):
    """The first event of a training in which a rank sends or holds other bytes than the same code on symbols."""
    sent, ends = Counter(), [moment for moment in contents.moments[1:] if moment.ends]
    if (names := [(event["what"], event["unit"]) for event in events]) != (
            on_symbols := [(event.what, event.unit) for event in ends]):
        return f"the events of its training are {names}, those of its run on symbols {on_symbols}"
    trained = iter(events)
    for moment in contents.moments[1:]:
        for message in moment.messages:
            sent[message.source, message.to] += contents.sent_bytes(message)
        for rank, part in enumerate(next(trained)["ranks"] if moment.ends else ()):
            to = {str(peer): sent.pop((rank, peer)) for peer in range(contents.size) if (rank, peer) in sent}
            held, due = ({kind: count for kind, count in held_bytes.items() if kind in MODEL_STATES and count}
                         for held_bytes in (moment.ranks[rank].held_bytes, part["held_bytes"]))
            if (held, to) != (due, part["sent_bytes"]):
                return (f"{moment.what} {moment.unit}: rank {rank} of its training holds {due} and sends "
                        f"{part['sent_bytes']} bytes to each rank, its symbols stand for {held} and {to}")
    return None


def at(contents, what, unit):
    """What each rank holds at the end of the first event of this name: its cells by row, kind and unit."""
    (held, *_) = [moment.ranks for moment in contents.moments[1:]
                  if (moment.what, moment.unit) == (what, unit) and moment.ends]
    size = contents.size
    return [{row: of.cells[size * number : size * (number + 1)] for number, row in enumerate(contents.rows)}
            for of in held]


def faults(contents):
    """The moments, ranks and cells of wrong contents, and the ranks and cells that lack something at the end."""
    wrong = [(number, rank, cell) for number, moment in enumerate(contents.moments)
             for rank, held in enumerate(moment.ranks) for cell, content in enumerate(held.cells)
             if contents.wrong(cell, content)]
    cells = range(len(contents.rows) * contents.size)
    return wrong, [(rank, cell) for rank in range(contents.size) for cell in cells if contents.ends_wrong(rank, cell)]


@pytest.mark.parametrize("name", [*STAGES])
@pytest.mark.parametrize(("ranks", "groups"), [(1, {}), (2, {}), (3, {}), (4, {}), (4, {"shard_ranks": 2}), (8, {}),
                                              (4, {"secondary_ranks": 2})])
def test_symbols_hold_and_send_what_a_training_does(name, ranks, groups):
    """In every event, every rank, every kind and every other rank; nothing is wrong, and nothing is lacking."""
    if groups and (name == "ddp" or ("secondary_ranks" in groups and name != "zero3")):
        return
    step, contents = recorded(name, ranks, **groups)
    assert first_difference(contents, step.events) is None
    assert faults(contents) == ([], [])


@pytest.mark.parametrize("name", [*STAGES])
def test_between_steps_a_rank_holds_its_chunks_of_sharded_states_and_all_of_others(name):
    """As each stage's file declares it."""
    _, contents = recorded(name, 4)
    for rank, held in enumerate(contents.moments[-1].ranks):
        for cell, content in enumerate(held.cells):
            (kind, _), chunk = contents.rows[cell // 4], cell % 4
            assert (content is not None) == (kind not in STAGES[name].sharded or chunk == rank)
            if kind == "gradients" and content is not None:
                whole = chunk == rank or name == "ddp"
                assert complete(content, contents.element(cell), 4) == whole
            elif content is not None:
                assert content == State(contents.element(cell), 2)


def test_stage_iii_holds_all_weights_of_one_unit_only():
    _, contents = recorded("zero3", 3)
    for rank, rows in enumerate(at(contents, "forward", "layers.1")):
        for unit in contents.units:
            full = [content is not None for content in rows["parameters", unit]]
            assert full == ([True] * 3 if unit == "layers.1" else [chunk == rank for chunk in range(3)])


def test_a_reduce_scatter_is_seen_to_add():
    """Rank r's sum of a chunk has one contribution more in each round of the ring, those of the ranks before it."""
    _, contents = recorded("zero2", 4)
    rounds = [moment for moment in contents.moments if (moment.what, moment.unit) == ("reduce_scatter", "layers.2")]
    row = contents.rows.index(("gradients", "layers.2"))
    for moment in rounds:
        for rank, held in enumerate(moment.ranks):
            chunk = (rank - moment.round - 1) % 4
            ranks = [leaf.rank for leaf in leaves(held.cells[4 * row + chunk])]
            assert ranks == [(chunk + 1 + number) % 4 for number in range(moment.round + 1)]
            assert all(message.reduced for message in moment.messages)
    assert len(rounds) == 3


def test_updates_reach_other_ranks_by_the_all_gather():
    _, contents = recorded("zero1", 3)
    updated = [[content.updates for content in rows["parameters", "layers.0"]]
               for rows in at(contents, "update", "layers.0")]
    assert updated == [[2, 1, 1], [1, 2, 1], [1, 1, 2]]
    assert {content.updates for rows in at(contents, "all_gather", "layers.0")
            for content in rows["parameters", "layers.0"]} == {2}


@stage(sharded=("optimizer", "gradients", "parameters"))
def of_the_neighbour(replica, batch):
    """Stage III with the chunks of the next rank."""
    size, rank = replica.comm.size, replica.comm.rank
    replica.own = lambda full: split(full, size)[(rank + 1) % size]
    return zero3.step(replica, batch)


@stage(sharded=("optimizer", "gradients"))
def unreduced(replica, batch):
    """Stage II that forgets to add the gradients of one unit."""
    reduce = replica.reduce
    replica.reduce = lambda unit, full: full if unit.name == "layers.1" else reduce(unit, full)
    return zero2.step(replica, batch)


@stage(sharded=("optimizer", "gradients", "parameters"))
def frees_late(replica, batch):
    """Stage III that refers to the gathered weights of one unit until the next step."""
    gather = replica.gather

    def gathered(unit):
        weights = gather(unit)
        replica.kept = weights if unit.name == "layers.1" else replica.kept
        return weights

    replica.gather, replica.kept = gathered, None
    return zero3.step(replica, batch)


@stage(sharded=("optimizer", "gradients"))
def adds_twice(replica, batch):
    """Stage II that keeps the sum of one unit's gradients twice."""
    keep = replica.keep_shard
    replica.keep_shard = lambda unit, full: [keep(unit, full) for _ in range(1 + (unit.name == "layers.1"))]
    return zero2.step(replica, batch)


@stage(sharded=("optimizer", "gradients", "parameters"))
def returns_nothing(replica, batch):
    zero3.step(replica, batch)
    return np.zeros(1, np.float32)


def test_a_late_release_is_seen_while_it_lasts_and_is_wrong_at_the_end():
    step, contents = recorded(frees_late, 3)
    wrong, ends = faults(contents)
    assert step.fault.startswith("bytes kept are not the formula's: rank 0 keeps 11,104 B of layers.1's parameters")
    assert wrong == []
    row = contents.rows.index(("parameters", "layers.1"))
    assert ends == [(rank, 3 * row + chunk) for rank in range(3) for chunk in range(3) if chunk != rank]
    assert all(None not in rows["parameters", "layers.1"] for rows in at(contents, "forward", "layers.2"))
    assert [frame.wrong for frame in panel_of(step).frames].index(True) == len(contents.moments) - 1


def test_a_wrong_owner_and_a_missing_sum_are_seen_where_they_begin():
    """In the first step, and so in the film; and so are contributions that are added twice."""
    for planted, where, row in ((of_the_neighbour, "all_gather layers.0", ("parameters", "layers.0")),
                                (unreduced, "update layers.1", ("optimizer", "layers.1")),
                                (adds_twice, "backward layers.0", ("gradients", "layers.1"))):
        step, contents = recorded(planted, 4)
        wrong, lacking = faults(contents)
        assert step.fault
        assert lacking
        number = wrong[0][0]
        assert f"{contents.moments[number].what} {contents.moments[number].unit}" == where
        assert row in {contents.rows[cell // 4] for place, _, cell in wrong if place == number}
        panel = panel_of(step)
        assert first_difference(contents, step.events) is None
        assert [frame.wrong for frame in panel.frames].index(True) == number
        assert panel.frames[-1].wrong


@pytest.mark.parametrize(("planted", "first"), [
    (f"{ROOT}/docs/lessons/broken.py:zero3_step", "loss"), (returns_nothing, "after the step")])
def test_a_wrong_loss_is_a_red_row_from_where_it_goes_wrong(planted, first):
    """A loss that forgets earlier micro-batches is seen in a step of two for each rank."""
    step = recorded_stage(stage_in(planted, Loader()), 2)
    assert step.fault.startswith("after step 1, rank 0 holds loss = ")
    panel = panel_of(step)
    assert panel.rows[-1] == ("", "loss")
    red = [frame for frame in panel.frames if frame.wrong]
    assert (red[0].words, red[-1]) == (first, panel.frames[-1])
    assert {panel.name_of(place) for frame in red for cells in frame.cells for place, cell in enumerate(cells)
            if cell and "wrong" in cell.looks} == {"loss"}
    assert ("", "loss") not in panel_of(recorded("zero3", 2)[0]).rows


def test_other_bytes_than_those_of_the_training_are_seen():
    step, contents = recorded("zero2", 2)
    more = replace(contents, element_bytes=[count + 4 for count in contents.element_bytes])
    assert "reduce_scatter layers.2: rank 0 of its training holds" in first_difference(more, step.events)
    held = [replace(moment, ranks=[of._replace(held_bytes={}) for of in moment.ranks]) for moment in contents.moments]
    assert "forward layers.0: rank 0" in first_difference(replace(contents, moments=held), step.events)
    assert "the events of its training are" in first_difference(contents, step.events[1:])


@stage(sharded=("optimizer",))
def differently(replica, batch):
    replica.tape.forward(replica.units[replica.comm.rank], replica.state.weights[replica.units[0]], [])
    return zero2.step(replica, batch)


def test_ranks_that_do_different_things_have_no_contents():
    step = recorded_stage("zero2", 2)
    config = replace(step.config, stage_key=stage_in(differently, LOADER))
    with pytest.raises(UsageError, match="where another rank does"):
        contents_of(config)


def test_a_view_keeps_its_whole_array():
    """A gradient of which only a view is kept is still in memory, as in a training."""
    @stage(sharded=("optimizer", "gradients"))
    def keeps_views(replica, batch):
        replica.keep_shard = lambda unit, full: replica._keep(
            unit, replica.own(full), replica.state.placement.shard(unit))
        return zero2.step(replica, batch)

    _, contents = recorded(keeps_views, 2)
    row = contents.rows.index(("gradients", "layers.0"))
    assert [cell is not None for cell in contents.moments[-1].ranks[0].cells[2 * row : 2 * row + 2]] == [True, True]
    assert not complete(Term(0) + Term(0), 0, 2)
