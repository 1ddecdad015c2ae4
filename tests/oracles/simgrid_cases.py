"""SimGrid's answers to what messages take: `python -m tests.oracles.simgrid_cases` asks again, `--write` records them.

It is asked through the system's Python, which has Debian's python3-simgrid: see `simgrid_replay.py`.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from zerosim.collectives import ALGORITHMS
from zerosim.plan.cluster import Cluster, Device, Link
from zerosim.plan.fluid import Message
from zerosim.plan.network import links, programs

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


class Case(NamedTuple):
    """A collective of a vector of so many bytes, on so many ranks, in hosts of so many devices."""

    collective: str
    ranks: int
    devices_per_host: int
    bytes: int
    links: str

    @property
    def name(self):
        return f"{self.collective} on {self.ranks} in hosts of {self.devices_per_host}, {self.bytes}, {self.links}"

    @property
    def cluster(self):
        inside, between = (Link("", *numbers) for numbers in LINKS[self.links])
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


def asked(case):
    """When the last rank has ended, in nanoseconds, as SimGrid has it; None where its bindings for Python crash.

    They do (3.32) where many messages end at the same moment.
    """
    found = programs(case.function, case.bytes, np.dtype("u1"), case.ranks)
    network = links(case.cluster, case.ranks)
    pairs = {(rank, each.to) for rank, program in enumerate(found) for each in program if isinstance(each, Message)}
    question = {
        "programs": found, "capacities": network.capacities,
        "routes": {f"{source},{to}": network.route(source, to) for source, to in pairs},
    }
    command = [SYSTEM_PYTHON, str(Path(__file__).with_name("simgrid_replay.py"))]
    done = subprocess.run(command, input=json.dumps(question), capture_output=True, text=True, check=False)
    if done.returncode == -signal.SIGSEGV:
        return None
    return float(done.stdout) * 1e9


def main(flags):
    answers = {name: ns for name, ns in ((case.name, asked(case)) for case in cases()) if ns is not None}
    if "--write" in flags:
        ANSWERS.write_text(json.dumps(answers, indent=1) + "\n")
        return 0
    recorded = json.loads(ANSWERS.read_text())
    wrong = [name for name, ns in answers.items() if abs(ns / recorded[name] - 1) > 1e-9]
    print(f"SimGrid gives {len(answers) - len(wrong)} of {len(answers)} recorded answers; not those of {wrong}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
