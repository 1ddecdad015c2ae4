"""The manifest of a checkpoint: one JSON document with its own digest, and its validation.

    leg      a stretch of the training: its last step, its number of ranks, its keys of [parallel]
    piece    an array of one rank's file: its unit, its kind, and its layout

Reading any file takes bounded memory, executes nothing, and returns a manifest or raises `CheckpointError`.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

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
    document = {"schema": SCHEMA, **document_of(manifest), "shards": [*map(shard_document, manifest.shards)]}
    text = canonical(document)
    return canonical({"manifest": document, "sha256": hashlib.sha256(text).hexdigest()})


def canonical(document: Any) -> bytes:
    """Canonical JSON: equal documents give equal bytes."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def document_of(value: Any) -> Any:
    """A value in JSON's own types; a record without its None."""
    if is_dataclass(value):
        found = {each.name: getattr(value, each.name) for each in fields(value)}
        return {name: document_of(each) for name, each in found.items() if each is not None}
    return [*map(document_of, value)] if isinstance(value, tuple) else value


def shard_document(shard: Shard) -> dict[str, Any]:
    arrays = [{"name": name, **document_of(stored), **document_of(shard.pieces.get(name, {}))}
              for name, stored in shard.file.arrays.items()]
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
    shards = tuple(map(decoded_shard, a(list, document["shards"])))
    manifest: Manifest = read_as(Manifest, {"parts": {}, **document, "shards": []})
    manifest = replace(manifest, shards=shards)
    for unit in manifest.units:
        check_unit(unit)
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


def check_unit(unit: UnitRecord) -> None:
    """Refuse parameters that do not follow each other without gaps, or whose pieces are not equal."""
    ends = [0, *(each.start + each.count for each in unit.parameters)]
    if [*(each.start for each in unit.parameters), unit.count] != ends:
        raise ValueError("parameters")
    if not unit.layers:
        raise ValueError("layers")
    for each in unit.parameters:
        if (cut := each.cut) is not None:
            Directions().stride(cut.direction.name)
            if not cut.direction.size or not cut.blocks or each.shape[cut.axis] % cut.blocks:
                raise ValueError("cut")


def decoded_shard(document: Mapping[str, Any]) -> Shard:
    """One rank's file, in the checkpoint's own folder."""
    name = a(str, document["file"])
    if Path(name).name != name or name in ("", ".", ".."):
        raise ValueError("file")
    arrays, pieces = {}, {}
    for array in a(list, document["arrays"]):
        key = a(str, array["name"])
        arrays[key] = read_as(Stored, array)
        if len(arrays[key].blocks) != arrays[key].block_count:
            raise ValueError("blocks")
        if "unit" in array:
            pieces[key] = read_as(PieceRecord, array)
            if not pieces[key].layout.first < pieces[key].layout.last <= pieces[key].layout.size or len(key) > 4096:
                raise ValueError("layout")
    return Shard(StoredFile(name, count(document["bytes"]), a(str, document["header_sha256"]), arrays), pieces)


types_of = cache(get_type_hints)
"""The types of the fields of a record, by name."""


def read_as(kind: Any, value: Any) -> Any:
    """A value of JSON as `kind`: a record by the types of its fields, a tuple, a mapping, or a plain type."""
    made, arguments = get_origin(kind), get_args(kind)
    if made is tuple:
        return tuple(read_as(arguments[0], each) for each in a(list, value))
    if made is Mapping:
        return {a(str, name): read_as(arguments[1], each) for name, each in a(dict, value).items()}
    if made is UnionType:
        return read_as(arguments[0], value)
    if hasattr(kind, "__dataclass_fields__"):
        return kind(**{each.name: read_as(types_of(kind)[each.name], value[each.name]) for each in fields(kind)
                       if each.name in value or each.default is MISSING})
    return value if kind is Any else count(value) if kind is int else a(kind, value)


def a(kind: type[Any], value: Any) -> Any:
    """`value`, if its type is `kind`."""
    if type(value) is not kind:
        raise TypeError(f"{str(value)[:40]!r}, which is no {kind.__name__}")
    return value


def count(value: Any) -> int:
    """A valid number of elements of an array."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{str(value)[:40]!r}, which is no count")
    return value
