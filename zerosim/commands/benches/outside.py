"""Published figures of other trainers against plans: throughput and peak memory, source by source.

Each line of the file is one figure of one run. Sizes, sharding and precision have columns; `notes` has the rest, which
`scenario_of` finds by the words in `runs/outside.toml`.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from zerosim.commands.benches.published import PublishedFigure, RunLine, RunTable, shipped
from zerosim.plan.planned_row import PlannedRow
from zerosim.scenario.machine import ClusterKeys, DeviceFigures
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import ModelKeys, Parallel, Train, WorldKeys

GIB = 2**30
READ_AS: Mapping[str, Mapping[str, Any]] = tomllib.loads(shipped("outside.toml").read_text("utf-8"))
"""The meanings of words in notes, and what is known of whole sources."""
LONG = 32768
"""Sequences of at least this number of tokens count as long."""
SMALL = 4096
"""Micro-batches of at most this number of tokens count as small."""
COLUMNS = (
    "source", "model", "layers", "width", "heads", "kv_heads", "inner", "vocabulary", "sequence", "devices", "device",
    "devices_per_host", "sharding", "micro_batch", "accumulation", "precision", "recompute", "measured_kind",
    "measured_value",
)
VALUES: dict[str, Callable[[PlannedRow], float]] = {
    "tokens_per_second_per_device": lambda row: row.tokens_per_second,
    "mfu": lambda row: row.mfu,
    "hfu": lambda row: row.hfu,
    "peak_memory_gib": lambda row: row.reserved_bytes / GIB,
}
CONTEXT_BYTES = 1343 * 10**6
"""Device memory outside the allocator, for the program and the kernels: Hugging Face Transformers, "Model training
anatomy", one number on an otherwise empty device.
"""
MEASURED_BY: dict[str, Callable[[PlannedRow], float]] = {
    "max_memory_allocated": lambda row: row.peak_bytes / GIB,
    "nvidia-smi": lambda row: (row.reserved_bytes + CONTEXT_BYTES) / GIB,
}
"""The method by which a peak was measured, by these words in the notes; by default it is the allocator's memory."""


def outside_figure(line: RunLine, name: str) -> PublishedFigure:
    """The figure of a line."""
    scenario, kind, notes = scenario_of(line), line["measured_kind"], line.get("notes") or ""
    software, planned_as, what = named_in(notes, READ_AS["software"]), VALUES[kind], "throughput"
    if kind == "peak_memory_gib":
        what = "memory"
        planned_as = next((value for word, value in MEASURED_BY.items() if word in notes), planned_as)
    without = dict(READ_AS["left_out"].get(line["source"], {}))
    if "figures" in without:
        without["figures"] = DeviceFigures(**without["figures"])
    return PublishedFigure(
        line["source"], name, kind, float(line["measured_value"]), scenario, planned_as,
        groups_of(what, line["source"], software, scenario), software,
        replace(scenario, cluster=replace(scenario.cluster, **without)))


def groups_of(what: str, source: str, software: str, scenario: Scenario) -> list[str]:
    """The groups of a figure: its source, its software, its device, and features of its run."""
    found = {
        f"{what}, all": True,
        f"{what}, of {source}{' (fitted)' * (source in READ_AS['fitted'][what])}": True,
        f"{what}, software named": bool(software),
        f"{what}, {software or 'software not named'}": True,
        f"{what}, {scenario.cluster.device}": True,
        f"{what}, fp8": scenario.cluster.products == "fp8",
        f"{what}, sequences from {LONG:,} on": scenario.model.sequence >= LONG,
        f"{what}, at most {SMALL:,} tokens at a time": scenario.train.micro_batch * scenario.model.sequence <= SMALL,
    }
    return [name for name, holds in found.items() if holds]


def named_in(notes: str, words: Mapping[str, str]) -> str:
    """The meaning of the first of these words in the notes; empty if none is there.

    >>> named_in("Liger's fused CE; eager", READ_AS["software"])
    'fused'
    """
    return next((meant for word, meant in words.items() if word in notes), "")


