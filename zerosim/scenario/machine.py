"""The machine of a plan, as a scenario's [cluster] says it: every key, its default, and beside each what is allowed."""

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
PLACES = ("device", "host")
ATTENTION = ("", "flash2", "flash3")


@dataclass(frozen=True)
class Functions:
    """Numbers a second that calls of a function go through; 0: as many as memory's bandwidth lets pass."""

    exp: float = number(0.0, at_least=0)
    tanh: float = number(0.0, at_least=0)
    max: float = number(0.0, at_least=0)
    """Numbers that are read in each row, as for `sum` and `mean`."""
    sum: float = number(0.0, at_least=0)
    mean: float = number(0.0, at_least=0)
    take: float = number(0.0, at_least=0)
    scatter: float = number(0.0, at_least=0)
    copyto: float = number(0.0, at_least=0)
    """Numbers of arrays that no cache holds."""
    update: float = number(0.0, at_least=0)
    """Bytes of weights, gradients and state that an optimizer reads and writes."""


@dataclass(frozen=True)
class DeviceKeys:
    """What a rank computes with, where its name is in no table."""

    flops: float = number(0.0, at_least=1)
    """Floating-point operations a second in the precision of the weights: what is reached, by large products."""
    memory_bandwidth: float = number(0.0, at_least=1)
    """Bytes a second, as above."""
    memory: float = number(0.0, at_least=1)
    """Bytes."""
    launch_us: float = optional(number(3.8, at_least=0))
    """The least that an operation takes; where `bandwidths` are given, of each call in its text, beyond its work."""
    half_width: float = optional(number(0.0, at_least=0))
    """The narrower side at which a product reaches half of `flops`."""
    working_sets: tuple[float, ...] = optional(numbers())
    """Bytes that a call works on, ascending, and the `bandwidths` that it then has: such a device is charged call by
    call, as the text of an operation has them."""
    bandwidths: tuple[float, ...] = optional(numbers())
    functions: Functions = optional(section(Functions))


@dataclass(frozen=True)
class LinkKeys:
    latency_us: float = number(0.0, at_least=0)
    gigabytes_per_second: float = number(0.0, at_least=1e-6)
    """Each way, of 10⁹ bytes: of a device inside its host, of all network cards of a host between hosts."""


@dataclass(frozen=True)
class DeviceFigures:
    """Figures of a named device that are other than in its table; 0: as they are there."""

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
    """The machine that a plan is for."""

    device: str | DeviceKeys = name_or(DeviceKeys, "h100_80gb")
    devices_per_host: int = integer(8, at_least=1, at_most=1024)
    inside: str | LinkKeys = name_or(LinkKeys, "")
    """The link of a device to the others of its host; without a name, the device's usual one."""
    between: str | LinkKeys = name_or(LinkKeys, "")
    """The links of a host to other hosts; without a name, the device's usual ones."""
    cards: int = integer(1, at_least=1, at_most=1024)
    """Network cards that a host's ranks share out; 1: all of them together serve every rank."""
    rails: bool = switch(False)
    """Whether the cards with one number have leaf switches of their own."""
    hosts_per_leaf: int = integer(0, at_least=0)
    """Hosts on a leaf switch; 0: all."""
    oversubscription: float = number(1.0, at_least=1)
    """The bandwidth of a leaf's cards over that of its links to other leaves."""
    sharp: bool = switch(False)
    """Whether the switch inside a host adds: NVLink SHARP, for DDP's all-reduce."""
    host_memory: str | LinkKeys = name_or(LinkKeys, "")
    """The link of a device to its host's memory; without a name, the device's usual one."""
    nvme: str | LinkKeys = name_or(LinkKeys, "nvme_dgx_a100")
    """The link to files of the host, as far as one device has it."""
    collectives: str = choice("pipelined", COLLECTIVE_COSTS)
    """What one costs: as libraries pipeline it, or message by message as its text is written."""
    short_gather_kb: float = number(64.0, at_least=0)
    """The longest all-gather that is short, in 10³ bytes, for `parallel.all_gather = "auto"`; a run asks too."""
    kernels: str = choice("written", KERNELS)
    """What operations have in memory: all that their text does, or what fused ones leave there."""
    software: str = choice("", SOFTWARE)
    """What trains: PyTorch's kernels one by one, compiled, or kernels fused by hand; empty: that of the runs to which
    devices are fitted."""
    attention: str = choice("", ATTENTION)
    """The generation of attention's kernels; empty: the software's usual one."""
    loss: str = choice("", LOSSES)
    """Whether scores of the vocabulary are widened as a whole, in registers, or in chunks so that none are ever whole;
    empty: the software's usual way."""
    reserve: float | str = word_or_number("usual", at_least=0, below=10)
    """What an allocator holds beyond what is alive, as a share of it; `usual`: the software's."""
    optimizer: str = choice("device", PLACES)
    """Where the optimizer has its states and computes: on the device, or in the memory of the host."""
    products: str = choice("weights", PRODUCTS)
    """In what precision weights are multiplied: their own, or 8 bits, to which both operands are cast each time, with a
    scale for each array or for each row."""
    dollars_per_hour: float = number(0.0, at_least=0)
    """The price of one device; 0: unknown."""
    hours_between_failures: float = number(0.0, at_least=0)
    """The mean of one device, any of which ends a training; 0: none fails."""
    checkpoint_seconds: float = number(0.0, at_least=0)
    """In which nothing is trained because a checkpoint is saved."""
    restart_seconds: float = number(0.0, at_least=0)
    """The time between a failure and the first step behind the last checkpoint."""
    jitter: float = number(0.0, at_least=0, below=2)
    """The deviation of a rank's computing from step to step, as a share of it."""
    slow_share: float = number(0.0, at_least=0, below=1)
    """The share of ranks that always compute longer, by `slow_by`."""
    slow_by: float = number(0.0, at_least=0, below=100)
    """How much longer, as a share."""
    jitter_seed: int = integer(0, at_least=0)
    figures: DeviceFigures = section(DeviceFigures)
    """Figures of a named device in place of its table's."""
