"""The exercise of f and g: a pair of products that ranks split, forward and backward, on integers.

A rank's arrays lie one after the other in a vector, so a confirmation runs it on separate ranks like a collective.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from zerosim.allocation import Array
from zerosim.collectives import ring
from zerosim.comm import Communicator
from zerosim.errors import CollectiveError
from zerosim.instruments.observed import Observed
from zerosim.instruments.traffic import Traffic
from zerosim.sharding import split
from zerosim.teach.grading.exercises import Claim
from zerosim.worlds.local import spawn

SAMPLES, WIDTH, INNER = 3, 4, 8
SIZES = (1, 2, 4)
RESULTS = ("∂L/∂x", "∂L/∂up", "∂L/∂down", "y")
"""The results in a vector, in the places of x, up, down and upstream."""
ADDED = {"y": "g adds the parts of all ranks", "∂L/∂x": "the backward of f adds the parts of all ranks"}

WITHOUT = {"mask": "that without the backward of relu, which multiplies by (inner > 0)", "relu": "that without relu"}
SUMMED = "the sum over all ranks, though each has rows and columns of its own: do not add them"

InPlace = Callable[[Communicator, Array], None]


@dataclass(frozen=True)
class OnVectors:
    """The exercise as a function of a communicator and a vector."""

    run: InPlace


def parts(vector: Array, size: int) -> list[Array]:
    """Views of x, up, down and upstream, of which `up` and `down` are the pieces of one of `size` ranks.

    >>> [part.shape for part in parts(np.zeros(56), 2)]
    [(3, 4), (4, 4), (4, 4), (3, 4)]
    """
    mine = INNER // size
    shapes = ((SAMPLES, WIDTH), (mine, WIDTH), (WIDTH, mine), (SAMPLES, WIDTH))
    ends = np.cumsum([rows * columns for rows, columns in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(vector, ends[:-1]), shapes, strict=True)]


def on_vectors(pair: Callable[..., Any]) -> OnVectors:
    """A learner's `split_pair(all_reduce, x, up, down, upstream)` as a function of vectors."""
    def run(comm: Communicator, vector: Array) -> None:
        def all_reduce(array: Array) -> Array:
            flat = np.array(array, vector.dtype).reshape(-1)
            ring.all_reduce(comm, split(flat, comm.size))
            return flat.reshape(np.shape(array))

        found = pair(all_reduce, *parts(vector.copy(), comm.size))
        if not isinstance(found, tuple) or len(found) != len(RESULTS):
            raise CollectiveError("split_pair must return four arrays: y, ∂L/∂x, ∂L/∂up, ∂L/∂down")
        y, *gradients = found
        for name, place, result in zip(RESULTS, parts(vector, comm.size), [*gradients, y], strict=True):
            if np.shape(result) != place.shape:
                raise CollectiveError(f"{name} has shape {np.shape(result)}; it must have {place.shape}")
            place[...] = result

    return OnVectors(run)


def computed(x: Array, up: Array, down: Array, upstream: Array, *, without: str = "") -> dict[str, Array]:
    """The results from these matrices alone, or those without relu or without its backward."""
    inner = x @ up.T if without == "relu" else np.maximum(x @ up.T, 0.0)
    of_inner = upstream @ down if without == "mask" else (upstream @ down) * (inner > 0.0)
    return dict(zip(RESULTS, (of_inner @ up, of_inner.T @ x, upstream.T @ inner, inner @ down.T), strict=True))


