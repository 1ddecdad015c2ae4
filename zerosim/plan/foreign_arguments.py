"""Megatron-LM's and NeMo's arguments and torchtitan's TOML: read, and written for a planned row.

    keys      names with one key of a scenario each, read and written by the same table of foreign.toml
    others    names that mean the same as another, or that several keys express

Megatron-LM and torchtitan count experts among data ranks, each with a micro-batch of its own. zerosim's expert ranks
share one, which is so many times as large. Megatron-LM's groups of experts lie over tensor and context ranks too; its
expert tensor ranks, which divide an expert, are read as ranks with whole experts of their own.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from math import prod
from typing import Any

from zerosim.core.errors import UsageError, did_you_mean
from zerosim.core.files import read_at_most, reason
from zerosim.core.words import toml
from zerosim.models.transformer import usual_inner
from zerosim.plan.foreign import ALIKE, TABLES, Document, ForeignKeys, latents_of
from zerosim.plan.planned_row import PlannedRow
from zerosim.scenario.conditions import NUMBERS_OF_RANKS
from zerosim.scenario.reading import MOST_BYTES
from zerosim.scenario.sections import Parallel, Train

SIZES = tuple(f"model.{name}" for name in ("layers", "width", "heads", "sequence", "vocabulary"))
"""The keys without which there is no model to plan."""


def megatron(path: str, ranks: int, due: Collection[str] = ()) -> ForeignKeys:
    """The [model], [train] and [parallel] of a file with arguments of Megatron-LM or keys of NeMo.

    `--hidden-size 4096`, `model.hidden_size=4096` and `hidden_size: 4096` mean the same. Raises `UsageError` for a file
    that cannot be read, for a wrong value, and for a file without one of the keys that are `due`.
    """
    read, others = ForeignKeys(f"--megatron-args: {path}"), TABLES["megatron"]["others"]
    said = dict(arguments(text_of(path, "--megatron-args")))
    given = {name: value for name, value in said.items() if value is not None}
    found = given | {others[name]: value for name, value in given.items() if others.get(name)}
    by_table(read, found, "megatron")
    for name, key in TABLES["megatron"]["keys"].items():
        if key in due and not read.keys.get(key):
            raise read.wrong(found, name, "a whole number above 0, here or in a scenario")
    gated = bool(found.get("swiglu")) or found.get("normalization") == "RMSNorm"
    tied = found.get("share_embeddings_and_output_weights", not found.get("untie_embeddings_and_output_weights"))
    kind = "mixture" if "model.experts" in read.keys else "transformer"
    read.keys |= {"model.kind": kind, "model.architecture": "llama" if gated else "gpt2",
                  "parallel.stages": [stage_of_megatron(read, found)],
                  "train.optimizer": "sgd" if found.get("optimizer") == "sgd" else "adamw",
                  "parallel.overlap": bool(found.get("overlap_grad_reduce")), "parallel.prefetch": False,
                  "parallel.recompute": found.get("recompute_granularity") == "full"}
    if kind == "transformer":
        read.keys["model.tied_embeddings"] = bool(tied)
    else:
        read.keys.setdefault("model.capacity_factor", 1.0)
        lay_experts(read, found)
        dense_blocks(read, given)
    if found.get("multi_latent_attention"):
        latents_of(read, found, "megatron")
    if not found.get("group_query_attention", True):
        read.keys.pop("model.key_value_heads", None)
    for name in ("fp16", "bf16"):
        if found.get(name) or name in str(found.get("precision")):
            read.keys["train.precision"] = name
    if found.get("recompute_granularity", "full") != "full":
        read.unread.append(f"recompute_granularity = {found['recompute_granularity']}")
    if read.keys.get("parallel.tensor_ranks", 1) > 1:
        read.keys["parallel.vocabulary_parallel"] = True
    if read.keys.get("parallel.model_chunks", 1) > 1:
        read.keys["parallel.schedule"] = "interleaved_1f1b"
    batch_of(read, found, ranks, read.counted(found, "micro_batch_size", 1), "global_batch_size")
    return read


def lay_experts(read: ForeignKeys, found: Document) -> None:
    """Read `expert_ranks`: Megatron-LM's ranks of experts over those ranks among them that share a sequence.

    A queue serves a rank's piece of it, as Megatron-LM's capacity counts the tokens of a rank. Raises `UsageError` if
    the former are no multiple of the latter.
    """
    tensor, context = (read.keys.get(f"parallel.{name}_ranks", 1) for name in ("tensor", "context"))
    cut = bool(read.keys.get("parallel.sequence_parallel"))
    pieces, divided = context * (tensor if cut else 1), read.counted(found, "expert_tensor_parallel_size", tensor)
    ranks = read.keys.get("parallel.expert_ranks", 1) * (divided if cut else 1)
    if ranks % pieces:
        raise UsageError(f"{read.file}: experts lie over {ranks} ranks, expert_model_parallel_size · "
                         f"expert_tensor_parallel_size, no multiple of the {pieces} tensor and context ranks with "
                         "pieces of a sequence; correct one")
    read.keys["parallel.expert_ranks"] = ranks // pieces
    if pieces > 1:
        read.keys["model.queue_tokens"] = read.keys.get("model.sequence", pieces) // pieces
    if divided > 1:
        read.unread.append(f"expert_tensor_parallel_size = {divided}")


def dense_blocks(read: ForeignKeys, given: Document) -> None:
    """Read the first blocks without experts, such as ([0]*3+[1]*58), of which `ffn_hidden_size` is the width."""
    pattern = str(given.get("moe_layer_freq", 1))
    first = re.fullmatch(r"\(?\[0\]\s*\*\s*(\d+)\s*\+\s*\[1\]\s*\*\s*\d+\)?", pattern)
    if first:
        read.keys["model.dense_layers"] = int(first[1])
        read.take(given, "ffn_hidden_size", "model.dense_inner")
    elif pattern != "1":
        read.unread.append(f"moe_layer_freq = {pattern}")


def stage_of_megatron(read: ForeignKeys, found: Document) -> str:
    """The stage by the name of its data parallelism. Raises `UsageError` for an unknown strategy of Megatron-FSDP."""
    strategies: Mapping[str, str] = TABLES["megatron"]["strategies"]
    if not found.get("use_megatron_fsdp"):
        return "zero1" if found.get("use_distributed_optimizer") else "ddp"
    name = "data_parallel_sharding_strategy"
    if found.get(name, "no_shard") not in strategies:
        raise read.wrong(found, name, ", ".join(strategies))
    return strategies[found.get(name, "no_shard")]


def torchtitan(path: str, ranks: int) -> ForeignKeys:
    """The [model], [train] and [parallel] of a job of torchtitan, up to 0.2, on `ranks` ranks."""
    try:
        tables = tomllib.loads(text_of(path, "--torchtitan"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"--torchtitan: {path} is not TOML: {error}; give the job's configuration") from None
    found = {f"{section}.{name}": value for section, keys in tables.items() if isinstance(keys, dict)
             for name, value in keys.items()}
    read, table = ForeignKeys(f"--torchtitan: {path}"), TABLES["torchtitan"]
    parts = {name.partition(".")[0] for name in (*table["keys"], *table["others"])}
    for name in parts & {*tables}:
        read.section(tables, name)
    read.keys["model.sequence"] = 2048
    by_table(read, found, "torchtitan", parts)
    read.keys["train.optimizer"] = str(found.get("optimizer.name", "AdamW")).lower()
    flavor = "_".join(str(found.get(f"model.{name}", "")) for name in ("name", "flavor"))
    if flavor not in table["flavors"]:
        name = next((name for name in ("model.name", "model.flavor") if name not in found), "model.flavor")
        raise read.wrong(found, name, f"one of those of {', '.join(table['flavors'])}, which are NAME_FLAVOR")
    names = ("layers", "width", "heads", "key_value_heads", "inner")
    read.keys |= dict(zip((f"model.{name}" for name in names), table["flavors"][flavor], strict=True)) | {
        "model.kind": "transformer", "model.architecture": "llama", "model.vocabulary": 128256}
    if read.keys.get("parallel.tensor_ranks", 1) > 1:
        read.keys |= {"parallel.sequence_parallel": True, "parallel.vocabulary_parallel": True}
    mode = found.get("activation_checkpoint.mode", "none")
    read.keys["parallel.recompute"] = mode == "full"
    if mode not in ("full", "none"):
        read.unread.append(f"activation_checkpoint.mode = {mode}")
    pipelined = read.keys.get("parallel.pipeline_ranks", 1) > 1
    replicas, shards = sharding_of_torchtitan(read, found, ranks, pipelined)
    if pipelined:
        schedule_of_torchtitan(read, found)
    local = read.counted(found, "training.local_batch_size", 8)
    each = read.counted(found, "parallelism.pipeline_parallel_microbatch_size", 1) if pipelined else local
    name = "training.global_batch_size"
    everything = {name: local * replicas * shards} if found.get(name, -1) == -1 else found
    batch_of(read, everything, ranks, each, name)
    return read


def sharding_of_torchtitan(read: ForeignKeys, found: Document, ranks: int, pipelined: bool) -> tuple[int, int]:
    """Read the stage; the copies of the weights, and the ranks that share one. A pipeline keeps gathered weights."""
    replicas = read.counted(found, "parallelism.data_parallel_replicate_degree", 1)
    name, rest = "parallelism.data_parallel_shard_degree", ranks // (product_of(read.keys) * replicas)
    shards = max(rest, 1) if found.get(name, -1) == -1 else read.counted(found, name, 1)
    reshards = found.get("parallelism.fsdp_reshard_after_forward", "default")
    stage = "ddp" if shards == 1 else "zero2" if pipelined else "zero3"
    gathers = stage == "zero3" and reshards != "never"
    read.keys |= {"parallel.stages": [stage], "parallel.overlap": True, "parallel.prefetch": gathers}
    if stage == "zero3":
        read.keys["parallel.reshard_after_forward"] = gathers
    if replicas > 1 and shards > 1:
        read.keys["parallel.shard_ranks"] = shards
    if pipelined and reshards == "always":
        read.unread.append("parallelism.fsdp_reshard_after_forward = always")
    if read.keys.get("parallel.context_ranks", 1) > 1 and shards > 1:
        read.unread.append("FSDP's shards over context ranks")
    return replicas, shards


def schedule_of_torchtitan(read: ForeignKeys, found: Document) -> None:
    """Read the schedule of a pipeline; an interleaved one has two chunks a rank."""
    schedules = TABLES["torchtitan"]["schedules"]
    schedule = str(found.get("parallelism.pipeline_parallel_schedule", "1F1B"))
    if schedule not in schedules:
        read.unread.append(f"parallelism.pipeline_parallel_schedule = {schedule}")
        return
    read.keys["parallel.schedule"] = schedules[schedule]
    if schedule == "Interleaved1F1B":
        read.keys["parallel.model_chunks"] = 2


def text_of(path: str, flag: str) -> str:
    """The text of a file in UTF-8. Raises `UsageError` if it cannot be read."""
    try:
        return read_at_most(path, MOST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{flag}: cannot read {path}: {reason(error)}; name a text file") from None


def arguments(text: str) -> Iterator[tuple[str, Any]]:
    """The names and values in a text of arguments; a flag without a value is true, and a section has none.

    Raises `UsageError` for an open quote.

    >>> dict(arguments("--hidden-size 64 --swiglu model.num_layers=2 # sizes")), dict(arguments("bf16: true"))
    ({'hidden_size': 64, 'swiglu': True, 'num_layers': 2}, {'bf16': True})
    """
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise UsageError(f"--megatron-args: a word of the arguments does not end: {error}; close the quotes") from None
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        valued = bool(words) and not re.match(r"--[a-z]|[\w.]+:$|[\w.]+=", words[0])
        if not equals and (word.startswith("--") or word.endswith(":")):
            value = words.pop(0) if valued else "true" if word.startswith("--") else ""
        if value and (equals or word.startswith("--") or word.endswith(":")):
            yield name.strip("-:").rpartition(".")[2].replace("-", "_"), parsed(value)


def parsed(value: str) -> Any:
    """A number, true, false, or the text itself."""
    try:
        return json.loads(value.lower())
    except ValueError:
        return value


def by_table(read: ForeignKeys, found: Document, project: str, parts: Collection[str] = ()) -> None:
    """Read the names that have one key each, and list those that are not read; of other `parts` only mistyped ones."""
    table = TABLES[project]
    for name, key in table["keys"].items():
        read.take(found, name, key)
    known = [*table["keys"], *table["others"]]
    for name, value in found.items():
        mine = not parts or name.partition(".")[0] in parts or did_you_mean(name, known, alike=ALIKE)
        if value and name not in known and mine:
            read.leave(name, known, value)


def product_of(keys: Mapping[str, Any]) -> int:
    """The ranks that train one copy of the model, but for experts."""
    return prod(keys.get(f"parallel.{each}_ranks", 1) for each in ("tensor", "context", "pipeline"))


def batch_of(read: ForeignKeys, found: Document, ranks: int, micro_batch: int, name: str) -> None:
    """Read the samples of a micro-batch and of a step; by default a step has one micro-batch on each data rank.

    Raises `UsageError` for a step that is no multiple of a micro-batch on all expert ranks.
    """
    experts = read.keys.get("parallel.expert_ranks", 1)
    each = micro_batch * experts
    everything = read.counted(found, name, micro_batch * max(ranks // product_of(read.keys), 1))
    if everything % each:
        raise UsageError(f"{read.file}: {name}, a batch of {everything} samples, is not a multiple of {each}, a "
                         f"micro-batch on {experts} expert ranks; correct the file")
    read.keys |= {"world.ranks": ranks, "train.micro_batch": each, "train.micro_batches": everything // each}


def configuration_for(row: PlannedRow, project: str) -> tuple[str, list[str]]:
    """The configuration of `project` that trains as the row does, and the row's keys that it cannot say.

    Raises `UsageError` for a stage, a schedule or a direction that the project does not have.
    """
    parallel, usual = row.config.parallel, Parallel()
    there = TABLES.get(project, {}).get("schedules", {}).values()
    if there and parallel.schedule not in there:
        raise UsageError(f"--write: {project} has no schedule {parallel.schedule}; plan {', '.join(there)}")
    changed = [each.name for each in fields(parallel) if getattr(parallel, each.name) != getattr(usual, each.name)]
    text, said = WRITERS[project](row)
    unsaid = [name for name in changed if name not in said and name not in TABLES["written"]["without_effect"]]
    for name in unsaid:
        if name in NUMBERS_OF_RANKS:
            raise UsageError(f"--write: {project} has no parallel.{name}; write one of "
                             f"{', '.join(each for each in WRITERS if each != project)}, or plan without it")
    return text, [f"parallel.{name}" for name in unsaid]


def to_megatron(row: PlannedRow) -> tuple[str, list[str]]:
    """Arguments of Megatron-LM, a line each."""
    found, parts, strategies = row.config, by_section(row), TABLES["megatron"]["strategies"]
    said = {name: parts[key] for name, key in TABLES["megatron"]["keys"].items() if key in parts}
    llama, sharded = found.keys.architecture == "llama", found.stage_key in ("zero2", "zero3")
    said |= {
        "swiglu": llama, "disable_bias_linear": llama, "group_query_attention": bool(found.keys.key_value_heads),
        "untie_embeddings_and_output_weights": not found.keys.tied_embeddings,
        "micro_batch_size": found.train.micro_batch // found.parallel.expert_ranks,
        "global_batch_size": row.config.samples, "use_distributed_optimizer": found.stage_key != "ddp",
        "overlap_grad_reduce": found.parallel.overlap, "use_megatron_fsdp": sharded,
        found.train.precision: found.train.precision in ("bf16", "fp16"),
    }
    if found.keys.kind == "mixture":
        said |= {"expert_model_parallel_size": row.config.model.task.parallel.tokens.size,
                 "expert_tensor_parallel_size": 1}
    if dense := found.keys.dense_layers * (found.keys.kind == "mixture"):
        usual = usual_inner(found.keys)
        said |= {"moe_layer_freq": f"'([0]*{dense}+[1]*{found.keys.layers - dense})'",
                 "ffn_hidden_size": found.keys.dense_inner or usual, "moe_ffn_hidden_size": found.keys.inner or usual}
    if found.keys.latent:
        size = found.keys.head_size or found.keys.width // found.keys.heads
        sizes = {name: getattr(found.keys, key) or None for name, key in TABLES["megatron"]["latent"].items()}
        said |= {"kv_channels": None, **sizes, "multi_latent_attention": True, "qk_head_dim": size, "v_head_dim": size}
    said |= {"normalization": "RMSNorm", "position_embedding_type": "rope"} if llama else {}
    said |= {"optimizer": "sgd" if found.train.optimizer == "sgd" else "adam"}
    if sharded:
        said["data_parallel_sharding_strategy"] = key_of(strategies, found.stage_key)
    if found.parallel.recompute is True:
        said |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    words = (f"--{name.replace('_', '-')}{'' if value is True else f' {value}'}" for name, value in said.items()
             if value not in (False, None))
    return "".join(f"{each}\n" for each in words), [
        *names_of("megatron"), "recompute", "vocabulary_parallel", "overlap"]


def to_torchtitan(row: PlannedRow) -> tuple[str, list[str]]:
    """A job of torchtitan in TOML; its model is a flavor of Llama 3."""
    found, parts, table = row.config, by_section(row), TABLES["torchtitan"]
    sizes = [getattr(found.keys, name) for name in ("layers", "width", "heads", "key_value_heads", "inner")]
    flavor = next((name for name, each in table["flavors"].items() if each == sizes), None)
    if flavor is None or found.keys.head_size:
        raise UsageError(f"--write: torchtitan has no flavor of these sizes; plan {', '.join(table['flavors'])}")
    parallel, pipelined = found.parallel, found.parallel.pipeline_ranks > 1
    group, each = parallel.group_of(found.ranks), found.train.micro_batch // parallel.expert_ranks
    ranks = found.ranks * parallel.expert_ranks
    name, _, size = flavor.partition("_")
    said = {key: parts[of] for key, of in table["keys"].items() if of in parts} | {
        "model.name": name, "model.flavor": size,
        "optimizer.name": "Adam" if found.train.optimizer == "adam" else "AdamW",
        "training.local_batch_size": row.config.samples // ranks if pipelined else each,
        "training.global_batch_size": row.config.samples,
        "parallelism.data_parallel_shard_degree": 1 if found.stage_key == "ddp" else group * parallel.expert_ranks,
        "parallelism.data_parallel_replicate_degree": ranks if found.stage_key == "ddp" else found.ranks // group,
        "activation_checkpoint.mode": "full" if parallel.recompute is True else "none"}
    if pipelined:
        said |= {"parallelism.pipeline_parallel_schedule": key_of(table["schedules"], parallel.schedule),
                 "parallelism.pipeline_parallel_microbatch_size": each}
    elif found.stage_key == "zero3":
        said["parallelism.fsdp_reshard_after_forward"] = "always" if parallel.reshard_after_forward else "never"
    tables: dict[str, dict[str, Any]] = {}
    for key, value in said.items():
        section, _, name = key.partition(".")
        tables.setdefault(section, {})[name] = value
    return toml(tables), [
        *names_of("torchtitan"), "recompute", "vocabulary_parallel", "sequence_parallel", "model_chunks", "shard_ranks",
        "replicas", "prefetch", "overlap", "reshard_after_forward"]


def to_deepspeed(row: PlannedRow) -> tuple[str, list[str]]:
    """DeepSpeed's JSON."""
    found, table = row.config, TABLES["deepspeed"]
    parallel, tiers = found.parallel, {ours: theirs for theirs, ours in table["tiers"].items()}
    zero: dict[str, Any] = {"stage": table["stages"].index(found.stage_key), "overlap_comm": parallel.overlap}
    zero |= {name: {"device": tiers[place]} for name, key in table["offloaded"].items()
             if (place := getattr(parallel, key.removeprefix("parallel."))) != "none"}
    groups = {"zero_hpz_partition_size": parallel.secondary_ranks, "mics_shard_size": parallel.shard_ranks}
    zero |= {name: ranks for name, ranks in groups.items() if ranks}
    said = {
        "train_micro_batch_size_per_gpu": found.train.micro_batch,
        "gradient_accumulation_steps": found.train.micro_batches // found.ranks,
        "gradient_clipping": found.train.clip_norm, "zero_optimization": zero,
        "optimizer": {"type": {"adam": "Adam", "sgd": "SGD"}.get(str(found.train.optimizer), "AdamW"),
                      "params": {"lr": found.train.learning_rate}}}
    said |= {found.train.precision: {"enabled": True}} if found.train.precision in ("bf16", "fp16") else {}
    return json.dumps(said, indent=2) + "\n", [
        "overlap", "prefetch", "secondary_ranks", "shard_ranks", "offload_optimizer", "offload_parameters"]


