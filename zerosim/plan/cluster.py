"""The cluster of a plan: devices, links inside a host, links between hosts.

Names are looked up in `machines.toml`, which cites a source for each number. The numbers of a device or link that a
scenario defines itself are taken as achieved rates.
"""

import tomllib
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from math import inf
from typing import Any

from zerosim.plan.software import Software
from zerosim.scenario.machine import ClusterKeys, DeviceKeys, LinkKeys
from zerosim.scenario.reading import Origin, nearest
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
    attention_share: float = 1.0
    memory_share: float = 1.0
    flops_fp8: float = 0.0
    """Operations per second in 8 bits; 0 means that the device has none."""
    flops_mxfp8: float = 0.0
    """The same with a scale for each 32 numbers."""
    multiprocessors: int = 1
    channels: int = 0
    """Multiprocessors that a running collective occupies."""
    launch_ns: float = 0.0
    """The shortest time of a kernel; longer kernels hide the launch of the next one."""
    attention: dict[str, float] = field(default_factory=dict)
    """The share of `flops` that causal attention reaches on long sequences, by generation of its kernels."""
    watts: float = 0.0
    """The most power that the device takes; 0 if it is not known."""

    def products_ns(self, operations: int) -> float:
        """The time of matrix products with weights."""
        return operations * NS / (self.flops * self.product_share)

    def attention_ns(self, operations: int, tokens: int = 0, generation: str = "") -> float:
        """The time of matrix products without weights; a generation with its own rate skips the masked half."""
        if generation in self.attention:
            reached = self.attention[generation] * tokens / (tokens + HALF_TOKENS)
            return operations * NS / (2 * self.flops * reached)
        return operations * NS / (self.flops * self.attention_share)

    def moved_ns(self, moved_bytes: float) -> float:
        """The time to read and write `moved_bytes` of memory."""
        return moved_bytes * NS / (self.memory_bandwidth * self.memory_share)


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
class Tuning:
    """How a model is tuned: all of it, or adapters beside the frozen weights of every product of its blocks (LoRA).

    The states of an optimizer in 8 bits have a scale of 32 bits for each 256 numbers (bitsandbytes, `blockwise`).
    """

    adapter_rank: int = 0
    """The rank of the adapters; 0 if all weights are trained."""
    frozen_bits: int = 0
    """The bits of frozen weights; 0 for those of the weights."""
    states_in_8_bits: bool = False

    @property
    def words(self) -> str:
        """What is tuned, after the optimizer; empty if all weights are, in the precision's states."""
        adapters = f", adapters of rank {self.adapter_rank} beside frozen weights" * (self.adapter_rank > 0)
        return adapters + f" of {self.frozen_bits} bits" * (self.frozen_bits > 0) + ", states in 8 bits" * (
            self.states_in_8_bits)

    def adapters(self, shape: tuple[int, ...]) -> int:
        """The parameters of the adapter of a weight of this shape; 0 unless it is a matrix.

        >>> Tuning(8).adapters((16, 32)), Tuning(8).adapters((16,)), Tuning().adapters((16, 32))
        (384, 0, 0)
        """
        return self.adapter_rank * sum(shape) if len(shape) == MATRIX else 0


