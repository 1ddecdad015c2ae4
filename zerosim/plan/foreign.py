"""Readers of other projects' files: Hugging Face's `config.json`, DeepSpeed's JSON, Accelerate's JSON or YAML.

`foreign.toml` has a table for each project, with the key of a scenario for each of its names; what follows from several
names together is here. Names that are not read are listed, so that a plan does not look more complete than it is.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from math import prod
from typing import Any

from zerosim.core.errors import ScenarioError, UsageError
from zerosim.core.files import content, reason
from zerosim.scenario import Scenario
from zerosim.scenario.reading import OVERRIDE, kind_of, value_of
from zerosim.scenario.values import shown, within, words

TABLES: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    resources.files("zerosim.plan").joinpath("foreign.toml").read_text("utf-8"))
"""The names and keys of each project."""


@dataclass
class ForeignKeys:
    """The scenario keys that a file gives, and the settings of the file that have no counterpart in a scenario."""

    file: str
    """The flag and the file, as errors name them."""
    settings: dict[str, Any]
    """The values of the file by name; those of a table within have its name and a dot before theirs."""
    keys: dict[str, Any] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    chosen: list[str] = field(default_factory=list)
    """What was chosen where the file leaves a choice, in words."""
    names: dict[str, str] = field(default_factory=dict)
    """The file's names of scenario keys."""

    def take(self, name: str, key: str, counterparts: Mapping[str, Any] | None = None) -> None:
        """Read a setting if it is present; the scenario decides about "auto" and -1, as the trainer does for DeepSpeed.

        If it has `counterparts`, it stands for one of these; a value without one is not read.
        """
        value = self.settings.get(name, "auto")
        if value in ("auto", -1):
            return
        if counterparts is not None and (value := counterparts.get(str(value).lower())) is None:
            self.leave(name)
            return
        try:
            self.keys[key] = value_of(Scenario, key, value)
        except ScenarioError:
            raise self.wrong(name, key) from None
        self.names[key] = name

    def wrong(self, name: str, key: str) -> UsageError:
        """The error for the value of a setting, or for its absence, by the key that it has."""
        kind = kind_of(Scenario)
        for step in key.split("."):
            kind = within(kind, step) or kind
        given = shown(self.settings[name]) if name in self.settings else "none"
        return UsageError(f"{self.file}: {name} must be {words(kind)}, found {given}")

    def leave(self, name: str) -> None:
        """List a setting that is not read, unless it switches something off."""
        if self.settings[name] not in (None, False, 0, "", "none"):
            self.unread.append(f"{name} = {self.settings[name]}")

    def in_its_words(self, error: ScenarioError) -> UsageError | None:
        """The error of a scenario that is about one of these keys, with the file's own name; None for any other."""
        what = str(error).removeprefix(f"{error.file}:{error.line}:{error.column}: ")
        name = self.names.get(re.match(r"[\w.]*", what)[0])  # type: ignore[index]
        return UsageError(f"{self.file}: {name}: {what}") if error.file == OVERRIDE and name else None


HUB = re.compile(r"[\w.-]+/[\w.-]+(?<!\.json)")
"""A name of the Hugging Face hub."""


def settings_in(table: Mapping[str, Any], path: str, flag: str) -> ForeignKeys:
    """The settings in a file of the project that `table` describes; `UsageError` for a file without an object."""
    try:
        text = content(path)
        document = of_yaml(text.decode()) if path.endswith((".yaml", ".yml")) else json.loads(text)
    except OSError as error:
        mend = (f"if it is a name of the Hugging Face hub, fetch its file with `hf download {path} config.json "
                "--local-dir .` and use --model config.json" if flag == "--model" and HUB.fullmatch(path)
                else "name a JSON file")
        raise UsageError(f"{flag}: cannot read {path}: {reason(error)}; {mend}") from None
    except (ValueError, RecursionError):
        kind = "JSON, nor the YAML that `accelerate config` writes" if path.endswith(("yaml", "yml")) else "JSON"
        raise UsageError(f"{flag}: {path} is not {kind}; give the other project's configuration file") from None
    if not isinstance(document, dict):
        raise UsageError(f"{flag}: {path} has no JSON object; give the other project's configuration file")
    settings = sorted(settings_of(document), key=lambda setting: "." not in setting[0])     # the file's own come last
    return ForeignKeys(f"{flag}: {path}", {
        re.sub(table.get("prefix", "^"), "", name): value for name, value in settings})


