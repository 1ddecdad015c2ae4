"""Published figures of runs with tensor, sequence, context and pipeline parallelism against plans, source by source.

Each line of the file is one figure of one run. Empty cells are filled by the rules in
`runs/parallel.toml`; a figure lists what was assumed for its line. Mixtures of experts, schedules that split the
backward pass and products in 4 bits or in integers have no plan.
"""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from zerosim.commands.benches.outside import MEASURED_BY, VALUES, groups_of, model_of, recomputed
from zerosim.commands.benches.published import PublishedFigure, RunLine, RunTable, shipped
from zerosim.plan.planned_row import PlannedRow
from zerosim.scenario.machine import ClusterKeys, LinkKeys
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import Parallel, Train, WorldKeys

RULES: Sequence[Mapping[str, Any]] = tomllib.loads(shipped("parallel.toml").read_text("utf-8"))["rule"]
"""The assumptions: each holds where every column in `where` contains one of its texts."""
PADDING = 128
"""The multiple of tensor ranks to which a vocabulary is padded."""
DOMAINS = {"GB300 NVL72": (64, 14.0, 100.0), "NVL72": (64, 14.0, 50.0), "slice": (0, 30.0, 6.25)}
"""Devices with links between hosts of their own, by words in the notes: the number of devices that a run uses, and the
latency in microseconds and the GB/s of a device beyond them. A slice of TPUs says its number.
"""
REACHED = 0.85
"""The share of that bandwidth that rings reach, as that of other links between hosts."""


def known(line: RunLine) -> tuple[dict[str, str], dict[str, str]]:
    """The line with assumptions in its empty cells, and these assumptions; earlier rules precede later ones.

    >>> known({"source": "Korthikanti 2022", "notes": "", "overlap": ""})[1]["software"]
    'megatron'
    """
    assumed: dict[str, str] = {}
    for rule in RULES:
        if all(any(text in line.get(column, "") if text else not line.get(column) for text in texts)
               for column, texts in rule["where"].items()):
            assumed |= {key: value for key, value in rule["is"].items() if not line.get(key) and key not in assumed}
    return {**line, **assumed}, assumed


