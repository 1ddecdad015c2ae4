"""hpZ: a second copy of Stage III's weights, cut over fewer ranks, which backward gathers from."""


import pytest

from tests.training import labelled, run, scenario
from tests.training.checkpointing import bits, go
from zerosim.commands.cli import main
from zerosim.stages.gathering import SecondCopy


def hpz(ranks, secondary, per_host=0, micro_batches=2, **keys):
    return scenario(ranks=ranks, micro_batches=micro_batches * ranks, steps=2, stages=("zero3",),
                    ranks_per_host=per_host, secondary_ranks=secondary, **keys)


def done(built):
    return run(base=built)


def test_a_copy_that_is_stale_is_caught(monkeypatch):
    honest = SecondCopy.fill

    def stale(self, replica, unit, room, comm):
        before = {each: copy.copy() for each, copy in self._copies.items()}
        full = honest(self, replica, unit, room, comm)
        if replica.state.step > 1:
            for each, copy in before.items():
                self._copies[each][:] = copy
        return full

    monkeypatch.setattr(SecondCopy, "fill", stale)
    (row,) = done(hpz(4, 2)).trained
    assert not row.equal
    assert row.first_divergence.step == 2


def test_a_copy_that_nobody_gathers_from_is_caught(monkeypatch):
    monkeypatch.setattr("zerosim.stages.gathering.later_uses", lambda model, unit: 0)
    assert "are not the formula's" in done(hpz(4, 2)).failures[0][1]


def test_a_copy_cut_over_other_ranks_is_caught(monkeypatch):
    honest = SecondCopy.__init__
    monkeypatch.setattr(SecondCopy, "__init__", lambda self, ranks, *rest: honest(self, 2 * ranks, *rest))
    assert done(hpz(4, 2)).failures


@pytest.mark.parametrize(("one", "other"), [
    ({"secondary_ranks": 2}, {"secondary_ranks": 0}), ({"secondary_ranks": 0}, {"secondary_ranks": 2}),
    ({"secondary_ranks": 2}, {"secondary_ranks": 0, "shard_ranks": 2})])
def test_a_checkpoint_goes_on_with_another_copy_or_none(tmp_path, one, other):
    built = hpz(4, 0)
    go(scenario(built, **one), labelled(), save=tmp_path / "a", steps=1)
    rest = go(scenario(built, **other), labelled(), resume=tmp_path / "a")
    assert rest.failures == []
    if "shard_ranks" not in other:
        assert bits(rest) == bits(go(built, labelled()))


def test_a_step_in_groups_is_shown(capsys):
    assert main(["show", "zero3", "--ranks", "4", "--shard-ranks", "2"]) == 0
    assert "Stage III, shard_ranks = 2" in capsys.readouterr().out
    assert main(["show", "zero3", "--ranks", "4", "--secondary-ranks", "2"]) == 0
    capsys.readouterr()
    for words, why in ((["zero3", "--ranks", "4", "--shard-ranks", "3"], "does not divide 4 ranks; give a divisor"),
                       (["zero2", "--secondary-ranks", "2"], "it gathers no weights during the pass"),
                       (["ring.all_reduce", "--shard-ranks", "2"], "for a stage, not for a collective")):
        assert main(["show", *words]) == 2
        assert why in capsys.readouterr().err