def of_yaml(text: str) -> dict[str, Any]:
    """The YAML that `accelerate config` writes: keys with scalars, and tables of such keys; else raises `ValueError`.

    >>> of_yaml("a: 'no'\\nfsdp_config:\\n  fsdp_version: 2\\n  fsdp_offload_params: false")
    {'a': 'no', 'fsdp_config': {'fsdp_version': 2, 'fsdp_offload_params': False}}
    """
    document, table = dict[str, Any](), dict[str, Any]()
    for line in text.splitlines():
        content = re.sub(r"(^|\s)#.*|^---", "", line).rstrip()
        match = re.fullmatch(r"( *)([\w.]+): *([^\[\]{}&*!|>]*|{})", content)
        if content and match is None:
            raise ValueError(content)
        if match is None:
            continue
        indent, name, word = match.groups()
        literal = word.lower() in ("true", "false", "null") or re.fullmatch(r"-?\d+(\.\d+)?", word)
        value: Any = json.loads(word.lower()) if literal else word.strip("'\"")
        if not indent and word in ("", "{}"):
            value = table = {}
        (table if indent else document)[name] = value
    return document


def read_by(table: Mapping[str, Any], path: str, flag: str) -> ForeignKeys:
    """The settings in a file, with those read that have a key of their own; those without an effect on a plan are
    dropped, and others listed. Raises `UsageError` for wrong values."""
    read = settings_in(table, path, flag)
    read.settings = {name: value for name, value in read.settings.items() if value is not None}
    for name, key in table["keys"].items():
        read.take(name, key, table.get("counterparts", {}).get(name))
    for name in read.settings:
        if name not in table["keys"] and not any(f"{name}.".startswith(f"{other}.") for other in table["no_effect"]):
            read.leave(name)
    return read


