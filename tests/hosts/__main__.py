"""Builds hosts on this machine, runs on them what only several hosts show, and removes them again.

    python -m tests.hosts [--hosts N] [--measure]

Exit code 0: everything held, or this machine cannot have hosts, which it says in one line; 1: something did not.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.hosts.namespaces import Hosts, hosts, why_not
from zerosim.collectives import ring, two_level
from zerosim.plan.cluster import Cluster, Device, Link
from zerosim.plan.fluid import written_ns

BIN = Path(sys.executable).parent
MPIEXEC, ZEROSIM = str(BIN / "mpiexec"), [str(BIN / "zerosim"), "run"]
LONGEST_SECONDS = 240
SHORT = ["--progress", "none", "--set", "check.test_accuracy=0"]
RATES = (100, 1_000, 10_000)
"""Megabits a second."""
VARIANTS = ('variant=[{stage="zero3"},{stage="zero3",shard_ranks=2},{stage="zero3",secondary_ranks=2},'
            '{stage="zero2",shard_ranks=2}]')

failures: list[str] = []


def said(what: str, holds: bool, more: str = "") -> None:
    """Print one line about what was seen, and remember what did not hold."""
    print(f"{'ok  ' if holds else 'FAIL'} {what}{': ' + more if more else ''}", flush=True)
    if not holds:
        failures.append(what)


def run(there: Hosts, ranks: int, words: list[str], on: list[int] | None = None) -> subprocess.CompletedProcess[str]:
    """A program on so many ranks, spread over hosts; one that does not end is ended, with exit code 1."""
    command = [*there.command(MPIEXEC, ranks, on), *words]
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        begun = subprocess.Popen(command, stdout=output, stderr=errors)
        try:
            code = begun.wait(LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            for host in range(len(there.names)):
                there.empty(host)
            begun.kill()
            code = begun.wait() or 1
            errors.write(f"it went on for {LONGEST_SECONDS} s\n")
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(command, code, output.read(), errors.read())


def last(output: str) -> str:
    """The last error in the output of a program or, without one, its last line."""
    lines = [line for line in output.splitlines() if line.strip()]
    return ([line for line in lines if line.startswith("zerosim: ")] or lines or [""])[-1][:160]


def conformance(there: Hosts, ranks: int) -> None:
    found = run(there, ranks, [sys.executable, "-m", "tests.mpi.conform"])
    said(f"the conformance suite on {len(there.names)} hosts of {ranks // len(there.names)}", not found.returncode,
         last(found.stdout + found.stderr) if found.returncode else "")


def scenarios(there: Hosts, ranks: int, folder: Path) -> None:
    """Bits, bytes between hosts by the ledger, the formula, and the hosts' own cards."""
    cases = {
        "DDP and all stages": [], "hybrid sharding and hpZ": ["--set", VARIANTS],
        "two levels": ["--set", "parallel.order='two_level'", "--set",
                       f"world.ranks_per_host={ranks // len(there.names)}"],
    }
    for name, more in cases.items():
        before, file = [there.left_bytes(host) for host in range(len(there.names))], folder / "outcome.json"
        found = run(there, ranks, [
            *ZEROSIM, "scenarios/compare.toml", *SHORT, "--set", f"world.ranks={ranks}", "--set", "train.steps=3",
            "--set", f"train.micro_batches={ranks}", "--set", "check.volumes=[]", *more, "--json", str(file)])
        if found.returncode:
            said(name, holds=False, more=last(found.stdout + found.stderr))
            continue
        rows = json.loads(file.read_text())["rows"]
        counted = sum(rank["between_bytes"] for row in rows for rank in row["traffic"])
        left = sum(there.left_bytes(host) - before[host] for host in range(len(there.names)))
        where = {str(row["hosts"]) for row in rows}
        said(f"{name} on {len(there.names)} hosts: equal bits, {counted:,} bytes between hosts by ledger and formula",
             all(row["equal"] and row["traffic_holds"] for row in rows) and left >= counted
             and len(set(rows[0]["hosts"])) == len(there.names),
             f"cards counted {left:,}; hosts {', '.join(where)}")


