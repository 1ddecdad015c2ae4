"""The cluster of a plan: devices, links inside a host, links between hosts.

Names are looked up in `machines.toml`, which cites a source for each number. The numbers of a device or link that a
scenario defines itself are taken as achieved rates.
"""

import difflib
import tomllib
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from math import inf, prod
from typing import Any

from zerosim.core.errors import UsageError
from zerosim.plan.calls import Rates
from zerosim.plan.failures import Failures
from zerosim.plan.imbalance import ExpertLoad
from zerosim.plan.software import Software
from zerosim.plan.stragglers import Stragglers
from zerosim.plan.topologies import Dragonfly, Torus
from zerosim.scenario.machine import ClusterKeys, DeviceKeys, LinkKeys
from zerosim.scenario.reading import Origin
from zerosim.scenario.values import shown

NS = 10**9

HALF_TOKENS = 300
"""Sequence length at which causal attention reaches half of its rate: 260 to 390 tokens by the figures of Shah et al.,
"FlashAttention-3" (2024), for sequences from 512 to 16,384 on an H100.
"""

ROW_WISE = 0.95
"""The rate of 8-bit products with one scale per row, relative to one scale per array: 90 to 100% on most shapes,
github.com/pytorch/pytorch issue 147971.
"""

HOST_BYTES_PER_SECOND = 15e9
"""Bytes per second that an optimizer on the host reads and writes per device; transfers of gradients and weights are
added. Fitted to one run on 8 devices, ml-engineering's Llama 3 8B with sequences of 8,192 on B200.
"""

@dataclass(frozen=True)
class Device:
    """The device of a rank; rates are per second, shares are the achieved fractions of them."""

    title: str
    flops: float
    memory: float
    memory_bandwidth: float
    product_share: float = 1.0
    half_width: float = 0.0
    attention_share: float = 1.0
    memory_share: float = 1.0
    flops_fp8: float = 0.0
    """Operations per second in 8 bits; 0 means that the device has none."""
    multiprocessors: int = 1
    channels: int = 0
    """Multiprocessors that a running collective occupies."""
    launch_ns: float = 0.0
    """The shortest time of a kernel; longer kernels hide the launch of the next one."""
    calls: Rates | None = None
    """The times of calls, launches included, if operations are charged call by call."""
    attention: dict[str, float] = field(default_factory=dict)
    """The share of `flops` that causal attention reaches on long sequences, by generation of its kernels."""
    update_bandwidth: float = 0.0
    """Bytes per second that an optimizer reads and writes, if its formulas are slower than memory."""

    @property
    def taken_by_collectives(self) -> float:
        """The share of the device that collectives occupy."""
        return self.channels / self.multiprocessors

    def products_ns(self, operations: int, width: int) -> float:
        """The time of matrix products with weights whose narrower side is `width`."""
        share = self.product_share * width / (width + self.half_width)
        return operations * NS / (self.flops * share)

    def attention_ns(self, operations: int, tokens: int = 0, generation: str = "") -> float:
        """The time of matrix products without weights; a generation with its own rate skips the masked half."""
        if generation in self.attention:
            reached = self.attention[generation] * tokens / (tokens + HALF_TOKENS)
            return operations * NS / (2 * self.flops * reached)
        return operations * NS / (self.flops * self.attention_share)

    def moved_ns(self, moved_bytes: float) -> float:
        """The time to read and write `moved_bytes` of memory."""
        return moved_bytes * NS / (self.memory_bandwidth * self.memory_share)

    def update_ns(self, moved_bytes: float) -> float:
        """The time of an optimizer step that reads and writes `moved_bytes` in one kernel."""
        if self.update_bandwidth:
            return moved_bytes * NS / self.update_bandwidth
        return max(self.moved_ns(moved_bytes), self.launch_ns)


