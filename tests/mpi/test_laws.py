"""Laws under real mpirun: tests/mpi/laws.py asserts that all ranks end alike, and the next law finds no leftovers."""

import pytest

from tests.mpi.launch import mpirun


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("function", "ranks", "said"),
    [
        ("honest", 3, "held: 8"),
        ("swapped", 3, "rank 2 starts with [3.0], has [5.0], expected [6.0]"),
        ("raising", 3, "KeyError: 'planted' (raised on rank 1 of 3)"),
        ("waiting", 2, "rank 0 waited 0.5 s for a message from rank 1"),
        ("littering", 2, "2 message(s) were sent that no rank received"),
    ],
)
def test_laws_under_mpirun(function, ranks, said):
    outcome = mpirun(ranks, ["-m", "tests.mpi.laws", function])
    assert outcome.returncode == 0, outcome.stderr
    assert said in outcome.stdout