def broken(there: Hosts, ranks: int, folder: Path) -> None:
    """A rank, a link and a host that go, each in the middle of a run; then the rest of it on one host."""
    each = ranks // len(there.names)
    common = [*ZEROSIM, "scenarios/zero3.toml", *SHORT, "--set", "train.micro_batches=8", "--set", "train.steps=200",
              "--set", "world.timeout_seconds=4"]
    for what in ("a rank is killed", "a link is cut", "a host is gone"):
        saved = folder / what.replace(" ", "_")
        fault = ["--set", 'fault=[{kind="kill",rank=1,step=30}]'] if what == "a rank is killed" else []
        begun = subprocess.Popen(
            [*there.command(MPIEXEC, ranks), *common, *fault, "--set", f"world.ranks={ranks}", "--checkpoint",
             str(saved), "--every", "10"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        wait_for(lambda: any(saved.rglob("step-*.safetensors")), 90)
        if what == "a link is cut":
            there.cut(len(there.names) - 1)
        elif what == "a host is gone":
            there.empty(len(there.names) - 1)
        started = time.monotonic()
        try:
            words = begun.communicate(timeout=60)[0]
        except subprocess.TimeoutExpired:
            begun.kill()
            words = begun.communicate()[0]
            said(what, holds=False, more="the run went on for 60 s")
        for host in range(len(there.names)):
            there.empty(host)
        there.mend(len(there.names) - 1)
        said(f"{what}: the run ends in {time.monotonic() - started:.1f} s", begun.returncode != 0, last(words))
        rest = run(there, each, [*common, "--set", f"world.ranks={each}", "--resume", str(saved)], on=[0])
        said(f"{what}: it goes on from its checkpoint on the host that is left", not rest.returncode,
             last(rest.stdout + rest.stderr))


def wait_for(happens, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not happens() and time.monotonic() < deadline:
        time.sleep(0.1)


def measured(there: Hosts, ranks: int) -> float:
    """All-reduces on links of several rates, beside their plans; returns bytes a second within a host."""
    per_host = ranks // len(there.names)
    there.limit(40_000)
    inside, rows = rate_inside(there, per_host), []
    print(f"inside a host: {inside / 1e9:.2f} GB/s; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for megabits in RATES:
        there.limit(megabits)
        found = run(there, ranks, [sys.executable, "-m", "tests.hosts.timed", str(per_host), "8"])
        if found.returncode:
            said(f"measures at {megabits} Mbit/s", holds=False, more=last(found.stdout + found.stderr))
            continue
        document = json.loads(found.stdout.splitlines()[-1])
        cluster = Cluster(Device("", 1, 1, 1), per_host, Link("", 20_000, inside), Link("", 60_000, megabits * 1e6 / 8),
                          pipelined=False, fused=False)
        ways = {"ring": ring.all_reduce, "two_level": two_level.on_hosts(per_host).all_reduce}
        rows += [Seen(megabits, f"{name}.all_reduce, 8 MB", seconds,
                      written_ns(ways[name], document["elements"], 4, cluster, ranks) / 1e9)
                 for name, seconds in document["seconds"].items()]
    show(rows)
    return inside


def steps_measured(there: Hosts, ranks: int, inside: float, folder: Path) -> None:
    """Steps of Stage III, of hybrid sharding and of hpZ on links of several rates, beside their plans."""
    per_host, file, seen = ranks // len(there.names), folder / "steps.json", []
    for megabits in RATES:
        there.limit(megabits)
        about = ["scenarios/compare.toml", "--set", f"world.ranks={ranks}", "--set", f"train.micro_batches={ranks}",
                 "--set", "model.hidden=[1024,512]", "--set", "train.steps=4", "--set", VARIANTS]
        found = run(there, ranks, [*ZEROSIM, *about, *SHORT, "--set", "check.volumes=[]", "--set",
                                   "check.reference=false", "--json", str(file)])
        if found.returncode:
            said(f"steps at {megabits} Mbit/s", holds=False, more=last(found.stdout + found.stderr))
            continue
        rows = json.loads(file.read_text())["rows"]
        links = {"inside": (20, inside / 1e9), "between": (60, megabits / 8e3)}
        told = [f"cluster.{name}={{latency_us={wait},gigabytes_per_second={rate}}}"
                for name, (wait, rate) in links.items()]
        device = "cluster.device={flops=2e10,memory_bandwidth=5e9,memory=1e12}"
        told += [device, f"cluster.devices_per_host={per_host}", "cluster.collectives='written'"]
        subprocess.run([ZEROSIM[0], "plan", *about, *(word for each in told for word in ("--set", each)), "--json",
                        str(file)], check=True, capture_output=True)
        seen += [Seen(megabits, row["name"], row["seconds"]["train"] / 4, planned["step_seconds"])
                 for row, planned in zip(rows, json.loads(file.read_text())["rows"], strict=True)]
    show(seen)


class Seen(NamedTuple):
    """What took so long on links of a rate, and how long it was planned to take."""

    megabits: int
    what: str
    seconds: float
    planned: float


def show(rows: list[Seen]) -> None:
    """A line each, with what the links add beyond those of the highest rate: processors are no part of that."""
    fastest = {row.what: row for row in rows if row.megabits == max(RATES)}
    heads = ["measured s", "planned s", "ratio", "added s", "planned s", "ratio"]
    print(f"{'Mbit/s':>7}  {'':32}" + "".join(f"{head:>11}" for head in heads))
    for row in rows:
        line = f"{row.megabits:>7}  {row.what:32}" + compared(row.seconds, row.planned)
        first = fastest.get(row.what, row)
        if first is not row:
            added, planned = row.seconds - first.seconds, row.planned - first.planned
            line += compared(added, planned)
        print(line, flush=True)


def compared(seconds: float, planned: float) -> str:
    return f"{seconds:>11.4f}{planned:>11.4f}{seconds / planned:>11.2f}"


def rate_inside(there: Hosts, per_host: int) -> float:
    """Bytes a second that a rank sends and adds within a host, from an all-reduce on one."""
    found = run(there, per_host, [sys.executable, "-m", "tests.hosts.timed", str(per_host), "16"], on=[0])
    document = json.loads(found.stdout.splitlines()[-1])
    return 2 * document["elements"] * 4 * (per_host - 1) / per_host / document["seconds"]["ring"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hosts")
    parser.add_argument("--hosts", type=int, default=0, help="that many alone; default: 2, 3 and 4")
    parser.add_argument("--measure", action="store_true", help="measure collectives on limited links, and nothing else")
    arguments = parser.parse_args()
    if (why := why_not()) is not None:
        print(f"several hosts were not tried: {why}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        for count in [arguments.hosts] if arguments.hosts else [2] if arguments.measure else [2, 3, 4]:
            with hosts(count) as there:
                if arguments.measure:
                    steps_measured(there, 2 * count, measured(there, 2 * count), Path(folder))
                    continue
                there.limit(1_000)
                conformance(there, 2 * count)
                scenarios(there, 2 * count, Path(folder))
                if count == 2:
                    broken(there, 2 * count, Path(folder))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
