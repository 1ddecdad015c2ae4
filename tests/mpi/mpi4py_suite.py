"""mpi4py's own test modules, run over `ZerosimIntracomm`: `python -m tests.mpi.mpi4py_suite DIRECTORY MODULE …`.

DIRECTORY is `test/` of mpi4py's source. Its tests take their communicators from `MPI.COMM_WORLD` and
`MPI.COMM_SELF`, which are replaced before they are imported; a `Dup()` of one is again of its class.
"""

import sys
import unittest

from mpi4py import MPI

from tests.mpi.intracomm import ZerosimIntracomm


def run(kind: type[MPI.Intracomm], directory: str, *modules: str) -> None:
    """Exit with 0 if every test passed on this rank, 1 if not; rank 0 prints how many."""
    MPI.COMM_WORLD, MPI.COMM_SELF = kind(MPI.COMM_WORLD), kind(MPI.COMM_SELF)
    sys.path.insert(0, directory)
    suite = unittest.defaultTestLoader.loadTestsFromNames(modules)
    result = unittest.TextTestRunner(verbosity=0, failfast=True).run(suite)
    if not result.wasSuccessful():
        MPI.Comm.Abort(MPI.COMM_WORLD, 1)
    if MPI.COMM_WORLD.rank == 0:
        print(f"{result.testsRun} tests, {len(result.skipped)} skipped")


if __name__ == "__main__":
    run(ZerosimIntracomm, *sys.argv[1:])
