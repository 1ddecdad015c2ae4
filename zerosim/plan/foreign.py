"""Readers of other projects' configurations: Hugging Face's `config.json`, DeepSpeed's JSON, Accelerate's FSDP keys.

Each reader lists the keys that it does not read, so that a plan does not look more complete than it is. JSON is data;
nothing in it is executed.
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from zerosim.core.errors import ScenarioError, UsageError, did_you_mean
from zerosim.core.files import read_whole, reason
from zerosim.scenario import Scenario
from zerosim.scenario.reading import OVERRIDE, kind_of, value_of
from zerosim.scenario.values import shown, within, words

Document = Mapping[str, Any]


@dataclass
class ForeignKeys:
    """The scenario keys that a file gives, and the keys of the file that have no counterpart in a scenario."""

    file: str
    """The flag and the file, as errors name them."""
    keys: dict[str, Any] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    """The file's names of scenario keys."""

    def take(self, found: Document, name: str, key: str, made: Callable[[Any], Any] = lambda value: value) -> None:
        """Read one key if it is present; the scenario decides about "auto", as the trainer does for DeepSpeed."""
        if name not in found or found[name] == "auto":
            return
        try:
            self.keys[key] = value_of(Scenario, key, made(found[name]))
        except (UsageError, ScenarioError, TypeError):
            raise self.wrong(found, name, allowed_in(key)) from None
        self.names[key] = name

    def counted(self, found: Document, name: str, usual: int) -> int:
        """The whole number above 0 that the file has for a key, or the usual one."""
        value = found.get(name, usual)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(found, name, "a whole number above 0")
        return value

    def wrong(self, found: Document, name: str, allowed: str) -> UsageError:
        """The error for the value of a key of the file, or for its absence; it names a key that was mistyped."""
        mistyped = next((f"; {each} is not known" for each in found if did_you_mean(name, [each], alike=ALIKE)), "")
        what = "found none" if name not in found else "found true or no value" if found[name] is True else (
            f"found {shown(found[name])}")
        return UsageError(f"{self.file}: {name} must be {allowed}, {what}{mistyped * (name not in found)}")

    def section(self, found: Document, name: str) -> Document:
        """A table of the file; empty if there is none."""
        value = found.get(name) or {}
        if not isinstance(value, dict):
            raise self.wrong(found, name, "a table of keys")
        return value

    def leave(self, name: str, known: Iterable[str] = (), value: Any = None) -> None:
        """List a key that is not read, with the key among those `known` that was perhaps meant."""
        near = did_you_mean(name, known, alike=ALIKE)
        self.unread.append(f"{name}{'' if value is None else f' = {value}'}{near and f' ({near[2:]})'}")

    def in_its_words(self, error: ScenarioError) -> UsageError | None:
        """The error of a scenario that is about one of these keys, with the file's own name; None for any other."""
        what = str(error).removeprefix(f"{error.file}:{error.line}:{error.column}: ")
        name = self.names.get(re.match(r"[\w.]*", what)[0])  # type: ignore[index]
        return UsageError(f"{self.file}: {name}: {what}") if error.file == OVERRIDE and name else None


ALIKE = 0.85
"""How much a name is like the known one for which it is taken to be mistyped."""


def allowed_in(key: str) -> str:
    """The allowed values of a scenario's key, in words."""
    kind = kind_of(Scenario)
    for step in key.split("."):
        kind = within(kind, step) or kind
    return words(kind)