@dataclass(frozen=True)
class Link:
    """A link with `bytes_per_second` in each direction, after `latency_ns`.

    >>> Link("", 1000, 10**9).message_ns(500)
    1500
    """

    title: str
    latency_ns: int
    bytes_per_second: float

    def message_ns(self, message_bytes: int) -> int:
        """The time of a message that does not share the link."""
        return self.latency_ns + self.transfer_ns(message_bytes)

    def transfer_ns(self, message_bytes: int) -> int:
        """The time of a message without its latency."""
        return round(message_bytes * NS / self.bytes_per_second)


@dataclass(frozen=True)
class Fabric:
    """The network between hosts, and the switch within one: network cards, leaf switches, and switches that add.

        card    a network card; rank r of a host uses card r modulo the number of cards
        rail    the cards with one number in all hosts, if each number has leaf switches of its own
        leaf    a switch with the cards of `hosts_per_leaf` hosts, or with those of one rail; its links to all other
                leaves have the bandwidth of its cards, divided by `oversubscription`

    With `collectives = "written"` each message follows these links. Pipelined rings pass from host to host once per
    card, so each leaf's links carry the traffic of one host, whatever hosts are behind them.

    A switch that adds (NVLink SHARP) halves the traffic of an all-reduce: a device sends its vector once plus an N-th
    of the sum, and receives as much. So 8 devices seem to have more than a link's bandwidth, and up to 4 devices gain
    nothing.

    >>> Fabric(cards=2, hosts_per_leaf=4).leaf(host=5, card=1), Fabric(cards=2, rails=True).leaf(host=5, card=1)
    (1, 1)
    """

    cards: int = 1
    rails: bool = False
    hosts_per_leaf: int = 0
    """0 means that one leaf has all hosts."""
    oversubscription: float = 1.0
    switch_bytes_per_second: float = 0.0
    """Bytes per second between a device and a switch that adds, each way; 0 means that the switch does not add."""
    switch_latency_ns: int = 0
    """The latency of an all-reduce through the switch."""
    torus: Torus | None = None
    """The torus of all devices, whose links are those inside a host; then all devices are of one host."""
    dragonfly: Dragonfly | None = None
    """The dragonfly of all hosts; its routers are the leaves, and each of its links is as fast as a host."""

    def leaf(self, host: int, card: int) -> int:
        """The number of the leaf switch that a card is connected to."""
        if self.dragonfly is not None:
            return host // self.dragonfly.hosts
        group = host // self.hosts_per_leaf if self.hosts_per_leaf else 0
        return group * self.cards + card if self.rails else group

    def leaves(self, hosts: int) -> int:
        """The number of leaf switches."""
        groups = -(-hosts // self.hosts_per_leaf) if self.hosts_per_leaf else 1
        return groups * (self.cards if self.rails else 1)

    def uplink_bytes_per_second(self, hosts: int, host_bytes_per_second: float) -> float:
        """The bandwidth of all links from a leaf to other leaves, each way."""
        beneath = min(self.hosts_per_leaf or hosts, hosts) * host_bytes_per_second
        return beneath / (self.cards if self.rails else 1) / self.oversubscription

    def ring_share(self, hosts: int) -> float:
        """The share of its cards' bandwidth that a host has in rings that pass the links of each leaf once.

        >>> Fabric(hosts_per_leaf=2, oversubscription=4).ring_share(hosts=8)
        0.5
        """
        spans = bool(self.hosts_per_leaf) and hosts > self.hosts_per_leaf
        return min(1.0, self.hosts_per_leaf / self.oversubscription) if spans else 1.0

    def half_all_reduce_ns(self, sent_bytes: int, ranks: int) -> float:
        """The time of half an all-reduce by the switch; half an all-reduce by a ring sends `sent_bytes`."""
        through_switch = sent_bytes * (ranks + 1) / (ranks - 1) / 2
        return self.switch_latency_ns / 2 + through_switch / self.switch_bytes_per_second * 1e9


@dataclass(frozen=True)
class Cluster:
    """Hosts of equal devices; `between` is the sum of all network cards of a host."""

    device: Device
    devices_per_host: int
    inside: Link
    between: Link
    pipelined: bool
    """Whether collectives are priced as pipelined libraries run them, or as written."""
    fused: bool
    """Whether only the arrays that fused kernels write are counted as memory."""
    fp8: str = ""
    """`fp8` or `fp8_rowwise` if weights are multiplied in 8 bits; `device` then has that rate."""
    software: Software = Software()
    host_memory: Link = Link("memory at hand", 0, inf)
    """The link from a device to its host's memory, used for offloading."""
    fabric: Fabric = Fabric()
    ports: int = 1
    """The links of a rank, each way; each has the bandwidth of the link that it is part of."""
    dollars_per_hour: float = 0.0
    failures: Failures = Failures()
    experts: ExpertLoad = ExpertLoad()
    dispatcher: str = ""
    """The software that sends rows to experts, see `dispatch`; empty if rows travel as the model's code sends them."""
    overlap_experts: bool = False
    stragglers: Stragglers = Stragglers()

    @property
    def port_bytes_per_second(self) -> float:
        """The bandwidth of one of a rank's own links, each way; with one device per host, that of the host."""
        return (self.between if self.devices_per_host == 1 else self.inside).bytes_per_second

    @property
    def card_bytes_per_second(self) -> float:
        """The bandwidth of one network card, each way."""
        return self.between.bytes_per_second / self.fabric.cards

    def seen_by(self, stride: int, ranks: int = 0) -> "Cluster":
        """The cluster as a group of `ranks`, every `stride`-th, sees it, while the other groups do the same.

        The groups that have a rank on a host share its links to other hosts.

        >>> from zerosim.scenario.machine import ClusterKeys
        >>> cluster = cluster_of(ClusterKeys(devices_per_host=8), Origin(), 32)
        >>> seen = cluster.seen_by(8)
        >>> seen.devices_per_host, round(cluster.between.bytes_per_second / seen.between.bytes_per_second)
        (1, 8)
        """
        sharing = min(stride, self.devices_per_host)
        between = replace(self.between, bytes_per_second=self.between.bytes_per_second / sharing)
        fabric = self.fabric
        if fabric.torus is not None:
            within = fabric.torus.within(ranks, stride)
            if within is None and ranks > 1 and not self.pipelined:
                raise UsageError(
                    f"groups of {ranks} ranks at a distance of {stride} share links of the torus "
                    f"{list(fabric.torus.sizes)}; make groups that are whole dimensions, or set cluster.collectives to "
                    f"pipelined")
            fabric = replace(fabric, torus=within)
        return replace(self, devices_per_host=max(self.devices_per_host // stride, 1), between=between, fabric=fabric)

    def update_ns(self, moved_bytes: float, *, on_host: bool = False) -> float:
        """The time of an optimizer step that reads and writes `moved_bytes`, on the device or on its host."""
        if on_host:
            return moved_bytes * NS / HOST_BYTES_PER_SECOND
        return self.device.update_ns(moved_bytes * self.software.update)

    def host(self, rank: int) -> int:
        return rank // self.devices_per_host

    def hosts(self, ranks: int) -> int:
        return -(-ranks // self.devices_per_host)

    def links(self, ranks: int) -> list[Link]:
        """The kinds of links in a ring through `ranks` ranks."""
        inside = [self.inside] if min(ranks, self.devices_per_host) > 1 else []
        if ranks <= self.devices_per_host:
            return inside
        share = self.fabric.ring_share(self.hosts(ranks))
        return [*inside, replace(self.between, bytes_per_second=self.between.bytes_per_second * share)]

    def slowest(self, ranks: int) -> Link:
        """The link with the least bandwidth in a ring through `ranks` ranks; for one rank, the link inside a host."""
        return min(self.links(ranks) or [self.inside], key=lambda link: link.bytes_per_second)


def cluster_of(keys: ClusterKeys, origin: Origin, ranks: int) -> Cluster:
    """The cluster of a scenario's [cluster]. Raises `ScenarioError` for unknown names."""
    device, usual = device_of(keys.device, origin)
    device = replace(device, **{name: figure for name, figure in vars(keys.figures).items() if figure})
    if keys.torus:
        keys = replace(keys, devices_per_host=ranks)
    if ranks > keys.devices_per_host and ranks % keys.devices_per_host:
        raise origin.error(
            f"{ranks} ranks do not fill hosts of {keys.devices_per_host} devices; set world.ranks to a multiple of "
            "cluster.devices_per_host, or devices_per_host to a divisor of it",
            ("cluster", "devices_per_host"), ("world", "ranks"),
        )
    if keys.products != "weights":
        device = in_8_bits(device, origin, ROW_WISE if keys.products == "fp8_rowwise" else 1.0)
    return Cluster(
        device=device, devices_per_host=keys.devices_per_host,
        inside=link_of(keys.inside, usual["inside"], origin, "inside"),
        between=link_of(keys.between, usual["between"], origin, "between"),
        host_memory=link_of(keys.host_memory, usual["host_memory"], origin, "host_memory"),
        pipelined=keys.collectives == "pipelined", fused=keys.kernels == "fused",
        fp8="" if keys.products == "weights" else keys.products,
        software=software_of(keys),
        fabric=fabric_of(keys, usual["inside"], origin, ranks),
        ports=keys.ports, dollars_per_hour=keys.dollars_per_hour,
        failures=Failures(keys.hours_between_failures, keys.checkpoint_seconds, keys.restart_seconds),
        stragglers=Stragglers(keys.jitter, keys.slow_share, keys.slow_by, keys.jitter_seed),
        experts=ExpertLoad(keys.expert_load, keys.expert_zipf),
        dispatcher=keys.dispatcher, overlap_experts=keys.overlap_experts,
    )


def fabric_of(keys: ClusterKeys, usual_inside: str, origin: Origin, ranks: int) -> Fabric:
    """The fabric of [cluster]. Raises `ScenarioError` for `sharp` on a link whose switch cannot add, and for a network
    that has no place for `ranks` ranks.
    """
    adds, latency_us = 0.0, 0.0
    if keys.sharp:
        link = {} if isinstance(keys.inside, LinkKeys) else machines()["link"].get(keys.inside or usual_inside, {})
        latency_us = link.get("switch_latency_us", 0.0)
        adds = link.get("gigabytes_per_second", 0.0) * link.get("switch_share", 0.0) * 1e9
        if not adds:
            able = [name for name, entry in machines()["link"].items() if "switch_share" in entry]
            raise origin.error(
                f"cluster.sharp: the switch of this link does not add; set cluster.inside to {' or '.join(able)}, or "
                "leave sharp out", ("cluster", "sharp"))
    if keys.torus and prod(keys.torus) != ranks:
        raise origin.error(
            f"cluster.torus {list(keys.torus)} has {prod(keys.torus)} devices, and there are {ranks} ranks; give sizes "
            "whose product is world.ranks", ("cluster", "torus"))
    hosts = -(-ranks // keys.devices_per_host)
    if keys.dragonfly and (prod(keys.dragonfly) < hosts or len(keys.dragonfly) != 3):
        raise origin.error(
            f"cluster.dragonfly {list(keys.dragonfly)} has {prod(keys.dragonfly)} hosts, and {ranks} ranks need "
            f"{hosts}; give groups, routers in a group, and hosts on a router", ("cluster", "dragonfly"))
    others = [key for key in ("torus", "dragonfly", "rails", "hosts_per_leaf") if getattr(keys, key)]
    if len(others) > 1 and others[0] in ("torus", "dragonfly"):
        raise origin.error(f"cluster.{others[0]} and {others[1]} are different networks; leave one out",
                           ("cluster", others[1]))
    return Fabric(
        keys.cards, keys.rails, keys.hosts_per_leaf, keys.oversubscription, adds, round(latency_us * 1000),
        Torus(keys.torus) if keys.torus else None, Dragonfly(*keys.dragonfly) if keys.dragonfly else None)


def software_of(keys: ClusterKeys) -> Software:
    """The software of [cluster]; without a name, that of the device's fitted runs."""
    entry = machines()["software"].get(keys.software, {})
    numbers = {name: entry[name] for name in Software.__dataclass_fields__ if name in entry}
    found = Software(**numbers)
    device = machines()["device"].get(keys.device, {}) if isinstance(keys.device, str) else {}
    rate = found.products * device.get("products", {}).get(entry.get("kernels", keys.software), 1.0)
    return replace(
        found, products=rate, attention=keys.attention or found.attention, loss=keys.loss or found.loss,
        reserve=found.reserve if isinstance(keys.reserve, str) else keys.reserve)


def in_8_bits(device: Device, origin: Origin, share: float) -> Device:
    """The device with this share of its 8-bit rate for products; attention stays in 16 bits."""
    if not device.flops_fp8:
        able = [name for name, entry in machines()["device"].items() if "flops_fp8" in entry]
        raise origin.error(
            f'cluster.products: {device.title} has no 8-bit matrix products; use {", ".join(able)}, '
            'or set it to "weights"', ("cluster", "products"))
    slower = device.flops / device.flops_fp8
    attention = {generation: share * slower for generation, share in device.attention.items()}
    return replace(
        device, flops=device.flops_fp8, product_share=device.product_share * share,
        attention_share=device.attention_share * slower, attention=attention)


USUAL = {"inside": "nvlink4", "between": "infiniband_8x400", "host_memory": "pcie5"}
"""The usual links of a device that a scenario defines itself."""


def device_of(device: str | DeviceKeys, origin: Origin) -> tuple[Device, dict[str, str]]:
    """A device, and the names of its usual links."""
    if isinstance(device, DeviceKeys):
        return own_device(device, origin), USUAL
    found = look_up("device", device, origin, "device")
    numbers = {name: found[name] for name in Device.__dataclass_fields__ if name in found}
    return Device(**numbers), {each: found[each] for each in USUAL}


def own_device(keys: DeviceKeys, origin: Origin) -> Device:
    """A device that a scenario defines itself."""
    sets, bandwidths, launch_ns = keys.working_sets, keys.bandwidths, keys.launch_us * 1000
    if len(sets) != len(bandwidths) or list(sets) != sorted(set(sets)) or min((*sets, *bandwidths), default=1) <= 0:
        raise origin.error(
            f"cluster.device: working_sets {list(sets)} and bandwidths {list(bandwidths)} must be as many, "
            "all above 0, working_sets ascending", ("cluster", "device", "working_sets"), ("cluster", "device"))
    functions = {name: rate for name, rate in vars(keys.functions).items() if rate}
    update_bandwidth = functions.pop("update", 0.0)
    calls = None
    if sets:
        pairs = tuple(zip(sets, bandwidths, strict=True))
        calls = Rates(launch_ns, (keys.flops, keys.half_width), pairs, functions)
    return Device(
        "a device of its own", keys.flops, keys.memory, keys.memory_bandwidth, half_width=keys.half_width,
        launch_ns=0 if calls else launch_ns, calls=calls, update_bandwidth=update_bandwidth)


def link_of(link: str | LinkKeys, usual: str, origin: Origin, key: str) -> Link:
    if isinstance(link, LinkKeys):
        return Link("a link of its own", round(link.latency_us * 1000), link.gigabytes_per_second * 1e9)
    found = look_up("link", link or usual, origin, key)
    reached = found["gigabytes_per_second"] * found["share"] * 1e9
    return Link(found["title"], round(found["latency_us"] * 1000), reached)


def look_up(kind: str, name: str, origin: Origin, key: str) -> dict[str, Any]:
    known = machines()[kind]
    if name in known:
        entry: dict[str, Any] = known[name]
        return entry
    begins = [each for each in known if name and each.startswith(name.lower())]
    near = begins or difflib.get_close_matches(name.lower(), known, n=1)
    meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."
    raise origin.error(f"cluster.{key}: no {kind} {shown(name)}; {meant} Or write it as a table", ("cluster", key))


@cache
def machines() -> dict[str, Any]:
    """All devices, links and software by name.

    >>> machines()["device"]["a100_80gb"]["memory_bandwidth"]
    2039000000000.0
    """
    return tomllib.loads(resources.files("zerosim.plan").joinpath("machines.toml").read_text("utf-8"))
