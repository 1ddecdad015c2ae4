"""The machine of a plan, as the scenario's [cluster]: every key, its default, and the allowed values.

Their meanings are in `docs/scenario.md`.
"""

import math
from dataclasses import dataclass

from zerosim.scenario.rules import ArrayRule, Choice, Either, Integer, NameOr, Number, Switch, key, section


@dataclass(frozen=True)
class Functions:
    """Numbers per second of each function; 0: limited by memory bandwidth alone."""

    exp: float = key(0.0, Number())
    tanh: float = key(0.0, Number())
    max: float = key(0.0, Number())
    """Numbers read in each row, as for `sum` and `mean`."""
    sum: float = key(0.0, Number())
    mean: float = key(0.0, Number())
    take: float = key(0.0, Number())
    scatter: float = key(0.0, Number())
    copyto: float = key(0.0, Number())
    """Numbers of arrays that fit in no cache."""
    update: float = key(0.0, Number())
    """Bytes of weights, gradients and state that an optimizer reads and writes."""


@dataclass(frozen=True)
class DeviceKeys:
    """The device of a rank, if it is in no table of named devices."""

    flops: float = key(0.0, Number(1))
    """The floating-point operations per second of large products, as measured, in the precision of the weights."""
    memory_bandwidth: float = key(0.0, Number(1))
    """The bytes per second, as measured."""
    memory: float = key(0.0, Number(1))
    """The bytes of the device's memory."""
    launch_us: float = key(3.8, Number(), optional=True)
    """The least time of an operation; with `bandwidths`, the time of each call in its code in addition to its work."""
    half_width: float = key(0.0, Number(), optional=True)
    """The narrower side at which a product reaches half of `flops`."""
    working_sets: tuple[float, ...] = key((), ArrayRule(Number(-math.inf)), optional=True)
    """The bytes of a call's working set, ascending, for the `bandwidths`. Such a device is charged for each call in the
    code of an operation."""
    bandwidths: tuple[float, ...] = key((), ArrayRule(Number(-math.inf)), optional=True)
    functions: Functions = section(Functions, optional=True)


@dataclass(frozen=True)
class LinkKeys:
    latency_us: float = key(0.0, Number())
    gigabytes_per_second: float = key(0.0, Number(1e-6))
    """Each way, of 10⁹ bytes: for a device inside its host; between hosts, for all network cards of a host."""


@dataclass(frozen=True)
class DeviceFigures:
    """Figures of a named device that replace those of its table; 0: the table's."""

    flops: float = key(0.0, Number())
    flops_fp8: float = key(0.0, Number())
    memory: float = key(0.0, Number())
    memory_bandwidth: float = key(0.0, Number())
    product_share: float = key(0.0, Number(0, 2))
    attention_share: float = key(0.0, Number(0, 2))
    memory_share: float = key(0.0, Number(0, 2))
    launch_ns: float = key(0.0, Number())


@dataclass(frozen=True)
class ClusterKeys:
    """The machine of a plan."""

    device: str | DeviceKeys = key("h100_80gb", NameOr(DeviceKeys))
    devices_per_host: int = key(8, Integer(1, 1024))
    inside: str | LinkKeys = key("", NameOr(LinkKeys))
    between: str | LinkKeys = key("", NameOr(LinkKeys))
    ports: int = key(1, Integer(1, 64))
    cards: int = key(1, Integer(1, 1024))
    rails: bool = key(False, Switch())
    hosts_per_leaf: int = key(0, Integer())
    torus: tuple[int, ...] = key((), ArrayRule(Integer(1, 4096), at_most=6))
    dragonfly: tuple[int, ...] = key((), ArrayRule(Integer(1, 4096), at_most=3))
    oversubscription: float = key(1.0, Number(1))
    sharp: bool = key(False, Switch())
    host_memory: str | LinkKeys = key("", NameOr(LinkKeys))
    nvme: str | LinkKeys = key("nvme_dgx_2", NameOr(LinkKeys))
    collectives: str = key("pipelined", Choice(("pipelined", "written")))
    short_gather_kb: float = key(64.0, Number())
    kernels: str = key("written", Choice(("written", "fused")))
    software: str = key("", Choice(
        ("", "eager", "compiled", "fused", "megatron", "deepspeed", "deepspeed_bf16")))
    attention: str = key("", Choice(("", "flash2", "flash3")))
    loss: str = key("", Choice(("", "whole", "compiled", "chunked")))
    reserve: float | str = key("usual", Either("usual", Number(0, 10)))
    products: str = key("weights", Choice(("weights", "fp8", "fp8_rowwise")))
    dollars_per_hour: float = key(0.0, Number())
    hours_between_failures: float = key(0.0, Number())
    checkpoint_seconds: float = key(0.0, Number())
    restart_seconds: float = key(0.0, Number())
    jitter: float = key(0.0, Number(0, 2))
    slow_share: float = key(0.0, Number(0, 1))
    slow_by: float = key(0.0, Number(0, 100))
    jitter_seed: int = key(0, Integer())
    expert_load: tuple[float, ...] = key((), ArrayRule(Number(), at_most=10_000))
    expert_zipf: float = key(0.0, Number(0, 10))
    dispatcher: str = key("", Choice(("", "deepep", "hybridep")))
    overlap_experts: bool = key(False, Switch())
    figures: DeviceFigures = section(DeviceFigures)