def document(path: str, flag: str) -> Document:
    """The JSON object in a file. Raises `UsageError` for anything else."""
    try:
        found = json.loads(read_whole(path))
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
    architectures = TABLES["hugging_face"]["architectures"]
    found = {name: value for name, value in document(path, "--model").items() if value is not None}
    kind = str(found.get("model_type", "none"))
    if kind not in architectures:
        raise UsageError(f"--model: {path} has model_type {kind!r}; zerosim has {', '.join(architectures)}. Write "
                         f"other models in Python (docs/extend.md)")
    read, experts = ForeignKeys(f"--model: {path}"), TABLES["hugging_face"]["experts"]
    read.keys |= {"model.kind": "transformer", "model.architecture": architectures[kind]}
    for key, names in TABLES["hugging_face"]["sizes"].items():
        name = next((name for name in names if name in found), names[0])
        if name not in found and key not in ("key_value_heads", "inner"):
            raise read.wrong(found, name, allowed_in(f"model.{key}"))
        read.keys[f"model.{key}"] = 0
        read.take(found, name, f"model.{key}")
    if kind not in experts:
        read.keys["model.tied_embeddings"] = kind == "gpt2"
        read.take(found, "tie_word_embeddings", "model.tied_embeddings")
    else:
        read.keys |= {"model.kind": "mixture", "model.capacity_factor": 1.0}
        for key, name in zip(("experts", "experts_per_token", "inner"), experts[kind], strict=True):
            read.take(found, name, f"model.{key}")
        beside_experts(read, found)
    size, width, heads = found.get("head_dim"), read.keys["model.width"], read.keys["model.heads"]
    if found.get("kv_lora_rank"):
        latents_of(read, found, "hugging_face")
    elif size is not None and size * heads != width:
        read.take(found, "head_dim", "model.head_size")
    leave_unplanned(read, found)
    return read


def leave_unplanned(read: ForeignKeys, found: Document) -> None:
    """List the features of a Hugging Face file that no plan has, and names that are perhaps mistyped."""
    table = TABLES["hugging_face"]
    known = [name for names in (*table["sizes"].values(), *table["experts"].values()) for name in names]
    known += [*table["beside_experts"], *table["latent"], *table["others"]]
    for name, value in found.items():
        if name not in known and did_you_mean(name, known, alike=ALIKE):
            read.leave(name, known, value)
    read.unread += [f"{name} = {found[name]}" for name in table["unplanned"]
                    if (found.get(name) or "softmax") != "softmax"]


def beside_experts(read: ForeignKeys, found: Document) -> None:
    """Read the perceptrons beside a mixture's experts, and those of its first blocks."""
    for name, key in TABLES["hugging_face"]["beside_experts"].items():
        read.take(found, name, f"model.{key}")
    if "n_shared_experts" in found:
        read.keys["model.shared_inner"] = read.counted(found, "n_shared_experts", 1) * read.keys["model.inner"]
    if read.keys.get("model.dense_layers"):
        read.take(found, "intermediate_size", "model.dense_inner")


def latents_of(read: ForeignKeys, found: Document, project: str) -> None:
    """Read the sizes of latent attention; values are as wide as the part of keys that positions leave."""
    for name, key in TABLES[project]["latent"].items():
        if found.get(name) is not None:
            read.take(found, name, f"model.{key}")
    read.keys.pop("model.key_value_heads", None)
    if found.get("v_head_dim", read.keys.get("model.head_size")) != read.keys.get("model.head_size"):
        read.unread.append(f"v_head_dim = {found['v_head_dim']}")


def deepspeed(path: str, ranks: int) -> ForeignKeys:
    """The [train] and [parallel] of a DeepSpeed configuration, on `ranks` ranks with micro-batches of their own. Raises
    `UsageError` for wrong values."""
    found, table = document(path, "--ds-config"), TABLES["deepspeed"]
    read = ForeignKeys(f"--ds-config: {path}")
    zero = read.section(found, "zero_optimization")
    stage = zero.get("stage", 0)
    if stage not in (0, 1, 2, 3):
        raise UsageError(f"--ds-config: {path} has zero_optimization.stage {stage!r}; give 0, 1, 2 or 3")
    read.keys["parallel.stages"] = [table["stages"][int(stage)]]
    read.take(found, "train_micro_batch_size_per_gpu", "train.micro_batch")
    read.take(found, "gradient_accumulation_steps", "train.micro_batches", lambda value: value * ranks)
    read.take(found, "gradient_clipping", "train.clip_norm")
    for name in ("fp16", "bf16"):
        if read.section(found, name).get("enabled"):
            read.keys["train.precision"] = name
    read.take(zero, "overlap_comm", "parallel.overlap")
    read.take(zero, "zero_hpz_partition_size", "parallel.secondary_ranks", more_than_one)
    read.take(zero, "mics_shard_size", "parallel.shard_ranks", more_than_one)
    if stage == 3 and zero.get("stage3_prefetch_bucket_size", 1):
        read.keys["parallel.prefetch"] = True
    if stage == 3 and zero.get("zero_quantized_weights"):
        read.keys["parallel.quantized_weights"] = "int8"
    for name, key in table["offloaded"].items():
        place = read.section(zero, name).get("device", "none")
        if place in table["tiers"] and (stage == 3 or name == "offload_optimizer"):
            read.keys[key] = table["tiers"][place]
        elif place != "none":
            read.leave(f"zero_optimization.{name}")
    for name in zero:
        if name not in table["read_of_zero"] and zero[name]:
            read.leave(f"zero_optimization.{name}", [f"zero_optimization.{each}" for each in table["read_of_zero"]])
    optimizer_of(read.section(found, "optimizer"), read)
    for name in found:
        if name not in table["read"]:
            read.leave(name, table["read"])
    return read


