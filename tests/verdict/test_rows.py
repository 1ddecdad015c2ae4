"""Each row has its own claims and its own outcome, wherever it stands and whatever becomes of the others."""

from dataclasses import replace
from unittest import mock

import pytest

from tests.training import run
from zerosim.scenario import Check
from zerosim.scenario.sections import Variant
from zerosim.stages.replica import Replica
from zerosim.training.program import Run
from zerosim.verdict import judged_run


def outcome_of(*rows, check, **changes):
    return run(steps=2, variant=rows, check=check, **changes)


@pytest.fixture
def short(monkeypatch):
    """Rows of this name find no memory."""
    honest, names = Replica.begin, set()

    def begin(replica, initial):
        if replica.state.placement.sharded in names:
            raise MemoryError
        honest(replica, initial)

    monkeypatch.setattr(Replica, "begin", begin)
    return names


ROWS = (Variant(stage="ddp", name="first"), Variant(stage="zero1", name="second"), Variant(stage="zero3", name="third"))


def test_a_row_that_does_not_fit_leaves_the_others_their_claims(short):
    short.add(())
    check = Check(volumes=(9, 2, 5), messages=(9, 12, 30), does_not_fit=("ddp",))
    outcome = outcome_of(*ROWS, check=check)
    assert outcome.failures == []
    assert [row.config.name for row in outcome.rows if not row.measured.fits] == ["first"]
    wrong = outcome_of(*ROWS, check=replace(check, volumes=(2, 3, 2)))
    assert wrong.failures == [
        ("second", "sends 2 P (N−1)/N, not 3"), ("third", "sends 5 P (N−1)/N, not 2")]


def test_a_shortage_that_nobody_claimed_fails_its_row_alone(short):
    short.add(("optimizer", "gradients", "parameters"))
    ((name, what),) = outcome_of(*ROWS, check=Check()).failures
    assert name == "third"
    assert what.startswith("needs ")


def test_a_row_whose_steps_would_not_fit_leaves_the_others_trained(monkeypatch):
    monkeypatch.setattr(judged_run, "limited", lambda: True)
    monkeypatch.setattr(judged_run, "step_bytes", lambda config, held: 2**60 if config.name == "second" else 2**20)
    outcome = outcome_of(*ROWS, check=Check())
    assert [name for name, _ in outcome.failures] == ["second"]
    assert [row.measured.fits and row.equal for row in outcome.rows] == [True, False, True]


def test_a_shortage_within_a_step_names_its_row(monkeypatch):
    monkeypatch.setattr(Run, "total", mock.Mock(side_effect=MemoryError("9 EiB")))
    with pytest.raises(MemoryError, match="first did not fit, in step 1: 9 EiB"):
        outcome_of(*ROWS, check=Check())


def test_two_rows_of_one_stage_have_a_shortage_each(short):
    short.add(("optimizer",))
    rows = (Variant(stage="zero1", name="a"), Variant(stage="zero1", name="b", units="model"), Variant(stage="ddp"))
    outcome = outcome_of(*rows, check=Check())
    assert [name for name, _ in outcome.failures] == ["a", "b"]
    assert [(row.name, row.needed_bytes) for row in outcome.did_not_fit] == [
        ("a", outcome.did_not_fit[0].needed_bytes), ("b", outcome.did_not_fit[1].needed_bytes)]


def test_what_should_not_fit_and_does_fails():
    outcome = outcome_of(*ROWS, check=Check(does_not_fit=("zero1",)))
    assert outcome.failures == [("second", "fits after all")]


def test_rows_that_share_a_name_are_told_apart():
    rows = (Variant(stage="zero3"), Variant(stage="zero3", units="model"))
    assert outcome_of(*rows, check=Check(same_bits_on=(3,))).failures == []


def test_on_other_ranks_a_row_is_held_to_the_formulas_too(monkeypatch):
    honest = Replica.unscale_and_clip

    def chatty(replica):
        honest(replica)
        if replica.comm.size == 2:
            replica.collectives.gather_norms("chatter", replica.comm, [replica.full(replica.units[0], "buffers")] * 2)

    monkeypatch.setattr(Replica, "unscale_and_clip", chatty)
    outcome = outcome_of(Variant(stage="zero2", name="only"), check=Check(same_bits_on=(2,)), order="exact")
    (what,) = [what for _, what in outcome.failures if "formula" in what]
    assert what.startswith("on 2 ranks: bytes sent are not the formula's")


def test_units_of_parallel_that_no_row_has_are_no_rows_business():
    assert run(steps=1, frozen=(0,), units="model", variant=(Variant(stage="zero3", units="layer"),)).passed
