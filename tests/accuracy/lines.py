"""Lines of published runs: what each says, what is assumed, and the scenario that plans it.

Each line is one figure of one run, with the columns that `tables/README.md` explains. Beside each table are its rules.
A rule holds where every column in `where` contains one of its texts; "" stands for an empty cell. `is` fills empty
cells, and sets keys of the scenario, `section.key`; earlier rules precede. The source says what follows from its notes;
all else is assumed. A run is planned without fitted numbers of its own; its device has three
(`zerosim/plan/machines.toml`).

Products in 4 bits or in integers have no plan, nor have copies of experts among the ranks that share sequences. Layers
that predict further tokens are left out of a plan.
"""

import csv
import re
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from zerosim.core.errors import UsageError
from zerosim.models import MODELS
from zerosim.plan.planned_row import PlannedRow
from zerosim.scenario.machine import ClusterKeys, DeviceFigures, LinkKeys
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import ModelKeys, Parallel, Train, WorldKeys

RunLine = Mapping[str, Any]
"""A line of a file of runs: the texts by column, and values by key of the scenario."""
GIB = 2**30
DOMAINS = {"GB300 NVL72": (64, 14.0, 100.0), "NVL72": (64, 14.0, 50.0), "domain of 72": (64, 14.0, 50.0),
           "slice": (0, 30.0, 6.25)}
"""Devices with links between hosts of their own, by words in the notes: the number of devices that a run uses, and the
latency in microseconds and the GB/s of a device beyond them. A slice of TPUs says its number.
"""
REACHED = 0.85
"""The share of that bandwidth that rings reach, as that of other links between hosts."""
CONTEXT_BYTES = 1343 * 10**6
"""Device memory outside the allocator, for the program and the kernels: Hugging Face Transformers, "Model training
anatomy", one number on an otherwise empty device.
"""
MEMORY: dict[str, Callable[[PlannedRow], int]] = {
    "": lambda row: row.reserved_bytes, "allocated": lambda row: row.peak_bytes,
    "context": lambda row: row.reserved_bytes + CONTEXT_BYTES,
}
"""The planned bytes that a peak is compared with, by the column `memory`; by default the allocator's."""
COUNTS: dict[str, Callable[[PlannedRow], float]] = {
    "": lambda row: row.mfu, "hardware": lambda row: row.hfu, "causal": lambda row: row.mfu - half_of_attention(row),
}
"""The planned utilisation that TFLOP/s are compared with, by the column `counts`."""
VALUES: dict[str, Callable[[RunLine, PlannedRow], float]] = {
    "tokens_per_second_per_device": lambda line, row: row.tokens_per_second,
    "mfu": lambda line, row: row.mfu,
    "hfu": lambda line, row: row.hfu,
    "peak_memory_gib": lambda line, row: MEMORY[line.get("memory", "")](row) / GIB,
    "tflops_per_device": lambda line, row: (
        COUNTS[line.get("counts", "")](row) * row.cluster.device.flops / 1e12),
    "seconds_per_step": lambda line, row: row.step_seconds,
}
"""The figure of a plan that a measured one is compared with, by kind."""
STAGES_BY_NUMBER = {"0": "ddp", "1": "zero1", "2": "zero2", "3": "zero3"}
SELECTIVE = {"selective": "all_but_attention", "op": "half_products"}
"""The outputs that a selective recomputation keeps."""


def half_of_attention(row: PlannedRow) -> float:
    """The share of the MFU for scores that a causal mask removes."""
    model = row.config.keys
    masked = 6 * MODELS[model.kind].attention(model) * row.config.in_one_piece.task.inputs
    return masked * row.tokens_per_second / row.cluster.device.flops


@cache
def rules_of(file: str) -> Mapping[str, Any]:
    """The rules of a file of runs, after those of words that say the software, and what is fitted to its sources."""
    words, own = (tomllib.loads(shipped(name).with_suffix(".toml").read_text("utf-8")) for name in ("words", file))
    return {**own, "rule": [*words["rule"], *own["rule"]]}


def known(line: RunLine, file: str) -> tuple[RunLine, dict[str, Any]]:
    """The line with all that the rules say, and the part of it that is assumed.

    >>> known({"source": "Korthikanti 2022", "notes": ""}, "parallel.csv")[1]["cluster.software"]
    'megatron'
    """
    said, assumed = dict[str, Any](), dict[str, Any]()
    for rule in rules_of(file)["rule"]:
        if all(any(text in line.get(column, "") if text else not line.get(column) for text in texts)
               for column, texts in rule["where"].items()):
            new = {name: value for name, value in rule["is"].items() if not line.get(name) and name not in said}
            said |= new
            assumed |= {} if "notes" in rule["where"] else new
    return {**line, **said}, assumed


