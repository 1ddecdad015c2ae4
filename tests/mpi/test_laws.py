"""Laws under real mpirun: tests/mpi/laws.py asserts that all ranks end alike, and the next law finds no leftovers."""

import pytest

from tests.mpi.launch import mpirun


@pytest.mark.mpi
def test_laws_under_mpirun():
    outcome = mpirun(3, ["-m", "tests.mpi.laws"])
    assert outcome.returncode == 0, outcome.stderr
    for words in ("held: 12", "rank 2 starts with [3.0], has [5.0], expected [6.0]",
                  "KeyError: 'planted', in line 24 (raised on rank 1 of 3)",
                  "rank 0 waited 0.5 s for a message from rank 1", "3 message(s) were sent that no rank received",
                  "it needs the local world"):
        assert outcome.stdout.count(words) == 1, words
