"""What a check knows of a rank: plain data, written by the observer and read by the judge. PyTorch is not needed.

A rank's file is a sequence of frames, each behind its length and checksum, and grows by one frame at every observed
update. Whatever ends the rank, the frames before are whole. Nothing in a file is executed when it is read.
"""

import os
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from zerosim.core.allocation import Array
from zerosim.core.errors import UsageError

Key = tuple[tuple[int, int], ...]
"""The place of a rank's part in a tensor: from and to, along each axis."""
MAGIC = b"zerosim.records/4\n"
KEPT = "a copy of "
"""Before the name of a sharded tensor that is in no module and that the script keeps."""
LEAST, MOST, SHORTEST = 128, 4096, 512
"""The buckets of a sketch: at least and at most so many, of this many elements if both allow it."""


def bucket_length(size: int) -> int:
    """The elements of a bucket, of a tensor of `size` elements.

    >>> [bucket_length(size) for size in (100, 1000, 1 << 20, 1 << 30)]
    [1, 8, 512, 262144]
    """
    return max(1, -(-size // min(max(LEAST, size // SHORTEST), MOST)))


def counted(shape: tuple[int, ...], key: Key) -> Array:
    """How many elements of a part lie in each bucket of the whole tensor.

    >>> counted((300,), ((0, 4),))[:3]
    array([3, 1, 0])
    """
    size = max(1, prod(shape))
    length = bucket_length(size)
    edges = np.minimum(np.arange(-(-size // length) + 1) * length, size)
    return np.diff(_below(edges, shape, key))


def _below(positions: Array, shape: tuple[int, ...], key: Key) -> Array:
    """How many elements of a part are at smaller positions than these."""
    if not shape:
        return np.minimum(positions, 1)
    (first, last), stride = key[0], prod(shape[1:])
    index, rest = np.divmod(positions, max(1, stride))
    width = prod(max(0, stop - start) for start, stop in key[1:])
    whole: Array = np.clip(index - first, 0, max(0, last - first)) * width
    within = (first <= index) & (index < last)
    return whole + (np.where(within, _below(rest, shape[1:], key[1:]), 0) if len(shape) > 1 else 0)


@dataclass
class Sketched:
    """A rank's part of one tensor: signed sums and sums of squares, bucket by bucket, and the rounding of its dtype."""

    shape: tuple[int, ...]
    key: Key
    roundoff: float
    smallest: float
    partial: bool = False
    """Whether the sum over the ranks of tensor parallelism is still due."""
    sums: Array = field(default_factory=lambda: np.zeros(0))
    squares: Array = field(default_factory=lambda: np.zeros(0))


@dataclass
class Term:
    """The gradient of one backward, before any reduction; `version` changes with each change of a weight."""

    part: Sketched
    backward: int
    line: str
    version: int
    cleared: bool = False
    """Whether the script has cleared it before the update."""
    by_hand: bool = False
    """Whether `torch.autograd.grad` has returned it."""


@dataclass
class Clip:
    """A call that clips gradients to a norm (of this order) of at most `most`; the gradients before and after it."""

    line: str
    most: float
    order: float
    unscaled: bool
    given: bool = False
    """Whether the script has given the norm, which may be that of more gradients."""
    additions: int = 0
    """The most float32 additions that PyTorch needs for a norm: those of the longest tensor, and of all norms."""
    before: dict[str, Sketched] = field(default_factory=dict)
    after: dict[str, Sketched] = field(default_factory=dict)


@dataclass
class Batch:
    """The tensors that a model was given, and those that it returned, as digests."""

    line: str
    given: int = 0
    returned: int = 0
    samples: int = 0
    """The length of the first tensor that was given."""


@dataclass
class Epoch:
    """An epoch that a DistributedSampler has begun before the update `step`, with its settings."""

    step: int
    line: str
    samples: int
    settings: dict[str, int]


@dataclass
class Weights:
    """The place of a rank's part of a parameter, and the digest of its bits."""

    key: Key
    trains: bool
    narrow: bool = False
    """Whether its dtype has 16 bits: an update may then be lost in the rounding."""
    bits: int = 0
    due: int = 0
    """Of a sample of its elements, those whose gradient was not 0 when the optimizer was called."""
    moved: int = 0
    """Those among them that the update has changed."""


@dataclass
class Remark:
    """What a rank has seen and cannot judge alone: a suspicion, if all ranks have seen it, with the same value."""

    cause: str
    text: str
    line: str
    parameter: str = ""
    value: float = 0.0


@dataclass
class Step:
    """Everything between two updates of one optimizer."""

    optimizer: int
    number: int
    rank: int = 0
    line: str = ""
    skipped: bool = False
    settings: list[dict[str, float]] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    terms: dict[str, list[Term]] = field(default_factory=dict)
    unclipped: dict[str, Sketched] = field(default_factory=dict)
    """The gradients before they were clipped, if they were."""
    gradients: dict[str, Sketched] = field(default_factory=dict)
    """The gradients as the optimizer sees them."""
    clips: list[Clip] = field(default_factory=list)
    weights: dict[str, Weights] = field(default_factory=dict)
    others: dict[str, Weights] = field(default_factory=dict)
    """Weights that no optimizer has, such as a copy that averages: in steps 1, 2, 4, 8, …"""
    parameters: list[str] = field(default_factory=list)
    """The parameters of the optimizer."""
    orphans: list[str] = field(default_factory=list)
    """Parameters that got gradients and that no optimizer has."""
    ahead: bool = False
    """Whether all of them come before those that an optimizer has, as where a head is trained alone."""
    states: dict[str, float] = field(default_factory=dict)
    """For each parameter with optimizer state the number of its updates; -1 if the state does not say."""
    states_after: int = 0
    """The parameters with optimizer state after the update."""
    schedules: int = 0
    """How often one scheduler of the learning rate has stepped since the last update."""
    passes: tuple[int, int] = (0, 0)
    """Forward passes of the models that were called, and how many of them had a backward."""
    scale: float = 1.0
    """The factor in the terms, of GradScaler or by hand."""
    scaler: bool = False
    """Whether it is GradScaler's."""
    share: float = 1.0
    """By what the script has multiplied the last loss, such as 1 / micro-batches."""
    unscaled: bool = False
    """Whether GradScaler has taken it out again, or the optimizer does."""
    within: bool = False
    """Whether the optimizer takes it out within the update."""
    touched: bool = False
    """Whether the script has written into gradients between the last backward and the update."""
    remarks: list[Remark] = field(default_factory=list)
    count: float = 0.0
    """The last number that the script has reduced before a backward, such as a number of tokens."""
    reasons: list[str] = field(default_factory=list)
    """Why its gradients are not judged."""


@dataclass
class Entry:
    """Numbers of one tensor on one rank: `rows` of a matrix, tokens of an output, or values; `columns` of a matrix.

    `kind` is "input", "output", "loss", "output gradient", "weight", "gradient", "clipped", "norm", "updated"
    or, where a model draws random numbers, "random".
    """

    kind: str
    step: int
    name: str
    module: str = ""
    """The class of a module."""
    line: str = ""
    shape: tuple[int, ...] = ()
    """The shape of the whole tensor, of which this rank has `place`: a block, or a range of its flat elements."""
    place: Key = ()
    first: int = 0
    """Which row of the whole matrix is the first of `rows`."""
    group: list[int] = field(default_factory=list)
    """The ranks that hold the tensor together."""
    aliases: list[str] = field(default_factory=list)
    """Further names of a tied parameter."""
    roundoff: float = 0.0
    added: bool = False
    """Whether the tensor is the sum of what its ranks have at this place."""
    settings: dict[str, float] = field(default_factory=dict)
    """What the optimizer has for the parameter: learning rate, decay, momentum."""
    rows: Array = field(default_factory=lambda: np.zeros(0))
    columns: Array = field(default_factory=lambda: np.zeros(0))


@dataclass
class Facts:
    """What a rank knows of the training as a whole."""

    rank: int = 0
    size: int = 1
    grouped: bool = False
    """Whether there was a process group."""
    process: int = 0
    run: str = ""
    """The run that this rank belongs to: its launcher."""
    recorded: str = ""
    """The steps that are recorded to be compared with another run; empty in a check."""
    noise: str = ""
    """The dtype by whose rounding the initial weights were moved."""
    updates: dict[int, int] = field(default_factory=dict)
    """The updates of each optimizer, also of those that were not observed."""
    sent: int = 0
    """The elements that the script has given to collectives outside forward and backward: weights, perhaps."""
    elements: int = 0
    """The elements of all parameters of an optimizer: of the smallest."""
    trainer: str = ""
    group: list[int] = field(default_factory=list)
    """The ranks over which the trainer reduces; empty if there is none."""
    row: list[int] = field(default_factory=list)
    """The ranks of DTensor's tensor parallelism that hold parts of the same layers."""
    takes_shards: bool = False
    """Whether its plan gives each rank of a row a part of the batch."""
    returns_partial: bool = False
    """Whether its plan returns partial results."""
    reduced: tuple[float, float] = (0.0, 0.0)
    """The unit roundoff and the smallest number of the dtype in which a trainer reduces."""
    divisor: float = 0.0
    """FSDP2's divide factor, if the script has set one."""
    own_hook: bool = False
    """Whether DDP reduces by a hook of the script."""
    wrapped: dict[str, int] = field(default_factory=dict)
    """For each sharded parameter its digest before it was sharded; 0 if the shard was not kept until training."""
    wrapping_line: str = ""
    buffers: dict[str, int] = field(default_factory=dict)
    communicates: list[str] = field(default_factory=list)
    """How the script's forwards communicate: "messages", "all_to_all", "collectives"."""
    experts: list[str] = field(default_factory=list)
    """Parameters that belong to experts, by the mark of DeepSpeed and Megatron-LM."""
    epochs: list[Epoch] = field(default_factory=list)
    failed: str = ""
    """Why the observation has ended before the script."""
    obstacles: list[str] = field(default_factory=list)
    """Why no step of the script is judged."""
    unknown: list[str] = field(default_factory=list)
    """Parameters that get gradients and belong to no module that was called."""


@dataclass
class Frame:
    """One piece of a rank's file: an update, what a comparison needs of one, or the end of the script."""

    facts: Facts
    step: Step | None = None
    ended: str = ""
    entries: list[Entry] = field(default_factory=list)


@dataclass
class Record:
    """One rank's record; `ended` says how its script has ended, and is empty if it has not."""

    facts: Facts
    steps: list[Step] = field(default_factory=list)
    ended: str = ""
    entries: list[Entry] = field(default_factory=list)

    @classmethod
    def of(cls, frames: Iterable[Frame]) -> "Record":
        *earlier, last = Frame(Facts()), *frames
        return cls(last.facts, [frame.step for frame in (*earlier, last) if frame.step is not None], last.ended,
                   [entry for frame in (*earlier, last) for entry in frame.entries])


class RecordError(UsageError):
    """Records that cannot be judged: damaged, of two runs, or of some ranks only."""


def head(packed: bytes) -> bytes:
    """The 16 bytes before a frame: its length and its checksum."""
    return struct.pack("<QQ", len(packed), zlib.crc32(packed))


def write(frame: Frame, file: BinaryIO) -> None:
    """Append a frame to a rank's file."""
    packed = msgspec.msgpack.encode(frame, enc_hook=lambda array: array.astype("<f8").tobytes())
    file.write((b"" if file.tell() else MAGIC) + head(packed) + packed)
    file.flush()


def read(file: Path) -> Record:
    """The record in a rank's file, without a last frame that was not written to its end.

    Raises `RecordError`, in one line, if anything else is wrong with it.
    """
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as opened:
        content = opened.read()
    if not content.startswith(MAGIC[: len(content)]):
        raise RecordError(f"{file} is no record of this version of the check; judge it with the version that made it")
    decoder = msgspec.msgpack.Decoder(Frame, dec_hook=lambda _, packed: np.frombuffer(packed, "<f8"))
    at, frames = len(MAGIC), list[Frame]()
    while at + 16 <= len(content):
        start, (length, checksum) = at + 16, struct.unpack_from("<QQ", content, at)
        packed = content[start : start + length]
        if len(packed) < length:
            break
        try:
            if zlib.crc32(packed) != checksum:
                raise ValueError("another checksum")
            frames.append(decoder.decode(packed))
        except (ValueError, msgspec.MsgspecError) as error:
            raise RecordError(f"{file}: frame {len(frames) + 1} is damaged: {error}; check the run again") from None
        at = start + length
    if not frames:
        raise RecordError(f"{file} ends within its first frame; run the script again")
    return Record.of(frames)
