"""Random valid scenarios: every key of the schema, with what it may hold, and the rules that keys obey together.

A choice or a switch is drawn from the schema itself; for any other key `VALUES` says what to draw, and a key that is in
neither is an error, so that no new key is forgotten. Equal numbers give equal scenarios.
"""

import csv
import io
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.inspect import BoolType, DataclassType, Metadata, NoneType, UnionType, VarTupleType

from zerosim.collectives import ALGORITHMS
from zerosim.collectives.own import SERVING
from zerosim.core.parts import Named
from zerosim.core.words import toml
from zerosim.proofs.subject import COLLECTIVES
from zerosim.scenario import reading
from zerosim.scenario.collective import CollectiveScenario, CollectiveWorld, Expect, Program, Values
from zerosim.scenario.fault import Fault
from zerosim.scenario.ignored import ignored_by_stage
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import (
    OF_ALL_ROWS,
    STAGE_KEYS,
    Check,
    Checkpoint,
    Data,
    ModelKeys,
    Parallel,
    Train,
    Variant,
    WorldKeys,
)
from zerosim.scenario.values import names_in

Document = dict[str, Any]
Random = random.Random

SAID = 0.6
"""How likely a key is to be said."""

UNDER_MPI = (1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 4, 4, 6, 8)
IN_ONE_PROCESS = (1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8)
POWERS_OF_TWO = (1, 2, 4, 8)

MINE = '''"""Collectives of a user's own."""

import numpy as np

import zerosim as zs
from zerosim.core.comm import left, right


def my_all_reduce(comm, x):
    return zs.all_reduce(comm, x, algorithm="naive")


def round_all_reduce(comm, x):
    total, passing = x.copy(), x.copy()
    for _ in range(comm.size - 1):
        comm.exchange(passing.copy(), to=right(comm), into=passing, source=left(comm))
        total = np.add(total, passing)
    return total
'''
OWN_CALLS = ("mine.py:my_all_reduce", "mine.py:round_all_reduce")