MATRIX = 2
"""The dimensions of a weight with an adapter."""
FROZEN_BITS = {"weights": 0, "int8": 8, "nf4": 4}


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
    """`fp8`, `fp8_rowwise` or `mxfp8` if weights are multiplied in 8 bits; `device` then has that rate."""
    software: Software = Software()
    host_memory: Link = Link("memory at hand", 0, inf)
    """The link from a device to its host's memory, used for offloading."""
    tuning: Tuning = Tuning()
    live_parameters: int = 0
    """The gathered parameters that Stage III keeps alive, DeepSpeed's stage3_max_live_parameters."""
    bucket_elements: int = 0
    """The elements of the buffers in which gradients are reduced, DeepSpeed's reduce_bucket_size, two with overlap."""
    expert_slices: int = 1
    """The neighbouring experts that are slices of one, for which a token leaves a host once."""

    def seen_by(self, stride: int) -> "Cluster":
        """The cluster as a group of every `stride`-th rank sees it, while the other groups do the same.

        The groups that have a rank on a host share its links to other hosts.

        >>> from zerosim.scenario.machine import ClusterKeys
        >>> cluster = cluster_of(ClusterKeys(devices_per_host=8), Origin(), 32)
        >>> seen = cluster.seen_by(8)
        >>> seen.devices_per_host, round(cluster.between.bytes_per_second / seen.between.bytes_per_second)
        (1, 8)
        """
        sharing = min(stride, self.devices_per_host)
        between = replace(self.between, bytes_per_second=self.between.bytes_per_second / sharing)
        return replace(self, devices_per_host=max(self.devices_per_host // stride, 1), between=between)

    def host(self, rank: int) -> int:
        return rank // self.devices_per_host

    def hosts(self, ranks: int) -> int:
        return -(-ranks // self.devices_per_host)

    def slowest(self, ranks: int) -> Link:
        """The link with the least bandwidth in a ring through `ranks` ranks; for one rank, the link inside a host."""
        if ranks <= self.devices_per_host or self.devices_per_host == 1:
            return self.inside if ranks <= self.devices_per_host else self.between
        return min(self.inside, self.between, key=lambda link: link.bytes_per_second)


def cluster_of(keys: ClusterKeys, origin: Origin, ranks: int) -> Cluster:
    """The cluster of a scenario's [cluster]. Raises `ScenarioError` for unknown names."""
    usual: dict[str, Any] = USUAL
    if isinstance(named := keys.device, DeviceKeys):
        device = Device(
            "a device of its own", named.flops, named.memory, named.memory_bandwidth, launch_ns=named.launch_us * 1000)
    else:
        usual = look_up("device", named, origin, "device")
        device = Device(**{name: usual[name] for name in Device.__dataclass_fields__ if name in usual})
    device = replace(device, **{name: figure for name, figure in vars(keys.figures).items() if figure})
    if ranks > keys.devices_per_host and ranks % keys.devices_per_host:
        raise origin.error(
            f"{ranks} ranks do not fill hosts of {keys.devices_per_host} devices; set world.ranks to a multiple of "
            "cluster.devices_per_host, or devices_per_host to a divisor of it",
            ("cluster", "devices_per_host"), ("world", "ranks"),
        )
    if keys.products != "weights":
        device = in_8_bits(device, origin, keys.products)
    return Cluster(
        device=device, devices_per_host=keys.devices_per_host,
        inside=link_of(keys.inside, usual["inside"], origin, "inside"),
        between=link_of(keys.between, usual["between"], origin, "between"),
        host_memory=link_of(keys.host_memory, usual["host_memory"], origin, "host_memory"),
        pipelined=keys.collectives == "pipelined", fused=keys.kernels == "fused",
        fp8="" if keys.products == "weights" else keys.products,
        software=software_of(keys), expert_slices=keys.expert_slices, live_parameters=keys.live_parameters,
        bucket_elements=keys.bucket_elements,
        tuning=Tuning(keys.adapter_rank, FROZEN_BITS[keys.frozen_dtype] * (keys.adapter_rank > 0),
                      keys.optimizer_dtype == "int8"),
    )


def software_of(keys: ClusterKeys) -> Software:
    """The software of [cluster]; without a name, that of the device's fitted runs."""
    entry = machines()["software"].get(keys.software, {})
    numbers = {name: entry[name] for name in Software.__dataclass_fields__ if name in entry}
    software = Software(**numbers)
    device = machines()["device"].get(keys.device, {}) if isinstance(keys.device, str) else {}
    rate = software.products * device.get("products", {}).get(entry.get("kernels", keys.software), 1.0)
    return replace(
        software, products=rate, attention=keys.attention or software.attention, loss=keys.loss or software.loss,
        reserve=software.reserve if isinstance(keys.reserve, str) else keys.reserve)


def in_8_bits(device: Device, origin: Origin, products: str) -> Device:
    """The device with its 8-bit rate for products of this format; attention stays in 16 bits."""
    name, share = "flops_mxfp8" if products == "mxfp8" else "flops_fp8", ROW_WISE if products == "fp8_rowwise" else 1.0
    flops: float = getattr(device, name)
    if not flops:
        able = [key for key, entry in machines()["device"].items() if name in entry]
        raise origin.error(
            f'cluster.products: {device.title} has no 8-bit matrix products of {products}; use {", ".join(able)}, '
            'or set it to "weights"', ("cluster", "products"))
    slower = device.flops / flops
    attention = {generation: share * slower for generation, share in device.attention.items()}
    return replace(
        device, flops=flops, product_share=device.product_share * share,
        attention_share=device.attention_share * slower, attention=attention)


USUAL: dict[str, Any] = {"inside": "nvlink4", "between": "infiniband_8x400", "host_memory": "pcie5"}
"""The usual links of a device that a scenario defines itself."""


def link_of(link: str | LinkKeys, usual: str, origin: Origin, key: str) -> Link:
    if isinstance(link, LinkKeys):
        return Link("a link of its own", round(link.latency_us * 1000), link.gigabytes_per_second * 1e9)
    entry = look_up("link", link or usual, origin, key)
    reached = entry["gigabytes_per_second"] * entry["share"] * 1e9
    return Link(entry["title"], round(entry["latency_us"] * 1000), reached)


def look_up(kind: str, name: str, origin: Origin, key: str) -> dict[str, Any]:
    known = machines()[kind]
    if name in known:
        entry: dict[str, Any] = known[name]
        return entry
    begins = [other for other in known if name and other.startswith(name.lower())]
    near = next(iter(begins), nearest(name, known))
    meant = f"did you mean {near!r}?" if near else f"there are {', '.join(known)}."
    raise origin.error(f"cluster.{key}: no {kind} {shown(name)}; {meant} Or write it as a table", ("cluster", key))


@cache
def machines() -> dict[str, Any]:
    """All devices, links and software by name, each with what it has `as` a relative.

    >>> machines()["device"]["a100_80gb"]["memory_bandwidth"]
    2039000000000.0
    """
    tables = tomllib.loads(resources.files("zerosim.plan").joinpath("machines.toml").read_text("utf-8"))
    for entries in tables.values():
        for name, entry in entries.items():
            relative = entries.get(entry.get("as"), {})
            entries[name] = {**relative, **entry, "source": {**relative.get("source", {}), **entry["source"]}}
    return tables
