"""Readers of other projects' configurations: Hugging Face's `config.json`, DeepSpeed's JSON, Accelerate's FSDP keys.

Each reader lists the keys that it does not read, so that a plan does not look more complete than it is. JSON is data;
nothing in it is executed.
"""

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from zerosim.errors import UsageError
from zerosim.files import read_at_most, reason
from zerosim.scenario.positions import MOST_BYTES

Document = Mapping[str, Any]


@dataclass
class ForeignKeys:
    """The scenario keys that a file gives, and the keys of the file that have no counterpart in a scenario."""

    keys: dict[str, Any] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)


def document(path: str, flag: str) -> Document:
    """The JSON object in a file. Raises `UsageError` for anything else."""
    try:
        found = json.loads(read_at_most(path, MOST_BYTES))
    except OSError as error:
        raise UsageError(f"{flag}: cannot read {path}: {reason(error)}; name a JSON file") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{flag}: {path} is not JSON; give the other project's configuration file") from None
    if not isinstance(found, dict):
        raise UsageError(f"{flag}: {path} has no JSON object; give the other project's configuration file")
    return found


TABLES: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    resources.files("zerosim.plan").joinpath("foreign.toml").read_text("utf-8"))
"""The names and keys of each project."""


def hugging_face(path: str) -> ForeignKeys:
    """The [model] of a Hugging Face `config.json`; the sequence has its greatest length.

    Raises `UsageError` for a type of model that zerosim does not have, and for a missing size.
    """
    found, architectures = document(path, "--model"), TABLES["hugging_face"]["architectures"]
    kind = str(found.get("model_type", "none"))
    if kind not in architectures:
        raise UsageError(f"--model: {path} has model_type {kind!r}; zerosim has {', '.join(architectures)}. Write "
                         f"other models in Python (docs/extend.md)")
    read = ForeignKeys({"model.kind": "transformer", "model.architecture": architectures[kind]})
    for key, names in TABLES["hugging_face"]["sizes"].items():
        value = next((found[name] for name in names if found.get(name) is not None), None)
        if value is None and key in ("key_value_heads", "inner"):
            value = 0
        if isinstance(value, bool) or not isinstance(value, int):
            raise UsageError(f"--model: {path} has {names[0]} {value!r}; give a whole number")
        read.keys[f"model.{key}"] = value
    experts = TABLES["hugging_face"]["experts"].get(kind)
    if experts is None:
        read.keys["model.tied_embeddings"] = bool(found.get("tie_word_embeddings", kind == "gpt2"))
    else:
        read.keys |= {"model.kind": "mixture", "model.capacity_factor": 1.0}
        for key, name in zip(("experts", "experts_per_token", "inner"), experts, strict=True):
            take(read, found, name, f"model.{key}", count)
        for name, key in TABLES["hugging_face"]["beside_experts"].items():
            take(read, found, name, f"model.{key}", count)
    size, width, heads = found.get("head_dim"), read.keys["model.width"], read.keys["model.heads"]
    if size is not None and size * heads != width:
        take(read, found, "head_dim", "model.head_size", count)
    read.unread += [f"{name} = {found[name]}" for name in ("sliding_window", "attention_bias", "mlp_bias")
                    if found.get(name)]
    return read