class PairTrial:
    """Runs of the exercise on random integers, whose sums are exact in any order."""

    def __init__(self, function: Any) -> None:
        self._run: InPlace = (function if isinstance(function, OnVectors) else on_vectors(function)).run
        self.on = cache(self._on)

    def _on(self, size: int) -> list[tuple[Array, Array, Array, int]]:
        """Each rank's vector before and after, the due one, and the bytes that it sent."""
        random, mine = np.random.default_rng(), INNER // size
        whole = [random.integers(-9, 10, shape).astype(np.float64) for shape in (
            (SAMPLES, WIDTH), (INNER, WIDTH), (WIDTH, INNER), (SAMPLES, WIDTH))]
        due_whole = computed(*whole)

        def cut(arrays: list[Array], rank: int) -> Array:
            piece = slice(rank * mine, (rank + 1) * mine)
            x, up, down, upstream = arrays
            return np.concatenate([each.reshape(-1) for each in (x, up[piece], down[:, piece], upstream)])

        def program(comm: Communicator) -> tuple[Array, Array, Array, int]:
            begun = cut(whole, comm.rank)
            vector, traffic = begun.copy(), Traffic()
            self._run(Observed(comm, traffic), vector)
            return begun, vector, cut([due_whole[name] for name in RESULTS], comm.rank), traffic.sent_bytes

        return spawn(program, size, limit_seconds=20.0)

    def wrong(self, *names: str) -> str | None:
        """The first wrong result among `names`, with its cause."""
        for size in SIZES:
            runs = self.on(size)
            pieces = [parts(begun, size) for begun, *_ in runs]
            ups, downs = ([each[place] for each in pieces] for place in (1, 2))
            whole = [pieces[0][0], np.concatenate(ups), np.concatenate(downs, axis=1), pieces[0][3]]
            for rank, (_, found, due, _) in enumerate(runs):
                alone = computed(*pieces[rank])
                for name, mine, right in zip(RESULTS, parts(found, size), parts(due, size), strict=True):
                    if name in names and not np.array_equal(mine, right):
                        shown = "reduce_from" if name == "y" else "copy_to"
                        used = whole if name in ADDED else pieces[rank]
                        near = {words: computed(*used, without=key)[name] for key, words in WITHOUT.items()}
                        near[SUMMED] = np.sum([parts(each[2], size)[RESULTS.index(name)] for each in runs], axis=0)
                        return (f"on {size} ranks, {name} of rank {rank} is "
                                f"{why(name, mine, right, alone[name], size, near)}"
                                f"\nsee: zerosim show {shown} --ranks {size}")
        return None

    def sent_otherwise(self) -> str | None:
        """A rank that does not send the bytes of two all-reduces."""
        def program(comm: Communicator) -> int:
            traffic, flat = Traffic(), np.zeros(SAMPLES * WIDTH)
            for _ in range(2):
                ring.all_reduce(Observed(comm, traffic), split(flat, comm.size))
            return traffic.sent_bytes

        for size in SIZES:
            for rank, due in enumerate(spawn(program, size)):
                sent = self.on(size)[rank][-1]
                if sent != due:
                    return (f"on {size} ranks, rank {rank} sends {sent} bytes; two all-reduces, of y and of ∂L/∂x, "
                            f"send {due}\nsee: zerosim show copy_to --ranks {size}")
        return None


def why(name: str, found: Array, due: Array, alone: Array, size: int, near: dict[str, Array]) -> str:
    """The difference of a result in words; `near` has the results of known mistakes."""
    if np.array_equal(found, alone):
        return f"this rank's part of the sum: {ADDED.get(name, 'all ranks have a part')}"
    if np.array_equal(found, size * due):
        return f"{size} times that of the whole matrices: every rank has it whole already, so do not add it"
    for words, mistaken in near.items():
        if np.array_equal(found, mistaken):
            return words
    at = tuple(int(each) for each in np.argwhere(found != due)[0])
    return f"{found[at]:g} at {list(at)}; with the whole matrices it is {due[at]:g}"


def pair_claims(function: Any) -> list[Claim]:
    """The claims of f and g."""
    trial = PairTrial(function)
    return [
        Claim("y is that of the whole matrices, on every rank", partial(trial.wrong, "y"), 3, first=True),
        Claim("the gradient of x is that of the whole matrices, on every rank", partial(trial.wrong, "∂L/∂x"), 3),
        Claim("each rank has the gradients of its pieces", partial(trial.wrong, "∂L/∂up", "∂L/∂down"), 2),
        Claim("there are two all-reduces, of y and of the gradient of x", trial.sent_otherwise, 2),
    ]
