"""What MPI libraries' own suites test, or what of it is quick with more ranks than cores, in the MPI world."""

from tests.collectives.mpi_suites import CHECKS_UNDER_MPI
from zerosim.worlds.mpi import connect

comm = connect(timeout_seconds=300)
for check in CHECKS_UNDER_MPI:
    check(comm)
comm.close()
if comm.rank == 0:
    print(f"{comm.size} ranks of {comm.library} passed {len(CHECKS_UNDER_MPI)} checks")
