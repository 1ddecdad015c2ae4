"""SimGrid's answers to what messages take: `python -m tests.oracles.simgrid_cases` asks again, `--write` records them.

It is asked through the system's Python, which has Debian's python3-simgrid: see `simgrid_replay.py`. With `--seconds N`
no question is begun later than that, and it is said how many were asked.
"""

import json
import subprocess
import sys
from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from time import monotonic
from typing import NamedTuple

import numpy as np

from zerosim.collectives import ALGORITHMS
from zerosim.plan.cluster import Cluster, Device, Link
from zerosim.plan.fluid import links, programs
from zerosim.verdict.flows import Transfer

ANSWERS = Path(__file__).parent / "simgrid_answers.json"
SYSTEM_PYTHON = "/usr/bin/python3"
LINKS = {
    "nvlink, 8 cards": ((3400, 230e9), (14000, 170e9)), "one card": ((1500, 50e9), (5000, 12.5e9)),
    "no latency": ((0, 10e9), (0, 1e9)), "slow inside": ((20000, 1e9), (1000, 100e9)),
}
COLLECTIVES = (
    "ring.all_gather", "ring.all_reduce", "halving.reduce_scatter", "doubling.all_gather", "direct.reduce_scatter",
    "direct.all_gather", "rabenseifner.all_reduce", "bruck.all_gather",
)


ANY_RANKS = (
    "naive.all_reduce", "naive.reduce_scatter", "direct.all_reduce", "doubling.all_reduce",
    "bruck.all_gather", "ring.reduce_scatter",
)
HANGS_ON_THE_LAST_BIT = "direct.all_reduce on 64 in hosts of 1, 299252903, drawn 3"
"""Rounding decides which of two messages comes to a link first there, and so all that follows."""


class Case(NamedTuple):
    """A collective of a vector of so many bytes, on so many ranks, in hosts of so many devices."""

    collective: str
    ranks: int
    devices_per_host: int
    bytes: int
    links: str
    numbers: tuple = ()
    """Of links that are in no table: latency in nanoseconds and bytes a second, inside hosts and between."""

    @property
    def name(self):
        return f"{self.collective} on {self.ranks} in hosts of {self.devices_per_host}, {self.bytes}, {self.links}"

    @property
    def cluster(self):
        inside, between = (Link("", *each) for each in self.numbers or LINKS[self.links])
        return Cluster(Device("", 1, 1, 1), self.devices_per_host, inside, between, pipelined=False, fused=False)

    @property
    def function(self):
        return ALGORITHMS[self.collective].function


def cases():
    for collective in COLLECTIVES:
        for ranks, hosts in ((4, 4), (4, 1), (8, 4), (16, 8), (32, 8)):
            for name in LINKS:
                yield Case(collective, ranks, hosts, 10**6 * ranks, name)
    for collective in ("halving.reduce_scatter", "bruck.all_gather"):
        yield Case(collective, 256, 8, 10**9 + 7, "nvlink, 8 cards")
        yield Case(collective, 256, 256, 10**9 + 7, "one card")
    for collective in ("ring.all_gather", "direct.all_gather"):
        yield Case(collective, 64, 8, 10**9, "nvlink, 8 cards")
        yield Case(collective, 64, 64, 10**7 + 3, "one card")
    yield Case("ring.all_gather", 6, 3, 1_000_003, "one card")
    yield Case("bruck.all_gather", 12, 4, 999_999, "nvlink, 8 cards")
    yield from (found := list(drawn(Random(7), 40)))
    yield nudged(next(case for case in found if case.name.startswith(HANGS_ON_THE_LAST_BIT)))


def nudged(case):
    """The same with links that are faster by a part in 10¹²."""
    numbers = tuple((latency_ns, rate * (1 + 1e-12)) for latency_ns, rate in case.numbers)
    return case._replace(links=f"{case.links} nudged", numbers=numbers)


def drawn(random, count):
    """Other platforms and schedules: any collective, hosts of any size, links of any speed."""
    for number in range(count):
        ranks = random.choice((4, 8, 16, 32, 64))
        collective = random.choice(ANY_RANKS if number % 2 else COLLECTIVES)
        if number % 2:
            ranks += random.choice((-1, 0, 1, 2))
        size = random.choice([each for each in range(1, ranks + 1) if ranks % each == 0])
        numbers = tuple((random.choice((0, random.randint(1, 50_000))), 10 ** random.uniform(8, 12)) for _ in range(2))
        yield Case(collective, ranks, size, int(10 ** random.uniform(6, 10)), f"drawn {number}", numbers)


def asked(case):
    """When the last rank has ended, in nanoseconds, as SimGrid has it."""
    found = programs(case.function, case.bytes, np.dtype("u1"), case.ranks)
    network = links(case.cluster, case.ranks)
    pairs = {(rank, each.to) for rank, program in enumerate(found) for each in program if isinstance(each, Transfer)}
    question = {
        "programs": [[each if isinstance(each, Transfer) else [each.source] for each in program] for program in found],
        "capacities": network.capacities,
        "routes": {f"{source},{to}": network.route(source, to) for source, to in pairs},
    }
    command = [SYSTEM_PYTHON, str(Path(__file__).with_name("simgrid_replay.py"))]
    done = subprocess.run(command, input=json.dumps(question), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"SimGrid broke with {done.returncode} on {case.name}\n{done.stderr}")
    return float(done.stdout) * 1e9


def ask(questions, seconds):
    """Answers by the names of cases, of as many as are begun in so many seconds; two at a time."""
    end = monotonic() + seconds

    def answer(case):
        return (case.name, asked(case)) if monotonic() < end else None

    with ThreadPoolExecutor(2) as pool:
        return dict(found for found in pool.map(answer, questions) if found)


def wrong(answers, recorded):
    """The names of answers that are not those that are recorded."""
    return [name for name, ns in answers.items() if name not in recorded or abs(ns / recorded[name] - 1) > 1e-9]


def main(flags):
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--seconds", type=float, default=1e9)
    arguments = parser.parse_args(flags)
    questions = list(cases())
    Random(0).shuffle(questions)
    answers = ask(questions, arguments.seconds)
    if arguments.write:
        ordered = {case.name: answers[case.name] for case in cases()}
        ANSWERS.write_text(json.dumps(ordered, indent=1) + "\n")
        return 0
    found = wrong(answers, json.loads(ANSWERS.read_text()))
    print(f"SimGrid was asked {len(answers)} of {len(questions)} cases; other answers than those recorded: {found}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
