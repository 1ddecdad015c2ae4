"""The machine of a plan, as the scenario's [cluster]: every key, its default, and the allowed values.

Their meanings are in `docs/scenario.md`.
"""

from dataclasses import dataclass, field
from typing import Annotated

from zerosim.scenario.values import LARGEST_NUMBER, FromOne, Natural, Number, below, bounded, in_words, one_of


@dataclass(frozen=True)
class DeviceKeys:
    """The device of a rank, if it is in no table of named devices."""

    flops: FromOne
    """The floating-point operations per second of large products, as measured, in the precision of the weights."""
    memory_bandwidth: FromOne
    """The bytes per second, as measured."""
    memory: FromOne
    """The bytes of the device's memory."""
    launch_us: Number = 3.8
    """The least time of an operation."""
    half_width: Number = 0.0
    """The narrower side at which a product reaches half of `flops`."""


@dataclass(frozen=True)
class LinkKeys:
    latency_us: Number
    gigabytes_per_second: Annotated[float, bounded(1e-6, LARGEST_NUMBER)]
    """Each way, of 10⁹ bytes: for a device inside its host; between hosts, for all network cards of a host."""


@dataclass(frozen=True)
class DeviceFigures:
    """Figures of a named device that replace those of its table; 0: the table's."""

    flops: Number = 0.0
    flops_fp8: Number = 0.0
    memory: Number = 0.0
    memory_bandwidth: Number = 0.0
    product_share: Annotated[float, below(0, 2)] = 0.0
    attention_share: Annotated[float, below(0, 2)] = 0.0
    memory_share: Annotated[float, below(0, 2)] = 0.0
    launch_ns: Number = 0.0


@dataclass(frozen=True)
class ClusterKeys:
    """The machine of a plan."""

    device: Annotated[str, in_words("a name in quotes")] | DeviceKeys = "h100_80gb"
    devices_per_host: Annotated[int, bounded(1, 1024)] = 8
    inside: Annotated[str, in_words("a name in quotes")] | LinkKeys = ""
    between: Annotated[str, in_words("a name in quotes")] | LinkKeys = ""
    host_memory: Annotated[str, in_words("a name in quotes")] | LinkKeys = ""
    collectives: Annotated[str, one_of(("pipelined", "written"))] = "pipelined"
    kernels: Annotated[str, one_of(("written", "fused"))] = "written"
    software: Annotated[str, one_of(
        ("", "eager", "compiled", "fused", "deepep", "graphed", "megatron", "deepspeed", "deepspeed_bf16"))] = ""
    attention: Annotated[str, one_of(("", "flash2", "flash3"))] = ""
    loss: Annotated[str, one_of(("", "whole", "compiled", "chunked"))] = ""
    reserve: Annotated[str, one_of(("usual",))] | Annotated[float, below(0, 10)] = "usual"
    products: Annotated[str, one_of(("weights", "fp8", "fp8_rowwise", "mxfp8"))] = "weights"
    expert_slices: Annotated[int, bounded(1, 1024)] = 1
    adapter_rank: Annotated[int, bounded(0, 10_000)] = 0
    frozen_dtype: Annotated[str, one_of(("weights", "int8", "nf4"))] = "weights"
    optimizer_dtype: Annotated[str, one_of(("state", "int8"))] = "state"
    live_parameters: Natural = 0
    bucket_elements: Natural = 0
    figures: DeviceFigures = field(default_factory=DeviceFigures)