def to_fsdp(row: PlannedRow) -> tuple[str, list[str]]:
    """Accelerate's keys of FSDP2."""
    found = row.config
    if found.stage_key != "zero3":
        raise UsageError(f"--write: FSDP2 shards weights, and the row's stage is {found.stage_key}; plan zero3, or "
                         "write deepspeed")
    parallel = found.parallel
    said = {"fsdp_version": 2, "fsdp_reshard_after_forward": parallel.reshard_after_forward,
            "fsdp_activation_checkpointing": parallel.recompute is True,
            "fsdp_offload_params": parallel.offload_parameters == "host",
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
    return json.dumps(said, indent=2) + "\n", [
        "overlap", "prefetch", "reshard_after_forward", "recompute", "offload_parameters", "offload_optimizer"]


def by_section(row: PlannedRow) -> dict[str, Any]:
    """The values of a row's keys that differ from their defaults, or that tell the model's sizes."""
    found = row.config
    mine = {f"model.{each.name}": getattr(found.keys, each.name) for each in fields(found.keys)
            if each.name not in found.keys.others_keys}
    for section, keys, usual in (("train", found.train, Train()), ("parallel", found.parallel, Parallel())):
        mine |= {f"{section}.{each.name}": value for each in fields(keys)
                 if (value := getattr(keys, each.name)) != getattr(usual, each.name)}
    return {key: value for key, value in mine.items() if value != 0}


def key_of(names: Mapping[str, Any], value: Any) -> str:
    return next(name for name, each in names.items() if each == value)


def names_of(project: str) -> list[str]:
    """The keys of [parallel] that the table of `project` has."""
    return [key.removeprefix("parallel.") for key in TABLES[project]["keys"].values() if key.startswith("parallel.")]


WRITERS = {"megatron": to_megatron, "torchtitan": to_torchtitan, "deepspeed": to_deepspeed, "fsdp": to_fsdp}
"""The projects for which a plan writes a configuration."""
