"""Bytes in a ledger are bytes in memory: real processes, 20 million parameters, as the operating system counts."""

import json

import pytest

from tests.mpi.launch import mpirun
from zerosim.stages import STAGES

pytestmark = [pytest.mark.mpi, pytest.mark.long]
TOLERANCE = 0.10


def measured(*arguments):
    done = mpirun(2, ["-m", "tests.mpi.resident", *arguments])
    assert done.returncode == 0, done.stderr
    ranks = json.loads(done.stdout)
    assert len(ranks) == 2 * len([word for word in arguments if word in STAGES])
    assert {rank["parameters"] for rank in ranks} == {20_175_438}
    return ranks


@pytest.mark.parametrize(
    "words", [*([stage] for stage in STAGES), [*STAGES], ["zero1", "zero3", "prefetch"]], ids=" ".join)
def test_resident_memory_is_what_the_ledger_says(words):
    """One stage alone, one after the other in the same processes, and with what is under way beside computation."""
    for rank in measured(*words):
        assert rank["resident"] == pytest.approx(rank["ledger"], rel=TOLERANCE)


def test_memory_that_passes_the_ledger_by_is_seen():
    for rank in measured("zero3", "hoards"):
        assert rank["resident"] - rank["ledger"] > 0.9 * 2 * 8_000_000 * 4
