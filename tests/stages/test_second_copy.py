"""hpZ: a second copy of Stage III's weights, cut over fewer ranks, which backward gathers from."""



from tests.training import run, scenario
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
