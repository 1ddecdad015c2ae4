"""Published runs of FSDP as scenarios: what each row of `tests/published/mpt.csv` trained, and how fast."""

import csv
from dataclasses import dataclass
from pathlib import Path

from zerosim.scenario.schema import Cluster, Model, Parallel, Scenario, Train, World

FILE = Path(__file__).parent / "published" / "mpt.csv"
SHAPES = {
    "125m": (768, 12, 12), "350m": (1024, 16, 24), "760m": (1536, 12, 24), "1b": (2048, 16, 24), "3b": (2560, 20, 32),
    "7b": (4096, 32, 32), "13b": (5120, 40, 40), "30b": (7168, 56, 48), "70b": (8192, 64, 80),
}
"""Width, heads and layers."""
BETWEEN = {"a100_40gb": "roce_8x200", "a100_80gb": "roce_8x200", "h100_80gb": "infiniband_8x400"}


@dataclass(frozen=True)
class PublishedRun:
    name: str
    device: str
    precision: str
    scenario: Scenario
    mfu: float
    tokens_per_second: float


def published_runs():
    with FILE.open(newline="") as lines:
        return [read(row) for row in csv.DictReader(lines)]


def read(row):
    width, heads, layers = SHAPES[row["model"]]
    devices, accumulation = int(row["devices"]), int(row["accumulation"])
    blocks = tuple(range(1, layers + 1)) if row["activation_checkpointing"] == "True" else False
    sharded = row["sharding"] == "FULL_SHARD"
    scenario = Scenario(
        world=World(devices),
        model=Model(
            kind="transformer", layers=layers, width=width, heads=heads, vocabulary=50368,
            sequence=int(row["sequence"]), tied_embeddings=True,
        ),
        train=Train(
            micro_batch=int(row["micro_batch"]), micro_batches=devices * accumulation, optimizer="adamw",
            precision="bf16",
        ),
        parallel=Parallel(
            stages=("zero3",), recompute=blocks, prefetch=sharded, overlap=True, reshard_after_forward=sharded,
            accumulation="micro_batch", reduce_dtype="weights" if row["precision"] == "bf16" else "fp32",
        ),
        cluster=Cluster(device=row["device"], between=BETWEEN[row["device"]], kernels="fused"),
    )
    name = f"{row['model']} on {devices} {row['device']}, {row['sequence']} × {row['micro_batch']} × {accumulation}"
    return PublishedRun(
        name, row["device"], row["precision"], scenario,
        float(row["mfu_percent"]) / 100, float(row["tokens_per_second_per_device"]),
    )