def keys_of(line: RunLine, section: str) -> dict[str, Any]:
    """The keys of a section of the scenario that rules set."""
    found = {name.partition(".")[2]: value for name, value in line.items() if name.startswith(f"{section}.")}
    return found | ({"figures": DeviceFigures(**found["figures"])} if "figures" in found else {})


def unplanned(line: RunLine) -> str:
    """The reason for which a run, with all that rules say of it, has no plan; empty if it has one."""
    reasons = {
        "copies of experts": line.get("experts") and pieces_of(line) > int(line["experts"]) * slices_of(line),
        "a schedule with twice the memory of 1F1B": line.get("schedule") == "zb_2p",
        f"{line['precision']} products": line["precision"] in ("int8", "nvfp4"),
        "sizes are not said": not line.get("width"),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def scenario_of(line: RunLine) -> Scenario:
    """The scenario of a line with what its rules say. Raises `ValueError` for numbers that are malformed or do not go
    together.
    """
    devices, layers = int(line["devices"]), int(line["layers"])
    tensor, context, pipeline, chunks = (
        int(line.get(key) or 1) for key in ("tensor", "context", "pipeline", "virtual_stages"))
    stage, selective = STAGES_BY_NUMBER[line["zero_stage"]], SELECTIVE.get(line["recompute"], "")
    per_host, between = hosts_of(line)
    micro, micro_batches = batch_of(line, devices, devices // (tensor * context * pipeline))
    sharing = expert_ranks(line)
    return Scenario(
        world=WorldKeys(devices),
        model=model_of(line, int(line.get("padding") or 1) * tensor),
        train=Train(**{
            "micro_batch": micro * sharing, "micro_batches": micro_batches // sharing, "optimizer": "adamw",
            "precision": "fp16" if line["precision"] == "fp16" else "bf16", **keys_of(line, "train")}),
        parallel=Parallel(**{
            "stages": ("zero2" if pipeline > 1 and stage == "zero3" else stage,),
            "tensor_ranks": tensor, "context_ranks": context, "expert_ranks": sharing, "pipeline_ranks": pipeline,
            "model_chunks": chunks, "schedule": "interleaved_1f1b" if chunks > 1 else "1f1b",
            "pipeline_layers": of_pieces(layers, pipeline * chunks, rest=bool(line.get("rest"))),
            "sequence_parallel": line.get("sequence_parallel") == "1" and tensor > 1, "vocabulary_parallel": tensor > 1,
            "units": root_unit(layers) if line.get("units") == "root" else "layer",
            "recompute": recomputed("full" if selective else line["recompute"], layers), "recompute_keeps": selective,
            "prefetch": stage == "zero3", "overlap": True,
            "shard_ranks": per_host // tensor if line.get("sharding") == "HYBRID_SHARD" or (
                stage == "zero3" and "slice" in line.get("notes", "")) else 0,
            "accumulation": "micro_batch" if stage == "zero3" else "boundary", **keys_of(line, "parallel")}),
        cluster=ClusterKeys(**{
            "device": line["device"], "devices_per_host": per_host, "kernels": "fused",
            "products": next((name for name in ("mxfp8", "fp8") if name in line["precision"]), "weights"),
            "expert_slices": slices_of(line),
            **keys_of(line, "cluster"), **between}),
    )


def hosts_of(line: RunLine) -> tuple[int, dict[str, LinkKeys]]:
    """The devices of a host and the link between hosts; a domain of NVLink and a slice of TPUs count as a host.

    >>> hosts_of({"notes": "2 slice(s) of v5p-128 (64 chips)", "devices": "128", "devices_per_host": ""})
    (64, {'between': LinkKeys(latency_us=30.0, gigabytes_per_second=340.0)})
    """
    devices, notes = int(line["devices"]), line.get("notes", "")
    for word, (size, latency_us, each) in DOMAINS.items():
        if word in notes:
            chips = re.search(r"\((\d+) chips\)", notes)
            of_host = min(int(chips[1]) if chips else size, devices)
            return of_host, {"between": LinkKeys(latency_us, REACHED * each * of_host)}
    return min(int(line["devices_per_host"]), devices), {}


def batch_of(line: RunLine, devices: int, replicas: int) -> tuple[int, int]:
    """The samples of a micro-batch, and the number of micro-batches in a step."""
    if not line.get("global_batch"):
        return int(line["micro_batch"]), devices * int(line["accumulation"])
    batch, in_turn = int(line["global_batch"]), line["micro_batches_per_pipeline"]
    micro = int(line["micro_batch"] or (batch // replicas // int(in_turn) if in_turn else 1))
    return micro, batch // micro


def pieces_of(line: RunLine) -> int:
    """The ranks that have pieces of the same sequences."""
    return int(line["tensor"]) * int(line.get("context") or 1)


def slices_of(line: RunLine) -> int:
    """The tensor ranks over which each expert is cut (`divided`), which are planned as experts of their own.

    >>> slices_of({"experts": "8", "tensor": "2", "divided": "1"}), slices_of({"experts": "8", "tensor": "2"})
    (2, 1)
    """
    return int(line["tensor"]) if line.get("experts") and line.get("divided") else 1


def expert_ranks(line: RunLine) -> int:
    """The ranks with samples of their own that share experts, beside those with pieces of the same sequences.

    >>> expert_ranks({"experts": "8", "expert": "4", "tensor": "2", "divided": "1"})
    4
    """
    if not line.get("experts"):
        return 1
    slices = slices_of(line)
    return max(min(int(line["expert"]), int(line["experts"])) * slices // pieces_of(line), 1)


def model_of(line: RunLine, multiple: int) -> ModelKeys:
    """The shape of a line's model, with a vocabulary padded to a multiple; queues of experts are even and drop none."""
    slices, mixture = slices_of(line), dict[str, Any]()
    if line.get("experts"):
        mixture = {"kind": "mixture", "experts": int(line["experts"]) * slices,
                   "experts_per_token": int(line["experts_chosen"]) * slices,
                   "inner": int(line["expert_inner"]) // slices,
                   "capacity_factor": 1.0, "queue_tokens": int(line["sequence"]) // pieces_of(line)}
    return ModelKeys(**{
        "kind": "transformer", "architecture": "llama", "layers": int(line["layers"]), "width": int(line["width"]),
        "heads": int(line["heads"]), "key_value_heads": int(line.get("kv_heads") or 0),
        "inner": int(line.get("inner") or 0), "vocabulary": -(-int(line["vocabulary"]) // multiple) * multiple,
        "sequence": int(line["sequence"]), **mixture, **keys_of(line, "model")})


def root_unit(blocks: int) -> tuple[tuple[int, ...], ...]:
    """The layers of each FSDP unit: each block is a unit, and embedding and head together are the root unit.

    >>> root_unit(2)
    ((0, 3), (1,), (2,))
    """
    return (0, blocks + 1), *((block,) for block in range(1, blocks + 1))


def of_pieces(layers: int, pieces: int, *, rest: bool = False) -> tuple[int, ...]:
    """The layers of each piece of a pipeline, embedding and head included, as Megatron-LM cuts them.

    Blocks are divided evenly, with the embedding and the head beside those of the ends; if that fails, the embedding
    and the head count as blocks. Raises `ValueError` if that fails too. With `rest` the first pieces have an
    even share, rounded up, and the last ones what is left.

    >>> of_pieces(6, 3), of_pieces(4, 3), of_pieces(4, 3, rest=True)
    ((3, 2, 3), (2, 2, 2), (3, 2, 1))
    """
    if pieces == 1:
        return ()
    if rest:
        most = -(-layers // pieces)
        blocks = [min(most, max(layers - number * most, 0)) for number in range(pieces)]
        return (blocks[0] + 1, *blocks[1:-1], blocks[-1] + 1)
    if layers % pieces and (layers + 2) % pieces:
        raise ValueError(f"layers: {pieces} pieces do not divide {layers} blocks")
    if layers % pieces:
        return ((layers + 2) // pieces,) * pieces
    each = layers // pieces
    return (each + 1, *(each for _ in range(pieces - 2)), each + 1)


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


def shipped(name: str) -> Path:
    """A table of runs beside this file."""
    return Path(__file__).parent / "tables" / name


def lines_of(path: Path) -> list[dict[str, str]]:
    """The lines of a table of runs. Raises `UsageError` for anything else, and for a table without runs."""
    try:
        found = list(csv.DictReader(path.read_text("utf-8").splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: no file of published runs: {getattr(error, 'strerror', '') or error}") from error
    if not found:
        raise UsageError(f"{path}: found no run; give CSV with a line of columns and a line for each figure")
    return found
