"""The manifest of a checkpoint: one JSON document with its own digest, and its validation.

    leg      a stretch of the training: its last step, its number of ranks, its keys of [parallel]
    piece    an array of one rank's file: its unit, its kind, and its layout

Reading any file takes bounded memory, executes nothing, and returns a manifest or raises `CheckpointError`.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zerosim.autograd.tape_collectives import Direction
from zerosim.checkpoint.folders import MANIFEST
from zerosim.checkpoint.shards import Stored, StoredFile
from zerosim.errors import CheckpointError
from zerosim.files import open_regular
from zerosim.models.parameters import Cut, Pieced
from zerosim.sharding import Directions, Layout

SCHEMA = "zerosim.checkpoint/1"
MOST_BYTES = 1 << 25
"""The largest manifest; reading takes up to 30 times as much memory. A checkpoint of 400 GB has a smaller one."""
LOSSES = "losses"
"""The name of the one array without a unit: the losses of all steps so far, in the file of rank 0."""


@dataclass(frozen=True)
class LegRecord:
    """A leg as it is saved; `steps` is the scenario's train.steps."""

    until: int
    ranks: int
    steps: int
    parallel: Mapping[str, Any]
    ranks_per_host: int = 0
    """The scenario's world.ranks_per_host, on which the orders of hosts depend."""


@dataclass(frozen=True)
class PieceRecord:
    """The contents of an array of a file: the elements of `what` of a unit that lie in `layout`, without padding, and
    without those for which a different place answers."""

    unit: int
    what: str
    layout: Layout


@dataclass(frozen=True)
class Shard:
    """One rank's file, and the contents of its arrays, by name."""

    file: StoredFile
    pieces: Mapping[str, PieceRecord]


@dataclass(frozen=True)
class UnitRecord:
    """A unit of the run that saved the checkpoint."""

    name: str
    layers: tuple[int, ...]
    count: int
    frozen: bool
    parameters: tuple["ParameterRecord", ...]


@dataclass(frozen=True)
class ParameterRecord(Pieced):
    """The place of a parameter's piece in its unit, and the parameter's name in other programs."""

    name: str
    shape: tuple[int, ...]
    start: int
    cut: Cut | None = None