def unplanned(line: RunLine) -> str:
    """The reason for which a run has no plan; empty if it has one."""
    reasons = {
        "a mixture of experts": line["experts"], "a schedule with split backward passes": line["schedule"][:2] == "zb",
        f"{line['precision']} products": line["precision"] in ("int8", "nvfp4"),
        "sizes are not said": not known(line)[0]["width"],
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def of_pieces(layers: int, pieces: int) -> tuple[int, ...]:
    """The layers of each piece of a pipeline, embedding and head included, as Megatron-LM cuts them.

    Blocks are divided evenly, with the embedding and the head beside those of the ends; if that fails, the embedding
    and the head count as blocks. Raises `ValueError` if that fails too.

    >>> of_pieces(6, 3), of_pieces(4, 3)
    ((3, 2, 3), (2, 2, 2))
    """
    if pieces == 1:
        return ()
    if layers % pieces and (layers + 2) % pieces:
        raise ValueError(f"layers: {pieces} pieces do not divide {layers} blocks")
    if layers % pieces:
        return ((layers + 2) // pieces,) * pieces
    each = layers // pieces
    return (each + 1, *(each for _ in range(pieces - 2)), each + 1)


def parallel_figure(line: RunLine, name: str) -> PublishedFigure:
    """The figure of a line."""
    full, assumed = known(line)
    scenario, kind = parallel_scenario(full), line["measured_kind"]
    value = float(line["measured_value"]) / (100 if kind == "mfu" else 1)
    what = "memory" if kind == "peak_memory_gib" else "throughput"
    named = "" if "software" in assumed else full["software"]
    directions = [f"{what}, with {key} ranks" for key in ("tensor", "context", "pipeline")
                  if int(full[key] or 1) > 1]
    return PublishedFigure(
        line["source"], name, kind, value, scenario, figure_of(full, kind),
        [*groups_of(what, line["source"], named, scenario), *directions], full["software"], assumed=assumed)


def figure_of(line: RunLine, kind: str) -> Callable[[PlannedRow], float]:
    """The corresponding figure of a plan. Narayanan et al. (2021, section 5.1) count recomputed blocks as well."""
    def flops(row: PlannedRow) -> float:
        counted = row.hfu if line["counts"] == "hardware" else row.mfu
        return counted * row.cluster.device.flops / 1e12

    def memory(row: PlannedRow) -> float:
        by = {"context": "nvidia-smi", "allocated": "max_memory_allocated"}.get(line["memory"])
        return MEASURED_BY[by](row) if by else VALUES["peak_memory_gib"](row)

    own = {"tflops_per_device": flops, "peak_memory_gib": memory, "seconds_per_step": lambda row: row.mean_seconds}
    return own.get(kind) or VALUES[kind]


def parallel_scenario(line: RunLine) -> Scenario:
    """The scenario of a line without empty cells. Raises `ValueError` for numbers that do not go together."""
    devices, layers = int(line["devices"]), int(line["layers"])
    tensor, context, pipeline, chunks = (
        int(line[key] or 1) for key in ("tensor", "context", "pipeline", "virtual_stages"))
    data, batch = devices // (tensor * context * pipeline), int(line["global_batch"])
    in_turn = line["micro_batches_per_pipeline"]
    micro = int(line["micro_batch"] or (batch // data // int(in_turn) if in_turn else 1))
    selective = {"selective": "all_but_attention", "op": "half_products"}.get(line["recompute"], "")
    stage = {"0": "ddp", "1": "zero1", "2": "zero2", "3": "zero3"}[line["zero_stage"]]
    stage = "zero2" if pipeline > 1 and stage == "zero3" else stage
    wide, each = line["gradients"], PADDING * tensor
    model = model_of({**line, "vocabulary": str(-(-int(line["vocabulary"]) // each) * each)})
    per_host, between = hosts_of(line)
    return Scenario(
        world=WorldKeys(devices),
        model=replace(model, tied_embeddings=False),
        train=Train(micro_batch=micro, micro_batches=batch // micro, optimizer="adamw",
                    precision="fp16" if line["precision"] == "fp16" else "bf16"),
        parallel=Parallel(
            stages=(stage,), tensor_ranks=tensor, context_ranks=context, pipeline_ranks=pipeline,
            schedule="interleaved_1f1b" if chunks > 1 else "1f1b", model_chunks=chunks,
            pipeline_layers=of_pieces(layers, pipeline * chunks), sequence_parallel=line["sequence_parallel"] == "1"
            and tensor > 1, vocabulary_parallel=tensor > 1,
            shard_ranks=per_host // tensor if stage == "zero3" and "slice" in line["notes"] else 0,
            recompute=recomputed("full" if selective else line["recompute"], layers), recompute_keeps=selective,
            prefetch=stage == "zero3", overlap=line["overlap"] == "1",
            accumulation="micro_batch" if stage == "zero3" else "boundary",
            accumulate_dtype=wide, reduce_dtype=wide,
        ),
        cluster=ClusterKeys(
            device=line["plan_device"] or line["device"], devices_per_host=per_host, kernels="fused",
            between=between,
            software=line["software"], attention=line["attention"],
            products="fp8" if line["precision"] in ("fp8", "mxfp8") else "weights",
        ),
    )


def hosts_of(line: RunLine) -> tuple[int, str | LinkKeys]:
    """The devices of a host and the link between hosts; a domain of NVLink and a slice of TPUs count as a host.

    >>> hosts_of({"notes": "2 slice(s) of v5p-128 (64 chips)", "devices": "128", "devices_per_host": ""})
    (64, LinkKeys(latency_us=30.0, gigabytes_per_second=340.0))
    """
    devices, notes = int(line["devices"]), line["notes"]
    for word, (size, latency_us, each) in DOMAINS.items():
        if word in notes:
            chips = re.search(r"\((\d+) chips\)", notes)
            of_host = min(int(chips[1]) if chips else size, devices)
            return of_host, LinkKeys(latency_us, REACHED * each * of_host)
    return min(int(line["devices_per_host"]), devices), line["between"]


PARALLEL = RunTable(
    "parallel.csv",
    ("source", "model", "sequence", "devices", "device", "tensor", "pipeline", "global_batch", "precision",
     "measured_kind", "measured_value"),
    {"measured_kind": (*VALUES, "tflops_per_device", "seconds_per_step")}, parallel_figure, 0.15, unplanned,
    "{model} on {devices} {device}, tp{tensor} cp{context} pp{pipeline}, {sequence} × {global_batch}, {precision}")
