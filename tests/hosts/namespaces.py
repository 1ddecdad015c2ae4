"""Hosts as network namespaces: made, limited, cut, emptied and removed.

    bridge     joins all hosts; the launcher reaches them through it
    eth0       a host's only card; its two ends, in the namespace and at the bridge, are limited to one rate each way

Processes of a host have a process table, shared memory and a name of their own, so MPI takes hosts for what they are
and has only TCP between them. Files are shared, as on a cluster with a shared file system.
"""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ENTER = Path(__file__).with_name("enter")
PREFIX = f"zh{os.getpid() % 10_000}"
NETWORK = f"10.83.{os.getpid() % 250}"


def ip(*words: object) -> str:
    """What `ip` prints; raises `CalledProcessError` where it refuses."""
    return subprocess.run(["ip", *map(str, words)], check=True, capture_output=True, text=True).stdout


def why_not() -> str | None:
    """Why this machine cannot have such hosts, in a line; None where it can."""
    if os.geteuid():
        return "only root makes network namespaces"
    try:
        ip("netns", "add", f"{PREFIX}try")
        ip("netns", "exec", f"{PREFIX}try", "unshare", "--pid", "--ipc", "--uts", "--fork", "--mount-proc", "true")
        ip("link", "add", f"{PREFIX}try", "type", "bridge")
    except FileNotFoundError:
        return "there is no ip command (Debian: iproute2)"
    except subprocess.CalledProcessError as error:
        return f"namespaces or bridges are not allowed: {error.stderr.strip()}"
    finally:
        for words in (["netns", "del", f"{PREFIX}try"], ["link", "del", f"{PREFIX}try"]):
            subprocess.run(["ip", *words], capture_output=True, check=False)
    return None


@dataclass(frozen=True)
class Hosts:
    """So many hosts."""

    names: Sequence[str]
    bridge: str

    def card(self, host: int) -> str:
        """The bridge's end of a host's link."""
        return f"{self.bridge}v{host}"

    def limit(self, megabits: float) -> None:
        """Let every link carry so many megabits a second each way."""
        burst = max(int(megabits * 1e6 / 8 / 250), 16_000)
        rule = ["root", "tbf", "rate", f"{megabits}mbit", "burst", f"{burst}b", "latency", "100ms"]
        for number, name in enumerate(self.names):
            subprocess.run(["tc", "qdisc", "replace", "dev", self.card(number), *rule], check=True)
            subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", "eth0", *rule], check=True)

    def left_bytes(self, host: int) -> int:
        """Bytes that have left a host, as its card counts them."""
        found = ip("netns", "exec", self.names[host], "cat", "/sys/class/net/eth0/statistics/tx_bytes")
        return int(found)

    def cut(self, host: int) -> None:
        """Take the host's cable out."""
        ip("link", "set", self.card(host), "down")

    def mend(self, host: int) -> None:
        ip("link", "set", self.card(host), "up")

    def empty(self, host: int) -> None:
        """End every process of a host at once, as when its power is gone."""
        for pid in ip("netns", "pids", self.names[host]).split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue

    def command(self, mpiexec: str, ranks: int, hosts: Sequence[int] | None = None) -> list[str]:
        """The launcher and its flags for so many ranks, as many on each of these hosts."""
        names = [self.names[number] for number in (range(len(self.names)) if hosts is None else hosts)]
        return [mpiexec, "-launcher", "ssh", "-launcher-exec", str(ENTER), "-iface", self.bridge,
                "-hosts", ",".join(names), "-ppn", str(ranks // len(names)), "-n", str(ranks)]


@contextmanager
def hosts(count: int) -> Iterator[Hosts]:
    """So many hosts, which are gone afterwards with all that runs on them."""
    found = Hosts([f"{PREFIX}h{number}" for number in range(count)], f"{PREFIX}b")
    try:
        ip("link", "add", found.bridge, "type", "bridge")
        ip("addr", "add", f"{NETWORK}.254/24", "dev", found.bridge)
        ip("link", "set", found.bridge, "up")
        for number, name in enumerate(found.names):
            ip("netns", "add", name)
            ip("link", "add", found.card(number), "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", found.card(number), "master", found.bridge, "up")
            ip("-n", name, "addr", "add", f"{NETWORK}.{number + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield found
    finally:
        for number, name in enumerate(found.names):
            if name in ip("netns", "list"):
                found.empty(number)
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            subprocess.run(["ip", "link", "del", found.card(number)], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", found.bridge], capture_output=True, check=False)