@dataclass(frozen=True)
class Drawn:
    """A scenario as it is written to a file, its data, and how it is run."""

    number: int
    document: Document
    arrays: dict[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    text: str = ""
    """What is to be learnt by characters."""
    table: str = ""
    """A CSV."""

    def write(self, folder: Path) -> Path:
        """The scenario's file in `folder`, what it refers to beside it."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.arrays:
            np.savez(folder / "data.npz", **self.arrays)
        if self.text:
            (folder / "words.txt").write_text(self.text)
        if self.table:
            (folder / "table.csv").write_text(self.table)
        if self.document.get("kind") == "collective":
            (folder / "mine.py").write_text(MINE)
        path = folder / "scenario.toml"
        path.write_text(toml(self.document))
        return path

    def saying(self, document: Document) -> "Drawn":
        return replace(self, document=document)


def draw(number: int, *, mpi: bool = False) -> Drawn:
    """The scenario of that number, one in five of them of collectives; `mpi` draws what suits several processes."""
    chance = Random(f"{number} {mpi}")
    if chance.random() < 0.2:
        return collectives(number, chance, mpi=mpi)
    return training(number, chance, mpi=mpi)


# Values of single keys.

WORDS = (
    "", "a", "Stage III, as it should be", "[bold]not markup[/]", "[red]", 'quoted "so" and \\ so', "ΔL ≤ ½ · 10⁻³",
    "零冗余优化器", "two\nlines", "tab\there", "x" * 30, "many words " * 12,
)
NAMES = (
    "", "zero3", "one", "by layer", "in one unit", "[bold]x[/]", "零", "exactly 24 characters xx", "a=b, c",
)


def widths(chance: Random) -> list[int]:
    return [chance.choice((1, 2, 3, 5, 7, 8, 16, 17, 33)) for _ in range(chance.choice((0, 1, 1, 2, 2, 3)))]


def fraction(chance: Random) -> float:
    """Below 1."""
    return chance.choice((0, 0.0, 0.5, 0.9, 0.99, 0.999, chance.random()))


def one_of(*values: Any) -> Callable[[Random], Any]:
    return lambda chance: chance.choice(values)


VALUES: dict[tuple[type[Any], str], Callable[[Random], Any]] = {
    (Scenario, "title"): one_of(*WORDS),
    (Scenario, "caption"): one_of(*WORDS),
    (ModelKeys, "hidden"): widths,
    (ModelKeys, "inner"): one_of(0, 1, 3, 8, 17),
    (ModelKeys, "vocabulary"): one_of(0, 0, 2, 3, 5, 10, 13, 40),
    (ModelKeys, "sequence"): one_of(1, 2, 3, 4, 5, 7, 8, 15),
    (ModelKeys, "experts"): one_of(2, 3, 5),
    (ModelKeys, "experts_per_token"): one_of(1, 1, 2),
    (ModelKeys, "capacity_factor"): one_of(0.1, 1, 1.25, 8.0),
    (ModelKeys, "shared_inner"): one_of(0, 4, 12),
    (ModelKeys, "dense_inner"): one_of(0, 4, 12),
    (ModelKeys, "dropout"): one_of(0, 0.0, 0.1, 0.5, 0.99, 1e-9),
    (ModelKeys, "weights"): one_of(""),
    (Train, "steps"): one_of(0, 1, 1, 2, 2, 3, 4, 5, 7),
    (Train, "micro_batch"): one_of(1, 1, 2, 3, 4, 16),
    (Train, "learning_rate"): one_of(0, 1e-8, 1e-3, 0.01, 0.1, 1, 1.5, 10.0, 1e5, 1e12, 1e38, 1e300),
    (Train, "betas"): lambda chance: [fraction(chance), fraction(chance)],
    (Train, "epsilon"): one_of(0, 0.0, 1e-8, 1e-3, 1.0, 1e30),
    (Train, "momentum"): one_of(0, 0.0, 0.5, 0.9, 1, 1.5),
    (Train, "weight_decay"): one_of(0, 0.0, 0.01, 0.1, 2.5, 1e20),
    (Train, "warmup_steps"): one_of(0, 1, 2, 3),
    (Train, "clip_norm"): one_of(0, 0.0, 0.0, 0.0, 1e-30, 0.1, 1, 100.0, 1e30),
    (Train, "loss_scale"): one_of("dynamic", "dynamic", 1, 3.0, 1024.0, 65536, 2.0**40, 1e-3),
    (Train, "seed"): one_of(0, 1, 7, 2**31, 2**63 - 1),
    (Parallel, "quantized_block"): one_of(0, 1, 3, 7, 64, 256, 10**9),
    (Parallel, "bucket_mb"): one_of(0, 0.0, 0.001, 0.005, 0.02, 1, 1e6),
    (Variant, "name"): one_of(*NAMES),
    (Variant, "quantized_block"): one_of(0, 2, 5, 32, 100),
    (Variant, "bucket_mb"): one_of(0, 0.002, 0.03, 1.5),
    (Check, "does_not_fit"): one_of([]),
    (Checkpoint, "folder"): one_of(""),
    (Checkpoint, "every"): one_of(1, 2, 10**9),
    (Checkpoint, "keep"): one_of(1, 3),
    (Fault, "bit"): one_of(0, 1, 31, 10**9),
    (Fault, "after_restarts"): one_of(1, 2, 10**6),
    (CollectiveScenario, "title"): one_of(*WORDS),
    (CollectiveScenario, "caption"): one_of(*WORDS),
    (Values, "seed"): one_of(0, 1, 2**63 - 1),
    (Program, "name"): one_of(*NAMES),
}
UNSAID: dict[type[Any], str] = {
    WorldKeys: "ranks ranks_per_host memory_limit_mb timeout_seconds",
    Data: "source target test_every",
    ModelKeys: "kind layers width heads key_value_heads head_size queue_tokens dense_layers latent "
               "query_latent rotary_size "
               "frozen",
    Train: "micro_batches",
    Parallel: "stages units shard_ranks replicas secondary_ranks recompute reduce_scatter all_gather broadcast "
              "tensor_ranks context_ranks expert_ranks sequence_parallel vocabulary_parallel context_by "
              "partition_activations pipeline_ranks schedule model_chunks pipeline_layers",
    Variant: "units shard_ranks replicas secondary_ranks recompute reduce_scatter all_gather broadcast "
             "tensor_ranks context_ranks expert_ranks sequence_parallel vocabulary_parallel context_by "
             "partition_activations pipeline_ranks schedule model_chunks pipeline_layers",
    Check: "test_accuracy test_loss same_bits_on fits mfu same_weights volumes "
           "messages largest_messages activations between_bytes kept_bytes collectives collective_bytes beyond_peak "
           "beyond_peak_laid_out",
    Fault: "rank step message seconds",
    CollectiveWorld: "ranks sends",
    Values: "lengths given",
    Program: "calls",
    Expect: "same_results ranks_agree same_bytes_sent same_messages results",
}
"""Keys that have one valid value, or whose value follows from others."""


def keys_of(section: type[Any]) -> dict[str, Any]:
    """The keys of a section; those of a variant are also of [parallel]."""
    own = reading.keys(section)
    shared = {key: kind for key, kind in reading.keys(Parallel).items() if key not in OF_ALL_ROWS}
    return {**own, **shared} if section is Variant else own


def choices(kind: Any) -> tuple[str, ...]:
    """The names between which a key chooses; none for arrays and for keys that may also be numbers."""
    match kind:
        case VarTupleType() | Metadata(type=VarTupleType()):
            return ()
        case UnionType(types=(first, DataclassType())):
            return tuple(filter(None, names_in(first)))
        case UnionType(types=(first, NoneType())):
            return names_in(first)
        case UnionType() | Metadata(type=UnionType()):
            return ()
    return names_in(kind)


def section_of(kind: Any) -> Any:
    """The section that a key contains, or several of; None for other values."""
    match kind:
        case Metadata(type=inner) | VarTupleType(item_type=inner):
            return section_of(inner)
        case DataclassType(cls=cls) if cls is not Named:
            return cls
    return None


def keys(section: type[Any], chance: Random) -> Document:
    """Some keys of a section, each with a value of its own; those that hang together are left to the caller."""
    said = {}
    for name, kind in keys_of(section).items():
        if chance.random() > SAID:
            continue
        if section_of(kind) is not None or name in UNSAID.get(section, "").split():
            continue
        if (section, name) in VALUES:
            said[name] = VALUES[section, name](chance)
        elif choices(kind):
            said[name] = chance.choice(choices(kind))
        elif isinstance(kind, BoolType):
            said[name] = chance.random() < 0.5
        else:
            raise LookupError(f"{section.__name__}.{name} is never drawn: say what it may hold in VALUES")
    return said


# Scenarios of training.


def training(number: int, chance: Random, *, mpi: bool) -> Drawn:
    """Any scenario of training that the rules allow."""
    model, train, parallel = keys(ModelKeys, chance), keys(Train, chance), keys(Parallel, chance)
    language = chance.random() < 0.5
    if language:
        model |= transformer(chance)
    elif chance.random() < SAID:
        model["kind"] = "mlp"
    others = ModelKeys(model.get("kind", "mlp")).others_keys
    model = {key: value for key, value in model.items() if key not in others}
    if chance.random() < 0.2:
        train |= diverging(chance)
    tree = parallel.get("order") == "tree"
    ranks = chance.choice([n for n in (UNDER_MPI if mpi else IN_ONE_PROCESS) if not tree or n in POWERS_OF_TWO])
    train["micro_batches"] = ranks * chance.choice((1, 2, 4) if tree else (1, 1, 2, 2, 3, 4))
    train.setdefault("steps", 2)
    train["warmup_steps"] = min(train.get("warmup_steps", 0), train["steps"])
    if chance.random() < SAID:
        parallel["stages"] = chance.sample(STAGE_KEYS, chance.randint(1, len(STAGE_KEYS)))
    variants = draw_variants(chance)
    layers, tied = layers_of(model), model.get("tied_embeddings", False)
    for row in (parallel, *variants):
        if chance.random() < SAID:
            row["units"] = units(layers, tied, chance)
        row.update(groups_of(ranks, parallel, chance))
        if chance.random() < SAID:
            row["recompute"] = recomputed(layers, chance)
        agree(row, parallel, train)
        name_algorithms(row, parallel, ranks, chance)
        if "bucket_mb" in row:
            row["bucket_mb"] *= 0.1 if small(model) else 4
    draw_frozen(model, parallel, variants, layers, tied, chance)

    document: Document = keys(Scenario, chance)
    document["world"] = {"ranks": ranks, **hosts_of(ranks, parallel, chance)}
    if chance.random() < 0.2:
        document["world"]["timeout_seconds"] = chance.choice((60, 600.0))
    if mpi and chance.random() < 0.2:
        document["world"]["memory_limit_mb"] = 4096
    arrays, text, table = {}, "", ""
    if language:
        sources = ("text", "sort", "sort", "reverse", "reverse")
        document["data"] = {"source": chance.choice(("words.txt",) * 9 + sources)}
        text = words(chance) if document["data"]["source"] == "words.txt" else ""
    else:
        arrays, table, document["data"] = features(chance)
    document |= {"model": model, "train": train, "parallel": parallel, "variant": variants}
    document["checkpoint"] = keys(Checkpoint, chance)
    document["fault"] = faults(ranks, train["steps"], chance)
    document["check"] = keys(Check, chance)
    draw_other_ranks(document, chance)
    lay_over_ranks(document, max(UNDER_MPI) if mpi else 16, Random(f"{number} {mpi} split"))
    said = {key: value for key, value in document.items() if value not in ({}, [])}
    return Drawn(number, said, arrays, flags(chance), text, table)


def faults(ranks: int, steps: int, chance: Random) -> list[Document]:
    """Delays, which change no bit, and other faults of runs that do not end by them."""
    found = []
    for _ in range(chance.choice((0, 0, 1, 2)) if steps else 0):
        said = keys(Fault, chance)
        kind = said.setdefault("kind", "kill")
        if kind in ("drop", "duplicate"):
            said.setdefault("collective", "all_gather")
        if kind != "flip":
            said.pop("bit", None)
        if kind in ("delay", "slow") and chance.random() < SAID:
            said["seconds"] = chance.choice((0, 1e-4, 10.0))
        if kind != "slow" and "collective" in said and chance.random() < SAID:
            said["message"] = chance.choice((1, 2, 10**6))
        if kind == "delay" and chance.random() < SAID:
            said = {"kind": kind, "seconds": chance.choice((0, 1e-4)), "rank": chance.randrange(ranks)}
        else:
            said.setdefault("after_restarts", 1)
        found.append(said | {"step": chance.randint(1, steps)})
    return found


def transformer(chance: Random) -> Document:
    """Sizes of a transformer that go together; heads, and heads of keys and values, odd as often as even."""
    key_value_heads, shared = chance.choice((1, 1, 2, 3)), chance.choice((1, 1, 2, 3))
    size = chance.choice((1, 2, 3, 4, 5))
    family = chance.choice(("gpt2", "llama"))
    if family == "gpt2":
        shared = 1
    elif size % 2:
        size *= 2
    heads = key_value_heads * shared
    said = {
        "kind": "mixture" if chance.random() < 0.2 else "transformer", "architecture": family,
        "layers": chance.choice((1, 1, 2, 2, 3)), "width": heads * size,
        "heads": heads, "sequence": chance.choice((1, 2, 3, 4, 5, 7, 8, 15)),
    }
    if shared > 1 or chance.random() < 0.5:
        said["key_value_heads"] = key_value_heads
    if chance.random() < 0.2:
        said["head_size"] = 2 * size
    if family == "llama" and shared == 1 and chance.random() < 0.3:
        said |= {"latent": chance.choice((1, 3, 8)), "query_latent": chance.choice((0, 5)),
                 "rotary_size": chance.choice((2, 4))}
    if said["kind"] == "mixture":
        said["dense_layers"] = chance.choice((0, said["layers"] - 1))
    return said


def layers_of(model: Document) -> int:
    """How many layers a model has.

    >>> layers_of({}), layers_of({"kind": "transformer", "layers": 3, "hidden": []})
    (3, 5)
    """
    if model.get("kind", "mlp") != "mlp":
        return model["layers"] + 2
    return len(model.get("hidden", (64, 64))) + 1


def small(model: Document) -> bool:
    """Whether a model may travel in messages of a few bytes without keeping anybody waiting."""
    if model.get("kind", "mlp") != "mlp":
        return bool(model["width"] <= 8)
    return max(model.get("hidden", (64,)), default=0) <= 8


def words(chance: Random) -> str:
    """A text of a few different characters, not all of them of one byte."""
    alphabet = "abcdefghij \nΨ零"[: chance.choice((1, 2, 5, 9, 14))]
    return "".join(chance.choices(alphabet, k=chance.choice((151, 160, 777))))


def recomputed(layers: int, chance: Random) -> Any:
    """All units, none, or those of some layers, in any order."""
    return chance.choice((True, True, False, chance.sample(range(layers), chance.randint(0, layers))))


def diverging(chance: Random) -> Document:
    """Keys of [train] by which losses grow over all bounds."""
    return {
        "learning_rate": chance.choice((10.0, 1e5, 1e38)), "steps": chance.choice((4, 5, 7)),
        "precision": chance.choice(("fp16", "bf16", "fp32", "fp64")), "micro_batch": chance.choice((1, 2)),
    }


def draw_variants(chance: Random) -> list[Document]:
    """Up to four rows, some of which are earlier ones by another stage."""
    variants: list[Document] = []
    for _ in range(chance.choice((0, 0, 1, 2, 3, 4, 4))):
        row = keys(Variant, chance)
        again = variants and chance.random() < 0.4
        variants.append({**chance.choice(variants), "stage": chance.choice(STAGE_KEYS)} if again else row)
    return variants


def units(layers: int, tied: bool, chance: Random) -> Any:
    """Layers by themselves, all in one, or in random groups; where embeddings are tied, any layers of which the first
    and the last are together."""
    grouped = [[0]]
    for layer in range(1, layers):
        grouped[-1:] = [[*grouped[-1], layer]] if chance.random() < 0.5 else [grouped[-1], [layer]]
    if tied:
        homes: list[list[int]] = [[] for _ in range(layers)]
        for layer in range(1, layers - 1):
            homes[chance.randrange(layers)].append(layer)
        homes[0] += [0, layers - 1]
        grouped = [chance.sample(home, len(home)) for home in homes if home]
        chance.shuffle(grouped)
    return chance.choice(("layer", "model", grouped))


def cast_once(row: Document, whole: Document) -> None:
    """Leave out autocast where weights are cast as they are gathered."""
    if whole.get("param_dtype", "weights") != "weights":
        row["autocast"] = "none"


def agree(row: Document, parallel: Document, train: Document) -> None:
    """Mend keys of a row, which are its own or those of [parallel], that do not agree."""
    for key in ("accumulate_dtype", "reduce_dtype", "output_dtype", "quantized_weights", "quantized_gradients"):
        if train.get("precision") == "fp64":
            row.pop(key, None)
    for key in ("param_dtype", "autocast") if train.get("precision", "fp32") != "fp32" else ():
        row.pop(key, None)
    if parallel.get("order", "ring") in ("tree", "exact") and row.get("accumulation") == "micro_batch":
        del row["accumulation"]
    for key in ignored_by_stage(row.get("stage", "zero3"), row) if row is not parallel else ():
        del row[key]
    whole = {**parallel, **row}
    grouped = whole.get("shard_ranks") or whole.get("replicas")
    if parallel.get("order", "ring") in ("tree", "exact") or grouped or whole.get("bucket_mb"):
        row["quantized_gradients"] = "none"
    cast_once(row, whole)
    if whole.get("secondary_ranks") and not whole.get("reshard_after_forward", True):
        row["secondary_ranks"] = 0
    if whole.get("recompute_keeps") and not whole.get("recompute"):
        row["recompute_keeps"] = ""
    if not whole.get("recompute"):
        row |= {"offload_activations": False, "recompute_keeps": ""}
    if whole.get("prefetch") and not whole.get("reshard_after_forward", True):
        row["reshard_after_forward"] = True


def name_algorithms(row: Document, parallel: Document, ranks: int, chance: Random) -> None:
    """Name algorithms for a row, or none where one that [parallel] names does not serve it."""
    for kind in SERVING:
        whole = {**parallel, **row}
        able = [name for name in SERVING[kind] if serves(kind, name, whole, ranks)]
        if able and chance.random() < SAID / 4:
            row[kind] = chance.choice(able)
        elif whole.get(kind) and whole[kind] not in able:
            row[kind] = ""


def serves(kind: str, name: str, row: Document, ranks: int) -> bool:
    """Whether an algorithm can serve a row.

    >>> serves("all_gather", "doubling", {}, 4), serves("all_gather", "doubling", {"bucket_mb": 1}, 4)
    (True, False)
    """
    algorithm = SERVING[kind][name]
    group = row.get("shard_ranks") or ranks // (row.get("replicas") or 1)
    asked = {
        "reduce_scatter": row.get("order") == "exact" or row.get("quantized_gradients", "none") != "none",
        "all_gather": row.get("quantized_weights", "none") != "none" or row.get("secondary_ranks"),
        "broadcast": False,
    }
    if asked[kind] or not all(algorithm.serves(count) for count in (group, ranks // group)):
        return False
    joins = any(len(message) > 1 for rank in range(8) for message in algorithm.volume(rank, 8, 0))
    return not (joins and row.get("bucket_mb") and kind != "broadcast")


def draw_frozen(
    model: Document, parallel: Document, variants: list[Document], layers: int, tied: bool, chance: Random
) -> None:
    """Freeze some layers: those that any row has in one unit share their fate."""
    blocks = [{layer} for layer in range(layers)]
    for row in [{**parallel, **variant} for variant in (variants or [{}])]:
        for unit in groups(row.get("units", "layer"), layers, tied):
            joined = [block for block in blocks if block & set(unit)]
            blocks = [block for block in blocks if block not in joined] + [set().union(*joined)]
    if chance.random() < 0.3:
        frozen = [layer for block in blocks if chance.random() < 0.5 for layer in sorted(block)]
        model["frozen"] = chance.sample(frozen, len(frozen))


def groups(units: Any, layers: int, tied: bool = False) -> list[list[int]]:
    """The layers of each unit.

    >>> groups("layer", 2), groups("model", 2), groups("layer", 3, tied=True)
    ([[0], [1]], [[0, 1]], [[0, 2], [1]])
    """
    if units == "layer":
        apart = [[layer] for layer in range(layers)]
        return [[0, layers - 1], *apart[1:-1]] if tied else apart
    return [list(range(layers))] if units == "model" else list(units)


def hosts_of(ranks: int, parallel: Document, chance: Random) -> Document:
    """How many ranks make a host, where that must be said, and sometimes elsewhere."""
    if parallel.get("order") in ("two_level", "two_hop") or chance.random() < SAID / 2:
        return {"ranks_per_host": chance.choice([each for each in range(1, ranks + 1) if ranks % each == 0])}
    return {}


def groups_of(ranks: int, parallel: Document, chance: Random) -> Document:
    """Groups of ranks that share, or nothing said of them."""
    divisors = [0, *(each for each in range(1, ranks + 1) if ranks % each == 0)]
    if chance.random() < SAID / 4 and parallel.get("order") not in ("two_level", "two_hop"):
        return {"shard_ranks": 0, "replicas": 0, "secondary_ranks": chance.choice(divisors)}
    if chance.random() < SAID / 2 and parallel.get("order") not in ("exact", "two_level", "two_hop"):
        said, silent = chance.sample(("shard_ranks", "replicas"), 2)
        return {said: chance.choice(divisors), silent: 0, "secondary_ranks": 0}
    return {}


DIRECTIONS = {"mlp": ("tensor",), "transformer": ("tensor", "context"), "mixture": ("tensor", "context", "expert")}
"""The directions over which each kind of model is split."""


def lay_over_ranks(document: Document, most: int, chance: Random) -> None:
    """Let several ranks train each copy of the model, in some scenarios."""
    split_over_ranks(document, most, chance)
    lay_pipeline(document, most, chance)


def split_over_ranks(document: Document, most: int, chance: Random) -> None:
    """Let more ranks share each micro-batch, in one scenario of three, with sizes that they divide.

    The ranks drawn so far become the data ranks of every row.
    """
    world, model, parallel = document["world"], document["model"], document["parallel"]
    kind = model.get("kind", "mlp")
    sizes = (1, 1, 2, 2, 3) if kind == "mixture" else (1, 2, 2, 3, 4)
    said: Document = {f"{name}_ranks": chance.choice(sizes) for name in DIRECTIONS[kind]}
    places = prod(said.values())
    if chance.random() < 2 / 3 or places == 1 or world["ranks"] * places > most:
        return
    if parallel.get("order") in ("two_level", "two_hop"):
        return
    world["ranks"] *= places
    document["check"].pop("same_bits_on", None)
    grow(model, kind, places)
    if kind == "mixture":
        train = document["train"]
        train["micro_batch"] = places * min(train.get("micro_batch", 1), 4)
    cut = kind != "mlp" and said["tensor_ranks"] > 1
    said["sequence_parallel"] = cut and chance.random() < 0.5
    if said.get("context_ranks", 1) > 1:
        said["context_by"] = "all_to_all" if "latent" in model else chance.choice(("ring", "all_to_all"))
    whole = {"quantized_weights": "none", "quantized_gradients": "none"}
    if cut and chance.random() < 0.5:
        model["vocabulary"] = places * chance.choice((8, 13))
        said["vocabulary_parallel"] = True
    parallel |= whole | said
    divides = cut and not said["sequence_parallel"]
    for row in document["variant"]:
        row.update({key: value for key, value in whole.items() if key in row} | chance.choice(({}, said)))
    for row in (parallel, *document["variant"]) if divides else ():
        again = row.get("recompute", parallel.get("recompute"))
        row["partition_activations"] = bool(again) and chance.random() < 0.5


def lay_pipeline(document: Document, most: int, chance: Random) -> None:
    """Let a pipeline train each copy of the model, in one scenario of six, with stages and keys that schedules have."""
    world, model, train, parallel = (document[key] for key in ("world", "model", "train", "parallel"))
    ranks, chunks = chance.choice((2, 2, 2, 3, 4)), chance.choice((1, 1, 2))
    data = world["ranks"] // prod(parallel.get(f"{each}_ranks", 1) for each in ("tensor", "context", "expert"))
    named = parallel.get("order") in ("two_level", "two_hop")
    if chance.random() < 5 / 6 or named or world["ranks"] * ranks > most or layers_of(model) < ranks * chunks:
        return
    if model.get("tied_embeddings"):
        model["tied_embeddings"] = False
    world["ranks"] *= ranks
    world.pop("ranks_per_host", None)
    train["micro_batches"] = data * ranks * chance.choice((1, 2))
    model.pop("frozen", None)
    document["check"].pop("same_bits_on", None)
    kinds = ("interleaved_1f1b",) if chunks > 1 else ("gpipe", "1f1b")
    document["variant"] = [
        {"stage": stage, "schedule": chance.choice(kinds)} for stage in chance.sample(("ddp", "zero1", "zero2"), 2)]
    for key in ("units", "accumulation", "offload_activations", "partition_activations", "shard_ranks", "replicas",
                "secondary_ranks", "quantized_weights", "quantized_gradients", "prefetch"):
        parallel.pop(key, None)
    parallel |= {"pipeline_ranks": ranks, "model_chunks": chunks, "schedule": kinds[0],
                 "stages": [each["stage"] for each in document["variant"]]}


def grow(model: Document, kind: str, places: int) -> None:
    """Make the sizes of a model multiples of the places over which it is split."""
    if kind == "mlp":
        model["hidden"] = [width * places for width in model.get("hidden", (8, 8))]
        return
    model["dropout"] = 0.0
    grown = {key: model[key] * places for key in ("width", "heads", "key_value_heads") if key in model}
    piece = max(1, min(model["sequence"], 14 // places))
    if kind == "mixture":
        grown |= {"experts": places * model.get("experts", 2), "queue_tokens": piece,
                  "shared_inner": places * model.get("shared_inner", 0),
                  "dense_inner": places * (model.get("dense_inner") or 3)}
    model |= grown | {"sequence": places * piece, "inner": places * (model.get("inner") or 3)}


GROUPS = ("shard_ranks", "replicas", "secondary_ranks")


def draw_other_ranks(document: Document, chance: Random) -> None:
    """Different numbers of ranks on which the bits must be the same: the same one, or any where order does not tell."""
    world, train, parallel = document["world"], document["train"], document["parallel"]
    ranks, order = world["ranks"], parallel.get("order", "ring")
    divisors = [n for n in range(1, ranks + 1) if train["micro_batches"] % n == 0]
    divisors = [n for n in divisors if order != "tree" or n in POWERS_OF_TWO]
    groups = [row.get(key) or 1 for row in effective_rows(document) for key in GROUPS]
    divisors = [n for n in divisors if all(n % group == 0 for group in groups)]
    divisors = [n for n in divisors if n % world.get("ranks_per_host", 1) == 0]
    named = [SERVING[kind][row[kind]] for row in effective_rows(document) for kind in SERVING if row.get(kind)]
    divisors = [n for n in divisors if all(algorithm.serves(n) for algorithm in named)]
    free = order in ("tree", "exact") and not train.get("clip_norm") and not named and all(
        travels_as_added(row, train.get("precision", "fp32"))
        and all(row.get(f"quantized_{what}", "none") == "none" for what in ("weights", "gradients"))
        for row in effective_rows(document)
    )
    if chance.random() < 0.5:
        some = chance.sample(divisors, chance.randint(1, min(3, len(divisors)))) if free else [ranks]
        document["check"]["same_bits_on"] = some


def travels_as_added(row: Document, precision: str) -> bool:
    """Whether a rank's sum is in the dtype of the wire, by a stage that follows `param_dtype` and by one that cannot.

    >>> row = {"accumulate_dtype": "weights", "param_dtype": "bf16", "reduce_dtype": "weights"}
    >>> travels_as_added(row, "fp32"), travels_as_added({**row, "reduce_dtype": "fp32"}, "fp32")
    (True, True)
    >>> travels_as_added({**row, "accumulate_dtype": "fp32"}, "fp32")
    False
    """
    for computed in {precision, precision if row["param_dtype"] == "weights" else row["param_dtype"]}:
        wire = computed if row["reduce_dtype"] == "weights" else row["reduce_dtype"]
        widened = row["accumulate_dtype"] == "fp32" or (computed != precision and wire == "fp32")
        if wire != ("fp32" if widened else computed):
            return False
    return True


def effective_rows(document: Document) -> list[Document]:
    """The keys of [parallel] as each variant has them."""
    weights = dict.fromkeys(("accumulate_dtype", "param_dtype", "reduce_dtype"), "weights")
    parallel = {**weights, **document.get("parallel", {})}
    return [{**parallel, **variant} for variant in document.get("variant") or [{}]]


def data(chance: Random) -> dict[str, Any]:
    """What a small .npz holds: labels or numbers to learn, with a test split or without."""
    random = np.random.default_rng(chance.randrange(2**32))
    samples, shape = chance.choice((1, 2, 5, 17, 40)), chance.choice(((), (1,), (3,), (6,), (9,), (2, 3)))
    scale = chance.choice((1.0, 1.0, 1.0, 1e-3, 300.0, 1e6, 1e30))
    dtype = chance.choice(("f4", "f8", "f2" if scale <= 1 else "f4", "i2" if scale == 300.0 else "f4"))
    labels, outputs = chance.random() < 0.6, chance.choice(((), (1,), (2,), (5,)))
    classes = min(chance.choice((1, 2, 3, 10)), samples)
    kind = chance.choice(("i8", "i4", "u1"))

    def made(count: int) -> tuple[Any, Any]:
        x = (scale * random.standard_normal((count, *shape))).astype(dtype)
        if labels:
            return x, random.integers(0, classes, count).astype(kind)
        return x, random.standard_normal((count, *outputs)).astype(chance.choice(("f4", "f8")))

    x, y = made(samples)
    if labels:
        y[0] = classes - 1
    x_test, y_test = made(4)
    return {"x": x, "y": y} | ({"x_test": x_test, "y_test": y_test} if chance.random() < 0.5 else {})


def features(chance: Random) -> tuple[dict[str, Any], str, Document]:
    """Samples in rows: the arrays of an .npz, a CSV, or neither, and the keys of [data] that read them."""
    if chance.random() < 0.6:
        return data(chance), "", {"source": "data.npz"}
    return ({}, *drawn_table(chance)) if chance.random() < 0.4 else ({}, "", {})


def drawn_table(chance: Random) -> tuple[str, Document]:
    """A CSV of labels, words or numbers, beside columns of numbers; and the keys of [data] that read it."""
    samples, names = chance.choice((8, 9, 17, 40)), ["a", "two words", "c,d", "É"][: chance.randint(2, 4)]
    target = chance.choice(names)
    answers = chance.choice((lambda: str(chance.randrange(3)), lambda: chance.choice(("cat", "dog")),
                             lambda: f"{chance.uniform(-1, 1):.3f}"))
    body = [[answers() if name == target else f"{chance.gauss(0, 1):.4g}" for name in names] for _ in range(samples)]
    body[1][names.index(target)] = max(row[names.index(target)] for row in body)  # a label of training is the highest
    written = io.StringIO()
    csv.writer(written, lineterminator=chance.choice(("\n", "\r\n"))).writerows([names, *body])
    keys = {"source": "table.csv", "test_every": chance.choice((0, 2, 3))}
    return written.getvalue(), keys | ({} if target == names[-1] and chance.random() < 0.5 else {"target": target})


def flags(chance: Random) -> tuple[str, ...]:
    """How the run is looked at."""
    return (
        "--progress", chance.choice(("auto", "plain", "none", "live")),
        "--json", chance.choice(("-", "out.json")),
        *(("--weights", "weights.safetensors") if chance.random() < 0.5 else ()),
        *(("--trace", "trace.json") if chance.random() < 0.3 else ()),
    )


# Scenarios of collectives.


def collectives(number: int, chance: Random, *, mpi: bool) -> Drawn:
    """Any scenario of collectives whose calls suit its number of ranks and its lengths."""
    ranks = chance.choice(UNDER_MPI if mpi else IN_ONE_PROCESS)
    values = keys(Values, chance)
    dtype = values.get("dtype", "float32")
    if chance.random() < 0.4:
        values["given"] = given(ranks, dtype, chance)
        lengths = [len(values["given"][0])]
    else:
        lengths = [chance.choice((0, 1, 5, 24, 40, 1000)) for _ in range(chance.randint(1, 3))]
        values["lengths"] = lengths
    document = keys(CollectiveScenario, chance) | {"kind": "collective", "world": {"ranks": ranks}}
    if not mpi and chance.random() < 0.3:
        document["world"]["sends"] = chance.choice(("buffered", "rendezvous"))
    able, most = list(calls(ranks, lengths)), 3
    if "given" in values and dtype.startswith("int") and chance.random() < 0.5:
        document["expect"] = {"results": [[sum(column) for column in zip(*values["given"], strict=True)]] * ranks}
        able, most = [name for name in able if name.endswith("all_reduce")], 1
    programs = [
        keys(Program, chance) | {"calls": chance.choices(able, k=chance.randint(1, most))}
        for _ in range(chance.randint(1, 3))
    ]
    return Drawn(number, {**document, "values": values, "program": programs}, flags=flags(chance)[:4])


def given(ranks: int, dtype: str, chance: Random) -> list[list[float]]:
    """A row of numbers for each rank, whose sums do not leave the dtype."""
    length = chance.choice((0, 1, 3, 8))
    if dtype.startswith("int"):
        return [[chance.randint(-9, 9) for _ in range(length)] for _ in range(ranks)]
    return [[chance.choice((0, -0.0, 1, 0.1, -3.5, 1e-8, 100)) for _ in range(length)] for _ in range(ranks)]


def calls(ranks: int, lengths: Iterable[int]) -> Iterator[str]:
    """The collectives, algorithms and functions that can work on vectors of these lengths."""
    even = all(length % ranks == 0 for length in lengths)
    for name in (*COLLECTIVES, *ALGORITHMS, *OWN_CALLS):
        algorithm, collective = ALGORITHMS.get(name), name.rpartition(".")[2]
        serves = algorithm is None or algorithm.serves(ranks)
        if serves and collective != "barrier" and (even or collective != "all_to_all"):
            yield name
