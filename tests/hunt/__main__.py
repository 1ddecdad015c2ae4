"""`python -m tests.hunt`: random scenarios from a seed on, in the local world and then under MPI; 1 if any is at fault.

A scenario's number is the seed plus its place, so that each can be had again alone.
"""

import argparse
import collections
import random
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.hunt.draw import Drawn, draw
from tests.hunt.judge import Fault, judge
from tests.hunt.shrink import shrunk
from tests.hunt.under_mpi import judge_alone_under_mpi, judge_under_mpi
from zerosim.core.words import toml

PLACE = Path(__file__).parents[2] / "build" / "fuzz"
IN_A_START = 15
"""Scenarios under one mpirun."""
Judged = Iterator[tuple[Drawn, Fault | None]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Hunt, and report each fault with the smallest scenario that has it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--count", type=int, default=500, help="scenarios in the local world")
    parser.add_argument("--mpi", type=int, default=60, help="scenarios under MPI")
    given = parser.parse_args(arguments)
    print(f"SEED={given.seed}: {given.count} scenarios in the local world, {given.mpi} under MPI", flush=True)
    shutil.rmtree(PLACE, ignore_errors=True)
    began = time.monotonic()
    faults = 0
    for drawn, fault in hunt_locally(given.seed, given.count, PLACE):
        faults += fault is not None
        if fault:
            small = shrunk(drawn, lambda other, of=fault: same(judge(other, PLACE / "shrunk"), of))
            report(small, fault, "COUNT=1 MPI=0")
    for drawn, fault in hunt_under_mpi(given.seed, given.mpi, PLACE):
        faults += fault is not None
        if fault:
            small = shrunk(drawn, lambda other, of=fault: same(judge_alone_under_mpi(other, PLACE / "shrunk"), of))
            report(small, fault, "COUNT=0 MPI=1")
    print(f"{faults or 'no'} faults in {given.count + given.mpi} scenarios, {time.monotonic() - began:.0f} s")
    return 1 if faults else 0


def hunt_locally(seed: int, count: int, place: Path) -> Judged:
    """Scenarios `seed`, `seed` + 1, … and what is wrong with each."""
    for number in range(seed, seed + count):
        drawn = draw(number)
        yield drawn, judge(drawn, place / "local")


def hunt_under_mpi(seed: int, count: int, place: Path) -> Judged:
    """The same of those that are drawn for MPI, in as few starts as will do."""
    by_ranks = collections.defaultdict(list)
    for number in range(seed, seed + count):
        drawn = draw(number, mpi=True)
        by_ranks[drawn.document["world"]["ranks"]].append((drawn, place / f"mpi-{number}"))
    for ranks, batch in sorted(by_ranks.items()):
        for first in range(0, len(batch), IN_A_START):
            yield from judge_under_mpi(batch[first : first + IN_A_START], ranks)


def same(found: Fault | None, fault: Fault) -> bool:
    return found is not None and found.kind == fault.kind


def report(drawn: Drawn, fault: Fault, repeat: str) -> None:
    """Print a fault, the smallest scenario that has it, where its files are, and how to have it again."""
    path = drawn.write(PLACE / f"fault-{drawn.number}")
    shutil.rmtree(PLACE / "shrunk", ignore_errors=True)
    print(f"\nFAULT {fault.kind}\n{fault.account.rstrip()}\n\n{toml(drawn.document)}")
    print(f"flags: {' '.join(drawn.flags)}\nfile: {path}\nagain: make fuzz SEED={drawn.number} {repeat}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