def optimizer_of(value: Document, read: ForeignKeys) -> None:
    """Read the optimizer of a DeepSpeed configuration; as in DeepSpeed, Adam is AdamW by default."""
    kind, known = str(value.get("type", "auto")).lower(), TABLES["deepspeed"]["optimizers"]
    if kind == "auto":
        return
    params = read.section(value, "params")
    if kind not in known:
        read.leave("optimizer.type", value=value["type"])
        return
    decoupled = kind == "adam" and params.get("adam_w_mode", True)
    read.keys["train.optimizer"] = "adamw" if decoupled else known[kind]


def fsdp(path: str, ranks: int, per_host: int) -> ForeignKeys:
    """The [parallel] of FSDP keys of Accelerate or Hugging Face, with or without prefix fsdp_, on hosts of `per_host`.

    They stand at the top of the file, in its table `fsdp_config`, or in both, of which the top is read.
    `reshard_after_forward` is true or false, or a strategy, as in Accelerate's keys of FSDP1. Raises `UsageError` for
    other strategies and wrong values.
    """
    read, strategies = ForeignKeys(f"--fsdp-config: {path}"), TABLES["fsdp"]["strategies"]
    top = document(path, "--fsdp-config")
    everything = [*read.section(top, "fsdp_config").items(), *top.items()]
    found = {name.removeprefix("fsdp_"): value for name, value in everything}
    if isinstance(found.get("reshard_after_forward"), str):
        found.setdefault("sharding_strategy", found.pop("reshard_after_forward"))
    strategy = str(found.get("sharding_strategy", "FULL_SHARD")).upper()
    if strategy not in strategies:
        raise UsageError(f"--fsdp-config: {path} has sharding_strategy {strategy}; give {', '.join(strategies)}")
    stage, reshard, hybrid = strategies[strategy]
    read.keys["parallel.stages"] = [stage]
    if stage == "zero3":
        read.keys["parallel.reshard_after_forward"] = reshard
        read.take(found, "reshard_after_forward", "parallel.reshard_after_forward")
        prefetches = str(found.get("backward_prefetch", "BACKWARD_PRE")).upper() != "NO_PREFETCH"
        read.keys |= {"parallel.overlap": True,
                      "parallel.prefetch": prefetches and read.keys["parallel.reshard_after_forward"]}
    if hybrid and ranks > per_host:
        read.keys["parallel.shard_ranks"] = per_host
    read.take(found, "activation_checkpointing", "parallel.recompute")
    if found.get("offload_params") and stage == "zero3":
        read.keys |= dict.fromkeys(TABLES["deepspeed"]["offloaded"].values(), "host")
    for name, value in found.items():
        if name not in TABLES["fsdp"]["read"] and value:
            read.leave(name, TABLES["fsdp"]["read"])
    return read


def more_than_one(value: Any) -> Any:
    """The number of ranks that share; 0 for DeepSpeed's 1 and -1, which mean no sharing."""
    return 0 if value in (-1, 1) else value