@dataclass(frozen=True)
class Manifest:
    """The contents of a manifest."""

    scenario: Mapping[str, Any]
    """The resolved scenario."""
    data_sha256: str
    """The digest of the samples and of initial weights from a file."""
    parts: Mapping[str, str]
    """SHA-256 of each file of Python that the scenario named, by name."""
    row: str
    step: int
    updates: int
    loss_scale: float
    good_steps: int
    samples: int
    """The position in the stream of samples: the number of samples used so far."""
    legs: tuple[LegRecord, ...]
    units: tuple[UnitRecord, ...]
    shards: tuple[Shard, ...]

    @property
    def ranks(self) -> int:
        """The number of ranks that saved the checkpoint."""
        return len(self.shards)

    @property
    def directions(self) -> Directions:
        """The ranks that trained one copy of the model when it was saved, and the number of copies."""
        found = Directions.named(self.legs[-1].parallel)
        return replace(found, data=self.ranks // found.places)

    def held(self, rank: int, piece: PieceRecord) -> Iterator[tuple[ParameterRecord, int, int]]:
        """The contents of an array in the file of `rank`: parameters, and which elements of that place's piece of each.
        """
        layout, coordinates = piece.layout, self.directions.coordinates(self.directions.place(rank))
        for each in self.units[piece.unit].parameters:
            low, high = (min(max(end - each.start, 0), each.count) for end in (layout.start, layout.stop))
            if low < high and each.answers(coordinates):
                yield each, low, high

    @property
    def stage(self) -> str:
        """The key of the stage that saved the checkpoint."""
        return str(self.legs[-1].parallel["stages"][0])


def encoded(manifest: Manifest) -> bytes:
    """The manifest as bytes of its file."""
    document = {
        "schema": SCHEMA,
        "scenario": manifest.scenario,
        "data_sha256": manifest.data_sha256,
        "parts": manifest.parts,
        "row": manifest.row,
        "step": manifest.step,
        "updates": manifest.updates,
        "loss_scale": manifest.loss_scale,
        "good_steps": manifest.good_steps,
        "samples": manifest.samples,
        "legs": [vars(leg) for leg in manifest.legs],
        "units": [vars(unit) | {"parameters": [*map(parameter_document, unit.parameters)]} for unit in manifest.units],
        "shards": [shard_document(shard) for shard in manifest.shards],
    }
    text = canonical(document)
    return canonical({"manifest": document, "sha256": hashlib.sha256(text).hexdigest()})


def canonical(document: Any) -> bytes:
    """Canonical JSON: equal documents give equal bytes."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def parameter_document(parameter: ParameterRecord) -> dict[str, Any]:
    """A parameter; `cut` is left out if every place has all of it."""
    document, cut = {**vars(parameter)}, parameter.cut
    del document["cut"]
    return document if cut is None else document | {"cut": vars(cut) | {"direction": vars(cut.direction)}}


def shard_document(shard: Shard) -> dict[str, Any]:
    arrays = [
        {"name": name, **vars(stored), **({"unit": piece.unit, "what": piece.what, "layout": vars(piece.layout)}
                                         if (piece := shard.pieces.get(name)) else {})}
        for name, stored in shard.file.arrays.items()
    ]
    head = {"file": shard.file.name, "bytes": shard.file.file_bytes, "header_sha256": shard.file.header_sha256}
    return head | {"arrays": arrays}


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the checkpoint in `folder`."""
    path = folder / MANIFEST
    try:
        with open_regular(path) as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise CheckpointError(f"{path}: {(error.strerror or str(error)).lower()}; name the folder of a checkpoint") \
            from None
    if len(content) > MOST_BYTES:
        raise CheckpointError(f"{path} is larger than {MOST_BYTES:,} bytes, too large for a manifest")
    try:
        document = json.loads(content)
        inner, digest = document["manifest"], document["sha256"]
        schema = inner["schema"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise CheckpointError(f"{path} is damaged: it is not a manifest; use another checkpoint") from None
    if schema != SCHEMA:
        raise CheckpointError(f"{path} has schema {str(schema)[:60]!r}, and this zerosim reads {SCHEMA!r}; "
                              "resume it with the zerosim that wrote it")
    if hashlib.sha256(canonical(inner)).hexdigest() != digest or canonical(document) != content:
        raise CheckpointError(f"{path} is damaged: its SHA-256 does not match; use another checkpoint")
    try:
        return decoded(inner)
    except (ValueError, LookupError, TypeError, RecursionError, AttributeError) as error:
        what = f"{type(error).__name__} at {str(error)[:60]}"
        raise CheckpointError(f"{path} is damaged: {what}; use another checkpoint") from None


def decoded(document: Mapping[str, Any]) -> Manifest:
    """The manifest of a document; raises one of Python's own errors if the document is none."""
    manifest = Manifest(
        scenario=a(dict, document["scenario"]),
        data_sha256=a(str, document["data_sha256"]),
        parts={a(str, name): text(digest) for name, digest in a(dict, document.get("parts", {})).items()},
        row=a(str, document["row"]),
        step=count(document["step"]),
        updates=count(document["updates"]),
        loss_scale=a(float, document["loss_scale"]),
        good_steps=count(document["good_steps"]),
        samples=count(document["samples"]),
        legs=tuple(
            LegRecord(count(leg["until"]), count(leg["ranks"]), count(leg["steps"]), a(dict, leg["parallel"]),
                      count(leg.get("ranks_per_host", 0)))
            for leg in a(list, document["legs"])
        ),
        units=many(decoded_unit, document["units"]),
        shards=many(decoded_shard, document["shards"]),
    )
    if not 0 < manifest.loss_scale < math.inf:
        raise ValueError("loss_scale")
    if not manifest.legs or manifest.legs[-1].until != manifest.step or not manifest.shards:
        raise ValueError("legs")
    if [leg.until for leg in manifest.legs] != sorted({leg.until for leg in manifest.legs}):
        raise ValueError("legs")
    for leg in manifest.legs:
        a(str, leg.parallel["stages"][0])
    directions = Directions.named(manifest.legs[-1].parallel)
    if min(map(count, (*directions.sizes.values(), directions.pipeline))) < 1 or manifest.ranks % directions.places:
        raise ValueError("directions")
    for rank, shard in enumerate(manifest.shards):
        for name, piece in shard.pieces.items():
            held = sum(high - low for _, low, high in manifest.held(rank, piece))
            if piece.layout.count != manifest.units[piece.unit].count or shard.file.arrays[name].length != held:
                raise ValueError("layout")
    return manifest


def decoded_unit(document: Mapping[str, Any]) -> UnitRecord:
    """A unit whose parameters follow each other without gaps."""
    parameters = tuple(
        ParameterRecord(a(str, each["name"]), many(count, each["shape"]), count(each["start"]), decoded_cut(each))
        for each in a(list, document["parameters"])
    )
    at = 0
    for each in parameters:
        if each.start != at:
            raise ValueError("parameters")
        at += each.count
    if at != count(document["count"]):
        raise ValueError("parameters")
    if not document["layers"]:
        raise ValueError("layers")
    return UnitRecord(
        a(str, document["name"]), many(count, document["layers"]), at, a(bool, document["frozen"]), parameters)


def decoded_cut(parameter: Mapping[str, Any]) -> Cut | None:
    """The cut of a parameter, into equal pieces."""
    if "cut" not in parameter:
        return None
    document = parameter["cut"]
    cut = Cut(Direction(a(str, document["direction"]["name"]), count(document["direction"]["size"])),
              count(document["axis"]), count(document["blocks"]))
    Directions().stride(cut.direction.name)
    if not cut.direction.size or not cut.blocks or parameter["shape"][cut.axis] % cut.blocks:
        raise ValueError("cut")
    return cut


def decoded_shard(document: Mapping[str, Any]) -> Shard:
    """One rank's file, in the checkpoint's own folder."""
    name = a(str, document["file"])
    if Path(name).name != name or name in ("", ".", ".."):
        raise ValueError("file")
    arrays, pieces = {}, {}
    for array in a(list, document["arrays"]):
        key = a(str, array["name"])
        arrays[key] = Stored(a(str, array["dtype"]), count(array["length"]), many(text, array["blocks"]))
        if len(arrays[key].blocks) != arrays[key].block_count:
            raise ValueError("blocks")
        if "unit" in array:
            layout = Layout(*(count(array["layout"][each]) for each in ("count", "size", "first", "last")))
            if not layout.first < layout.last <= layout.size or len(key) > 4096:
                raise ValueError("layout")
            pieces[key] = PieceRecord(count(array["unit"]), a(str, array["what"]), layout)
    return Shard(StoredFile(name, count(document["bytes"]), a(str, document["header_sha256"]), arrays), pieces)


def a(kind: type[Any], value: Any) -> Any:
    """`value`, if its type is `kind`."""
    if type(value) is not kind:
        raise TypeError(f"{str(value)[:40]!r}, which is no {kind.__name__}")
    return value


def text(value: Any) -> str:
    return str(a(str, value))


def count(value: Any) -> int:
    """A valid number of elements of an array."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{str(value)[:40]!r}, which is no count")
    return value


def many(read: Callable[[Any], Any], values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(read(each) for each in a(list, values))