def scenario_of(line: RunLine) -> Scenario:
    """The scenario of a line's run. Raises `ValueError` for a malformed number."""
    devices, notes, source = int(line["devices"]), line.get("notes") or "", line["source"]
    stage = READ_AS["sharding"][line["sharding"]]
    selected = line["recompute"] == "op"
    autocast = source in READ_AS["autocast_of"]
    in_fsdp = stage == "zero3" and "reduce " in notes
    compiled_loss = READ_AS["loss_of"].get(source, "")
    per_host = min(int(line["devices_per_host"]), devices)
    return Scenario(
        world=WorldKeys(devices),
        model=model_of(line),
        train=Train(
            micro_batch=int(line["micro_batch"]), micro_batches=devices * int(line["accumulation"]),
            optimizer="sgd" if "SGD" in notes else "adamw",
            precision="fp32" if in_fsdp or autocast else "fp16" if line["precision"] == "fp16" else "bf16",
        ),
        parallel=Parallel(
            stages=(stage,), units=root_unit(int(line["layers"])) if in_fsdp and not compiled_loss else "layer",
            recompute=recomputed("full" if selected else line["recompute"], int(line["layers"])),
            recompute_keeps="half_products" if selected else "", prefetch=stage == "zero3",
            overlap=True, shard_ranks=per_host if line["sharding"] == "HYBRID_SHARD" else 0,
            accumulation="micro_batch" if stage in ("zero2", "zero3") else "boundary",
            reduce_dtype="fp32" if "reduce fp32" in notes else "weights",
            param_dtype="bf16" if in_fsdp else "weights", autocast=line["precision"] if autocast else "none",
            offload_optimizer=named_in(notes, READ_AS["offload_optimizer"]) or "none",
        ),
        cluster=ClusterKeys(
            software=named_in(notes, READ_AS["software"]) or READ_AS["software_of"].get(source, "eager"),
            loss="chunked" if "tiled" in notes else compiled_loss,
            device=named_in(notes, READ_AS["device"]) or READ_AS["device_of"].get(source, line["device"]),
            devices_per_host=per_host, between=named_in(notes, READ_AS["between"]), kernels="fused",
            products="weights" if line["precision"] != "fp8" else named_in(notes, READ_AS["products"]) or "fp8",
        ),
    )


def model_of(line: RunLine) -> ModelKeys:
    """The shape of a line's model, GPT-2 or Llama."""
    plain = line["model"].startswith(tuple(READ_AS["plain"]))
    return ModelKeys(
        kind="transformer", architecture="gpt2" if plain else "llama", layers=int(line["layers"]),
        width=int(line["width"]), heads=int(line["heads"]), key_value_heads=0 if plain else int(line["kv_heads"]),
        inner=int(line["inner"]), vocabulary=int(line["vocabulary"]), sequence=int(line["sequence"]),
        tied_embeddings=line["model"].startswith("gpt2"),
    )


def root_unit(blocks: int) -> tuple[tuple[int, ...], ...]:
    """The layers of each FSDP unit: each block is a unit, and embedding and head together are the root unit.

    >>> root_unit(2)
    ((0, 3), (1,), (2,))
    """
    return (0, blocks + 1), *((block,) for block in range(1, blocks + 1))


def recomputed(text: str, layers: int) -> bool | tuple[int, ...]:
    """The recomputed blocks, numbered from 1. Raises `ValueError` for unknown words.

    >>> recomputed("none", 4), recomputed("every 2", 4), recomputed("first 3", 4), recomputed("3 of 4", 5)
    (False, (1, 3), (1, 2, 3), (1, 2, 3, 5))
    """
    blocks = range(1, layers + 1)
    if text == "none":
        return False
    if text == "full":
        return tuple(blocks)
    if text in ("every2", "every 2"):
        return tuple(blocks[::2])
    if text.startswith("first "):
        return tuple(blocks[: int(text.removeprefix("first "))])
    again, _, of = text.partition(" of ")
    if not of:
        raise ValueError(f"recompute: no {text!r}; there are none, full, op, every 2, first N, N of N")
    return tuple(block for block in blocks if (block - 1) % int(of) < int(again))


OUTSIDE = RunTable(
    "outside.csv", COLUMNS, {"sharding": READ_AS["sharding"], "measured_kind": VALUES}, outside_figure, 0.15)