def deepspeed(path: str, ranks: int) -> ForeignKeys:
    """The [train], [parallel] and [cluster] of a DeepSpeed configuration, on `ranks` ranks."""
    found, table = document(path, "--ds-config"), TABLES["deepspeed"]
    read, zero = ForeignKeys(), section(found, "zero_optimization")
    stage = zero.get("stage", 0)
    if stage not in (0, 1, 2, 3):
        raise UsageError(f"--ds-config: {path} has zero_optimization.stage {stage!r}; give 0, 1, 2 or 3")
    read.keys["parallel.stages"] = [table["stages"][int(stage)]]
    take(read, found, "train_micro_batch_size_per_gpu", "train.micro_batch", count)
    take(read, found, "gradient_accumulation_steps", "train.micro_batches", lambda value: count(value) * ranks)
    take(read, found, "gradient_clipping", "train.clip_norm", float)
    for name in ("fp16", "bf16"):
        if section(found, name).get("enabled"):
            read.keys["train.precision"] = name
    take(read, zero, "overlap_comm", "parallel.overlap", bool)
    take(read, zero, "zero_hpz_partition_size", "parallel.secondary_ranks", more_than_one)
    take(read, zero, "mics_shard_size", "parallel.shard_ranks", more_than_one)
    if stage == 3 and zero.get("stage3_prefetch_bucket_size", 1):
        read.keys["parallel.prefetch"] = True
    if stage == 3 and zero.get("zero_quantized_weights"):
        read.keys["parallel.quantized_weights"] = "int8"
    for name, key in table["offloaded"].items():
        place = section(zero, name).get("device", "none")
        if place in table["tiers"] and (stage == 3 or name == "offload_optimizer"):
            read.keys[key] = table["tiers"][place]
        elif place != "none":
            read.unread.append(f"zero_optimization.{name}")
    read.unread += [f"zero_optimization.{name}" for name in zero if name not in table["read_of_zero"] and zero[name]]
    optimizer_of(section(found, "optimizer"), read)
    read.unread += [name for name in found if name not in table["read"]]
    return read


def optimizer_of(value: Document, read: ForeignKeys) -> None:
    """Read the optimizer of a DeepSpeed configuration; as in DeepSpeed, Adam is AdamW by default."""
    kind = str(value.get("type", "auto")).lower()
    if kind == "auto":
        return
    params = section(value, "params")
    if kind not in TABLES["deepspeed"]["optimizers"]:
        read.unread.append(f"optimizer.type = {value['type']}")
        return
    decoupled = kind == "adam" and params.get("adam_w_mode", True)
    read.keys["train.optimizer"] = "adamw" if decoupled else TABLES["deepspeed"]["optimizers"][kind]


def fsdp(path: str, ranks: int, per_host: int) -> ForeignKeys:
    """The [parallel] and [cluster] of FSDP keys of Accelerate or Hugging Face, with or without prefix fsdp_."""
    found = {name.removeprefix("fsdp_"): value for name, value in document(path, "--fsdp-config").items()}
    found = {**section(found, "config"), **found}
    read, strategy = ForeignKeys(), str(found.get("sharding_strategy", "FULL_SHARD")).upper()
    strategies = TABLES["fsdp"]["strategies"]
    if strategy not in strategies:
        raise UsageError(f"--fsdp-config: {path} has sharding_strategy {strategy}; give {', '.join(strategies)}")
    stage, reshard, hybrid = strategies[strategy]
    read.keys["parallel.stages"] = [stage]
    if stage == "zero3":
        read.keys["parallel.reshard_after_forward"] = bool(found.get("reshard_after_forward", reshard))
        prefetches = str(found.get("backward_prefetch", "BACKWARD_PRE")).upper() != "NO_PREFETCH"
        read.keys |= {"parallel.overlap": True,
                      "parallel.prefetch": prefetches and read.keys["parallel.reshard_after_forward"]}
    if hybrid and ranks > per_host:
        read.keys["parallel.shard_ranks"] = per_host
    take(read, found, "activation_checkpointing", "parallel.recompute", bool)
    if found.get("offload_params") and stage == "zero3":
        read.keys |= dict.fromkeys(TABLES["deepspeed"]["offloaded"].values(), "host")
    read.unread += [name for name, value in found.items() if name not in TABLES["fsdp"]["read"] and value]
    return read


def section(found: Document, name: str) -> Document:
    value = found.get(name)
    return value if isinstance(value, dict) else {}


def count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"found {value!r}; give a whole number of at least 1")
    return value


def more_than_one(value: Any) -> int:
    """The number of ranks that share; 0 for DeepSpeed's 1 and -1, which mean no sharing."""
    return value if isinstance(value, int) and value > 1 else 0


def take(read: ForeignKeys, found: Document, name: str, key: str, made: Callable[[Any], Any]) -> None:
    """Read one key if it is present; the scenario decides about "auto", as the trainer does for DeepSpeed."""
    if name not in found or found[name] == "auto":
        return
    try:
        read.keys[key] = made(found[name])
    except (UsageError, TypeError, ValueError):
        raise UsageError(f"{name} is {found[name]!r}, which is not allowed; correct the file") from None
