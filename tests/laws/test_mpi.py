"""Recorded draws on real processes: they have the bits and the figures of the record, which threads made."""

import json

import pytest

from tests.laws.digests import differences, settings_left
from tests.laws.draws import DRAWS, SAME, toml
from tests.mpi.launch import mpirun


@pytest.mark.mpi
@pytest.mark.parametrize(("ranks", "count"), [(4, 3), *(
    pytest.param(ranks, 9, marks=pytest.mark.long) for ranks in (2, 3, 4))])
def test_draws_under_mpirun_have_the_recorded_bits_and_figures(ranks, count):
    draws = [draw for draw in DRAWS if draw["settings"]["world.ranks"] == ranks]
    draws = draws[:: max(len(draws) // count, 1)]
    settings = [settings_left(draw["settings"]) for draw in draws]
    done = mpirun(ranks, ["-m", "tests.laws.under_mpi", *map(json.dumps, settings)])
    assert done.returncode == 0, done.stderr
    for line, keys, draw in zip(done.stdout.splitlines(), settings, draws, strict=True):
        ran = json.loads(line)
        assert ran["failures"] == [], toml(keys)
        assert differences(ran["rows"], draw["rows"], bits=SAME) == [], toml(keys)