def settings_of(document: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a document with their names, those of tables within it included.

    >>> dict(settings_of({"stage": 3, "offload": {"device": "cpu"}}))
    {'stage': 3, 'offload.device': 'cpu'}
    """
    for name, value in document.items():
        yield from settings_of(value, f"{before}{name}.") if isinstance(value, dict) else [(before + name, value)]


USUAL_SEQUENCE = 4096
"""The tokens of a sequence that a plan has if only the model's greatest length is known."""


def hugging_face(path: str) -> ForeignKeys:
    """The [model] of a Hugging Face `config.json`, by its family; the sequence has at most 4,096 tokens.

    Raises `UsageError` for a family that is not in the table, and for a missing size.
    """
    table = TABLES["hugging_face"]
    read = settings_in(table, path, "--model")
    kind, family = family_of(read, path)
    given = {**family.get("usual", {}), **read.settings}
    read.settings = settings = {name: value for name, value in given.items() if value is not None}
    keys = read.keys
    for name, key in table["keys"].items():
        if name not in family.get("has_no", []):
            read.take(name, key)
    for key in table["required"]:
        if key not in keys:
            raise read.wrong(next(name for name, same in table["keys"].items() if same == key), key)
    refuse_misread(read, kind, family, given)
    if keys["model.sequence"] > USUAL_SEQUENCE:
        read.chosen.append(f"sequences of {USUAL_SEQUENCE:,} tokens, of at most {keys['model.sequence']:,}: set "
                           "model.sequence to yours")
        keys["model.sequence"] = USUAL_SEQUENCE
    keys |= {"model.kind": "transformer", "model.architecture": family.get("architecture", "llama"),
             "model.key_value_heads": 0 if keys.get("model.latent") else keys.get("model.key_value_heads", 0),
             "model.inner": keys.get("model.inner", 0)}
    keys.setdefault("model.tied_embeddings", False)
    if "model.experts" in keys:
        shared_and_dense(read, family)
    # With a latent, values are as wide as the part of keys that positions leave.
    if "head_dim" not in family.get("has_no", []) and not keys.get("model.latent"):
        read.take("head_dim", "model.head_size")
        if keys.get("model.head_size", 0) * keys["model.heads"] == keys["model.width"]:
            del keys["model.head_size"]
    count_unused(read, family)
    if not settings.get("use_sliding_window", True):
        settings.pop("sliding_window", None)
    for name, usual in table["unplanned"].items():
        if settings.get(name, usual and usual[0]) not in usual and name in settings:
            read.leave(name)
        elif any(other.startswith(f"{name}.") for other in settings):
            read.unread.append(name)
    return read


def family_of(read: ForeignKeys, path: str) -> tuple[str, Mapping[str, Any]]:
    """The model_type of a file, or of its text model, and its family. Raises `UsageError` for one not in the table."""
    families, settings = TABLES["hugging_face"]["families"], read.settings
    kinds = [str(settings[name]) for name in ("model_type", "text_config.model_type") if settings.get(name)]
    kind = next((kind for kind in kinds if kind in families), kinds[0] if kinds else "none")
    if kind not in families:
        raise UsageError(f"--model: {path} has model_type {kind!r}; zerosim has {', '.join(families)}. "
                         "Write other models in Python (docs/extend.md)")
    return kind, families[families[kind].get("as", kind)]


def refuse_misread(read: ForeignKeys, kind: str, family: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise `UsageError` for a file whose parameters would not be those of its class."""
    for name in family.get("needs", ["intermediate_size"]):
        if name not in given:
            raise UsageError(f"{read.file}: model_type {kind!r} needs {name}; add it, as its class has it")
    for name, usual in family.get("only", {}).items():
        if read.settings.get(name) not in (None, read.settings.get(usual) if isinstance(usual, str) else usual):
            raise UsageError(f"{read.file}: {name} = {read.settings[name]} adds parameters that zerosim has not in "
                             f"{kind!r}; it must be {usual}. Write other models in Python (docs/extend.md)")


def shared_and_dense(read: ForeignKeys, family: Mapping[str, Any]) -> None:
    """Read a mixture's shared experts, and its blocks without experts as if they came first."""
    keys, settings = read.keys, read.settings
    keys |= {"model.kind": "mixture", "model.capacity_factor": 1.0}
    if settings.get("n_shared_experts"):
        read.take("n_shared_experts", "model.shared_inner")
        keys["model.shared_inner"] *= keys["model.inner"]
    every, alone = settings.get("decoder_sparse_step", 1), settings.get("mlp_only_layers", [])
    if family.get("some_dense") and (every != 1 or alone):
        dense = [layer for layer in range(keys["model.layers"]) if layer in alone or (layer + 1) % every]
        keys["model.dense_layers"] = len(dense)
        if dense != [*range(len(dense))]:
            read.chosen.append(f"the {len(dense)} blocks without experts come first")
    if keys.get("model.dense_layers"):
        if "intermediate_size" not in settings:
            raise read.wrong("intermediate_size", "model.dense_inner")
        read.take("intermediate_size", "model.dense_inner")
    if family.get("biased_routers"):
        count = keys["model.experts"] * (keys["model.layers"] - keys.get("model.dense_layers", 0))
        read.chosen.append(f"the {count:,} biases of routers, which no gradient trains, are not counted")


def count_unused(read: ForeignKeys, family: Mapping[str, Any]) -> None:
    """Count the parameters of a block that have no product: norms of queries and keys, biases, further norms."""
    table, keys = TABLES["hugging_face"], read.keys
    names = [*family.get("unused", []), *(
        name for setting, some in family.get("if", {}).items() if read.settings.get(setting) for name in some)]
    width, heads, experts = keys["model.width"], keys["model.heads"], keys.get("model.experts", 0)
    head = keys.get("model.head_size") or width // heads
    inner = keys["model.inner"]
    sizes = {"width": width, "heads": heads, "head": head, "queries": heads * head, "inner": inner, "experts": experts,
             "keys": (keys["model.key_value_heads"] or heads) * head, "inner of experts": experts * inner,
             "width of experts": experts * width}
    unused = [sum(times * sizes[size] for name in names for size, times in table[part].get(name, {}).items())
              for part in ("unused", "unused_experts")]
    if any(unused):
        keys["model.unused_parameters"] = unused[:1] if not unused[1] else unused


DEEPSPEED_BUCKET, DEEPSPEED_LIVE = 500_000_000, 1_000_000_000
"""The elements of a bucket of gradients, and of gathered parameters, where a file says nothing: deepspeed 0.19,
runtime/zero/config.py."""


def deepspeed(path: str, ranks: int) -> ForeignKeys:
    """The [train] and [parallel] of a DeepSpeed configuration on `ranks` data ranks; `UsageError` for wrong values."""
    table = TABLES["deepspeed"]
    read = read_by(table, path, "--ds-config")
    settings, keys = read.settings, read.keys
    if given := settings.get("zero_optimization"):
        raise UsageError(f"{read.file}: zero_optimization must be a table of keys, found {given}")
    stage = settings.get("zero_optimization.stage", 0)
    if repr(stage) not in table["stages"]:
        raise UsageError(f"--ds-config: {path} has zero_optimization.stage {stage!r}; give 0, 1, 2 or 3")
    keys |= table["stages"][repr(stage)]
    share_batch(read, ranks)
    for name in ("parallel.secondary_ranks", "parallel.shard_ranks"):
        if keys.get(name) == 1:         # which shares nothing
            keys[name] = 0
    if str(settings.get("optimizer.type")).lower() == "adam" and settings.get("optimizer.params.adam_w_mode", True):
        keys["train.optimizer"] = "adamw"
    bucket = settings.get("zero_optimization.reduce_bucket_size", DEEPSPEED_BUCKET)
    if stage and isinstance(bucket, int):
        keys["cluster.bucket_elements"] = bucket
    if stage == 3:
        live = settings.get("zero_optimization.stage3_max_live_parameters", DEEPSPEED_LIVE)
        if isinstance(live, int | float):
            keys["cluster.live_parameters"] = int(live)
        if settings.get("zero_optimization.stage3_prefetch_bucket_size", 1):
            keys["parallel.prefetch"] = True
    else:
        for name in ("zero_optimization.offload_param.device", "zero_optimization.zero_quantized_weights"):
            if keys.pop(table["keys"][name], None):
                read.leave(name)
    return read


def share_batch(read: ForeignKeys, ranks: int) -> None:
    """Read the number of micro-batches of all ranks; a size that is not given follows from the whole batch."""
    keys, batch, sizes = read.keys, read.settings.get("train_batch_size"), ("train.micro_batch", "train.micro_batches")
    if isinstance(batch, int) and (missing := [key for key in sizes if key not in keys]):
        keys[missing[0]], rest = divmod(batch, ranks * prod(keys.get(key, 1) for key in sizes))
        keys.setdefault("train.micro_batches", 1)
        if rest or batch < 1:
            raise UsageError(f"{read.file}: {ranks} ranks cannot share train_batch_size {batch}; change --ranks")
    if "train.micro_batches" in keys:
        keys["train.micro_batches"] *= ranks


def fsdp(path: str, ranks: int, per_host: int) -> ForeignKeys:
    """The [parallel] of FSDP keys of Accelerate or Hugging Face, with or without prefix fsdp_, on hosts of `per_host`.

    They stand at the top of the file, in its table `fsdp_config`, or in both, of which the top is read.
    `reshard_after_forward` is true or false, or a strategy, as in Accelerate's keys of FSDP1. Raises `UsageError` for
    other strategies and wrong values.
    """
    table = TABLES["fsdp"]
    read = read_by(table, path, "--fsdp-config")
    settings, keys = read.settings, read.keys
    if (trainer := settings.get("distributed_type", "FSDP")) != "FSDP":
        raise UsageError(f"{read.file}: distributed_type is {trainer}, and not FSDP; for DEEPSPEED give its own JSON "
                         "with --ds-config")
    reshards = settings.get("reshard_after_forward")
    strategy = str(settings.get("sharding_strategy", reshards if isinstance(reshards, str) else "FULL_SHARD")).upper()
    if strategy not in table["strategies"]:
        raise UsageError(f"--fsdp-config: {path} has sharding_strategy {strategy}; give "
                         f"{', '.join(table['strategies'])}")
    stage, reshard, hybrid = table["strategies"][strategy]
    keys["parallel.stages"] = [stage]
    if stage == "zero3":
        keys |= {"parallel.reshard_after_forward": reshard, "parallel.overlap": True}
        if not isinstance(reshards, str):
            read.take("reshard_after_forward", "parallel.reshard_after_forward")
        prefetches = str(settings.get("backward_prefetch", "BACKWARD_PRE")).upper() != "NO_PREFETCH"
        keys["parallel.prefetch"] = prefetches and keys["parallel.reshard_after_forward"]
        if settings.get("offload_params"):
            keys |= {"parallel.offload_optimizer": "host", "parallel.offload_parameters": "host"}
    if settings.get("sync_each_batch") and stage != "ddp":
        keys["parallel.accumulation"] = "micro_batch"
    elif stage == "zero3":
        read.chosen.append("whole gradients until the last micro-batch, as Accelerate and Transformers accumulate "
                           "under no_sync: with sync_each_batch, or FSDP alone, set parallel.accumulation to "
                           "micro_batch")
    if hybrid and ranks > per_host:
        keys["parallel.shard_ranks"] = per_host
    return read
