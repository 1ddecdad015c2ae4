"""The machine of a plan, as the scenario's [cluster]: every key, its default, and the allowed values."""

from dataclasses import dataclass

from zerosim.scenario.fields import (
    choice,
    integer,
    name_or,
    number,
    numbers,
    optional,
    section,
    switch,
    word_or_number,
)

COLLECTIVE_COSTS = ("pipelined", "written")
KERNELS = ("written", "fused")
PRODUCTS = ("weights", "fp8", "fp8_rowwise")
SOFTWARE = ("", "eager", "compiled", "fused")
LOSSES = ("", "whole", "compiled", "chunked")
ATTENTION = ("", "flash2", "flash3")


@dataclass(frozen=True)
class Functions:
    """Numbers per second of each function; 0: limited by memory bandwidth alone."""

    exp: float = number(0.0, at_least=0)
    tanh: float = number(0.0, at_least=0)
    max: float = number(0.0, at_least=0)
    """Numbers read in each row, as for `sum` and `mean`."""
    sum: float = number(0.0, at_least=0)
    mean: float = number(0.0, at_least=0)
    take: float = number(0.0, at_least=0)
    scatter: float = number(0.0, at_least=0)
    copyto: float = number(0.0, at_least=0)
    """Numbers of arrays that fit in no cache."""
    update: float = number(0.0, at_least=0)
    """Bytes of weights, gradients and state that an optimizer reads and writes."""


@dataclass(frozen=True)
class DeviceKeys:
    """The device of a rank, if it is in no table of named devices."""

    flops: float = number(0.0, at_least=1)
    """The floating-point operations per second of large products, as measured, in the precision of the weights."""
    memory_bandwidth: float = number(0.0, at_least=1)
    """The bytes per second, as measured."""
    memory: float = number(0.0, at_least=1)
    """The bytes of the device's memory."""
    launch_us: float = optional(number(3.8, at_least=0))
    """The least time of an operation; with `bandwidths`, the time of each call in its code in addition to its work."""
    half_width: float = optional(number(0.0, at_least=0))
    """The narrower side at which a product reaches half of `flops`."""
    working_sets: tuple[float, ...] = optional(numbers())
    """The bytes of a call's working set, ascending, for the `bandwidths`. Such a device is charged for each call in the
    code of an operation."""
    bandwidths: tuple[float, ...] = optional(numbers())
    functions: Functions = optional(section(Functions))


@dataclass(frozen=True)
class LinkKeys:
    latency_us: float = number(0.0, at_least=0)
    gigabytes_per_second: float = number(0.0, at_least=1e-6)
    """Each way, of 10⁹ bytes: for a device inside its host; between hosts, for all network cards of a host."""


@dataclass(frozen=True)
class DeviceFigures:
    """Figures of a named device that replace those of its table; 0: the table's."""

    flops: float = number(0.0, at_least=0)
    flops_fp8: float = number(0.0, at_least=0)
    memory: float = number(0.0, at_least=0)
    memory_bandwidth: float = number(0.0, at_least=0)
    product_share: float = number(0.0, at_least=0, below=2)
    attention_share: float = number(0.0, at_least=0, below=2)
    memory_share: float = number(0.0, at_least=0, below=2)
    launch_ns: float = number(0.0, at_least=0)


@dataclass(frozen=True)
class ClusterKeys:
    """The machine of a plan."""

    device: str | DeviceKeys = name_or(DeviceKeys, "h100_80gb")
    devices_per_host: int = integer(8, at_least=1, at_most=1024)
    inside: str | LinkKeys = name_or(LinkKeys, "")
    """The link of a device to the others of its host; without a name, the device's usual one."""
    between: str | LinkKeys = name_or(LinkKeys, "")
    """The links of a host to other hosts; without a name, the device's usual ones."""
    cards: int = integer(1, at_least=1, at_most=1024)
    """The network cards that a host's ranks share; 1: all of them together serve every rank."""
    rails: bool = switch(False)
    """Whether the cards with one number have leaf switches of their own."""
    hosts_per_leaf: int = integer(0, at_least=0)
    """The number of hosts on a leaf switch; 0: all."""
    oversubscription: float = number(1.0, at_least=1)
    """The bandwidth of a leaf's cards over that of its links to other leaves."""
    sharp: bool = switch(False)
    """Whether the switch inside a host adds: NVLink SHARP, for DDP's all-reduce."""
    host_memory: str | LinkKeys = name_or(LinkKeys, "")
    """The link of a device to its host's memory; without a name, the device's usual one."""
    nvme: str | LinkKeys = name_or(LinkKeys, "nvme_dgx_2")
    """The link to files of the host, the share of one device."""
    collectives: str = choice("pipelined", COLLECTIVE_COSTS)
    """The cost of a collective: pipelined as in libraries, or message by message as in its code."""
    short_gather_kb: float = number(64.0, at_least=0)
    """The longest all-gather that is short, in 10³ bytes, for `parallel.all_gather = "auto"`; runs use it too."""
    kernels: str = choice("written", KERNELS)
    """The memory of operations: all arrays of their code, or only those of fused kernels."""
    software: str = choice("", SOFTWARE)
    """The software: PyTorch's kernels one by one, compiled, or kernels fused by hand; empty: that of the runs to which
    devices are fitted."""
    attention: str = choice("", ATTENTION)
    """The generation of attention's kernels; empty: the software's usual one."""
    loss: str = choice("", LOSSES)
    """How scores of the vocabulary are widened: as a whole, in registers, or in chunks so that none are ever whole;
    empty: the software's usual way."""
    reserve: float | str = word_or_number("usual", at_least=0, below=10)
    """The reserve of an allocator, as a share of the memory in use; `usual`: the software's."""
    products: str = choice("weights", PRODUCTS)
    """The precision in which weights are multiplied: their own, or 8 bits, to which both operands are cast each time,
    with a scale for each array or for each row."""
    dollars_per_hour: float = number(0.0, at_least=0)
    """The price of one device; 0: unknown."""
    hours_between_failures: float = number(0.0, at_least=0)
    """The mean for one device; any failure ends a training; 0: none fails."""
    checkpoint_seconds: float = number(0.0, at_least=0)
    """The time during which a saved checkpoint interrupts training."""
    restart_seconds: float = number(0.0, at_least=0)
    """The time between a failure and the first step after the last checkpoint."""
    jitter: float = number(0.0, at_least=0, below=2)
    """The deviation of a rank's computing time from step to step, as a share of it."""
    slow_share: float = number(0.0, at_least=0, below=1)
    """The share of ranks that always compute longer, by `slow_by`."""
    slow_by: float = number(0.0, at_least=0, below=100)
    """The additional time of slow ranks, as a share."""
    jitter_seed: int = integer(0, at_least=0)
    figures: DeviceFigures = section(DeviceFigures)
    """Figures that replace those in the table of a named device."""
