"""Tensors put together from the parts of ranks, and found in those of another run by their content. NumPy alone.

A matrix W has two projections: W·v has a number for each row, vᵀ·W one for each column, with pseudo-random factors v
that depend only on the position within a row, or within a column. Rows of W have the numbers of these rows, whoever
holds them and in whatever order; columns those of these columns. Where ranks are known to hold blocks or ranges of one
tensor, their contributions to its projections add up.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any

import numpy as np

from zerosim.core.allocation import Array
from zerosim.torch.check.record import Entry

OF_MODULES, AXES = ("output", "output gradient"), ("rows", "columns")
COPIED = 1e-11
"""Projections of equal weights differ by less than this part of the largest number: they are added in other orders."""


def matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """The rows and columns of a tensor as a matrix: the first axis, and all others.

    >>> matrix((4, 3, 2)), matrix((5,)), matrix(())
    ((4, 6), (5, 1), (1, 1))
    """
    return (shape[0], prod(shape[1:])) if shape else (1, 1)


@dataclass
class Whole(Entry):
    """A tensor as `ranks` hold it together, with its projections, and the rows and columns that each part has."""

    ranks: tuple[int, ...] = ()
    parts: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    @classmethod
    def of(cls, parts: list[tuple[int, Entry]]) -> "Whole":
        """The sum of what these parts contribute."""
        rows, columns = (np.zeros(count) for count in matrix(parts[0][1].shape))
        places = []
        for rank, part in parts:
            at = slice(part.first, part.first + len(part.rows))
            rows[at] += part.rows
            columns += part.columns
            places.append((rank, {"rows": at, "columns": part.columns != 0}))
        return cls(**vars(parts[0][1]) | {"rows": rows, "columns": columns, "parts": places,
                                          "ranks": tuple(sorted(rank for rank, _ in parts))})

    @property
    def constant(self) -> bool:
        """Whether its content cannot tell where it belongs."""
        return len(self.rows) == 0 or (bool(np.ptp(self.rows) <= COPIED * np.abs(self.rows).max()) and len(
            self.columns) == 1) or not self.rows.any()


@dataclass
class Place:
    """Where a tensor of a rank is in the reference's: all of it, or the rows or columns `at`."""

    whole: Whole
    axis: str = "rows"
    at: Array | None = None

    @property
    def cut(self) -> bool:
        return self.at is not None and len(self.at) < len(getattr(self.whole, self.axis))

    def of(self, values: Array, axis: str) -> Array:
        """The part of these rows or columns of the whole."""
        return values if self.at is None or axis != self.axis else values[self.at]


class Run:
    """The records of all ranks of one run."""

    def __init__(self, ranks: list[list[Entry]]) -> None:
        self.ranks = ranks
        self.kinds: dict[tuple[str, int], list[tuple[int, Entry]]] = {}
        for rank, entries in enumerate(ranks):
            for entry in entries:
                self.kinds.setdefault((entry.kind, entry.step), []).append((rank, entry))
        self.votes: dict[int, dict[str, Counter[str]]] = {}
        self.named, self.tokens = cache(self._named), cache(self._tokens)
        self.steps = max((step for kind, step in self.kinds if kind in ("updated", "gradient")), default=0)
        """How many updates all ranks have recorded."""
        self.roundoff = max((entry.roundoff for entries in ranks for entry in entries), default=0.0)
        """That of the coarsest dtype."""

    def _named(self, kind: str, step: int) -> dict[str, list[Whole]]:
        """The tensors of a kind by name, one for each rank or group of ranks that holds all that there is of it."""
        parts: dict[Any, dict[Any, list[tuple[int, Entry]]]] = {}
        for rank, entry in self.kinds.get((kind, step), []):
            holders = parts.setdefault((entry.name, tuple(entry.group)), {}).setdefault(
                (entry.place, rank if entry.added else -1), [])
            if not holders or holders[-1][0] != rank:
                holders.append((rank, entry))
        named: dict[str, list[Whole]] = {}
        for (name, *_), places in parts.items():
            named.setdefault(name, []).extend(
                Whole.of([holders[min(number, len(holders) - 1)] for holders in places.values()])
                for number in range(max(map(len, places.values()))))
        return named

    def wholes(self, kind: str, step: int) -> list[Whole]:
        """The tensors of a kind."""
        return [whole for wholes in self.named(kind, step).values() for whole in wholes]

    def _tokens(self, kind: str, step: int) -> dict[Any, dict[int, Array]]:
        """For each name with the width of a row, the numbers of each rank."""
        parts: dict[Any, dict[int, list[Entry]]] = {}
        for rank, entry in self.kinds.get((kind, step), []):
            parts.setdefault((entry.name, entry.shape[0]), {}).setdefault(rank, []).append(entry)
        return {key: {rank: np.concatenate([entry.rows for entry in entries]) for rank, entries in of_rank.items()}
                for key, of_rank in parts.items()}

    def loss(self, step: int) -> float:
        """The sum of a rank's losses, as a mean over the ranks that have one."""
        losses = self.kinds.get(("loss", step), [])
        ranks = {rank for rank, _ in losses}
        return sum(float(entry.rows[0]) for _, entry in losses) / len(ranks) if ranks else np.nan

    def numbers(self, kind: str, step: int) -> dict[Any, list[Array]]:
        """All numbers of a kind by name."""
        if kind == "loss":
            return {"": [np.array([self.loss(step)])]}
        if kind in OF_MODULES:
            return {key: [*of_rank.values()] for key, of_rank in self.tokens(kind, step).items()}
        return {name: [numbers for whole in wholes for numbers in (whole.rows, whole.columns)]
                for name, wholes in self.named(kind, step).items()}

    def order(self, kind: str, step: int) -> list[str]:
        """The modules in the order in which their numbers came."""
        return [*dict.fromkeys(entry.name for _, entry in self.kinds.get((kind, step), []))]

    def vote(self, rank: int, own: str, there: str) -> None:
        """A parameter of a rank is one of the reference: so are the modules that contain it, as far as names agree."""
        here, due, of_rank = own.split("."), there.split("."), self.votes.setdefault(rank, {})
        while here and due and here[-1] == due[-1]:
            here, due = here[:-1], due[:-1]
            of_rank.setdefault(".".join(here), Counter())[".".join(due)] += 1

    def there(self, rank: int, path: str) -> str:
        """The name in the reference of a module or parameter of a rank."""
        known, parts = self.votes.get(rank, {}), path.split(".") if path else []
        for length in range(len(parts), -1, -1):
            votes = known.get(".".join(parts[:length]))
            if votes is not None and len(votes) == 1:
                return ".".join(filter(None, [next(iter(votes)), *parts[length:]]))
        return path


def nearest(values: Array, wanted: Array) -> tuple[Array, Array]:
    """For each wanted number the position of the nearest of sorted `values`, and its distance.

    >>> nearest(np.array([0.0, 1.0, 4.0]), np.array([3.5, 0.25]))
    (array([2, 0]), array([0.5 , 0.25]))
    """
    if not len(values):
        return np.zeros(len(wanted), int), np.full(len(wanted), np.inf)
    right = np.clip(np.searchsorted(values, wanted), 0, len(values) - 1)
    left = np.maximum(right - 1, 0)
    at = np.where(np.abs(values[right] - wanted) <= np.abs(values[left] - wanted), right, left)
    return at, distance(values[at], wanted)


def distance(a: Array, b: Array) -> Array:
    """How far numbers are from others; what is no number is infinitely far.

    >>> distance(np.array([1.0, np.nan]), np.array([0.5, np.nan]))
    array([0.5, inf])
    """
    far: Array = np.abs(a - b)
    return np.where(np.isnan(far), np.inf, far)


def indexed(full: list[Whole]) -> Callable[[Whole], list[Place]]:
    """A function that finds the places of a tensor: where its largest number is, by rows or columns, all must be."""
    index = dict[str, tuple[Array, Array]]()
    for axis in AXES:
        parts = [getattr(whole, axis) for whole in full]
        values, owners = np.concatenate([np.zeros(0), *parts]), np.repeat(range(len(full)), [*map(len, parts)])
        sort = np.argsort(values, kind="stable")
        index[axis] = values[sort], owners[sort]

    def places(part: Whole) -> list[Place]:
        numbers: set[int] = set()
        for axis, (values, owners) in index.items():
            own = getattr(part, axis)
            if len(own) and len(values):
                largest, error = own[np.argmax(np.abs(own))], COPIED * max(-values[0], values[-1])
                first, last = np.searchsorted(values, [largest - error, np.nextafter(largest + error, np.inf)])
                numbers.update(owners[first:last].tolist())
        return [place for number in sorted(numbers) if (place := place_in(full[number], part)) is not None]

    return places


def place_in(full: Whole, part: Whole) -> Place | None:
    """Where a tensor's content is in a tensor of the reference; None if it is not there."""
    for axis, other in zip(AXES, AXES[::-1], strict=True):
        whole, own = getattr(full, axis), getattr(part, axis)
        if len(getattr(full, other)) != len(getattr(part, other)) or len(own) > len(whole):
            continue
        tolerance = COPIED * max(np.abs(whole).max(initial=0), 1e-300)
        if len(own) == len(whole) and np.abs(own - whole).max(initial=0) <= tolerance:
            return Place(full, axis)
        sort = np.argsort(whole, kind="stable")
        at, far = nearest(whole[sort], own)
        if (far <= tolerance).all():
            twice = bool((np.diff(whole[sort]) <= tolerance).any())
            return Place(full, axis, consecutive(whole, own, sort[at], tolerance) if twice else sort[at])
    return None


def consecutive(whole: Array, own: Array, at: Array, tolerance: float) -> Array:
    """Positions with the same numbers where these follow each other as often as possible: some numbers come twice.

    >>> consecutive(np.array([1.0, 2.0, 3.0, 1.0, 2.0, 4.0]), np.array([1.0, 2.0, 4.0]), np.array([0, 1, 5]), 0.0)
    array([3, 4, 5])
    """
    for numbers, way in ((range(1, len(at)), 1), (range(len(at) - 2, -1, -1), -1)):
        for number in numbers:
            following = at[number - way] + way
            if 0 <= following < len(whole) and abs(whole[following] - own[number]) <= tolerance:
                at[number] = following
    return at


def placed(reference: Run, other: Run) -> tuple[dict[tuple[int, str], Place], list[Whole]]:
    """The place of each rank's tensors by name, and those that have none.

    Content decides. Tensors with the same content are told apart by their first gradient, and then by name. Constants,
    such as the weights of norms, are found by name, after the modules that contain them are known; where they are cut,
    they are cut like the weight of the same module.
    """
    full = reference.wholes("weight", 1)
    named = {name: whole for whole in full for name in (whole.name, *whole.aliases)}
    find, lost, constants = indexed(full), list[Whole](), list[Whole]()
    places: dict[tuple[int, str], Place] = {}
    siblings = dict[tuple[int, str], list[Place]]()

    def put(whole: Whole, place: Place) -> None:
        for rank in whole.ranks:
            places[rank, whole.name] = place
            siblings.setdefault((rank, whole.name.rpartition(".")[0]), []).append(place)
            if not whole.name.startswith("?"):
                other.vote(rank, whole.name, whole.name if named.get(whole.name) is place.whole else place.whole.name)

    for whole in other.wholes("weight", 1):
        if whole.constant:
            constants.append(whole)
            continue
        gradient = like(other.named("gradient", 1), whole)
        place = min(find(whole), default=None, key=lambda place: (
            0.0 if gradient is None else far_from(like(reference.named("gradient", 1), place.whole), gradient, place),
            {place.whole.name, *place.whole.aliases}.isdisjoint({whole.name, *whole.aliases})))
        if place is None:
            lost.append(whole)
        else:
            put(whole, place)
    for whole in constants:
        own = whole.ranks[0]
        candidate = next((named[name] for name in (other.there(own, whole.name), whole.name) if name in named), None)
        if candidate is None or len(whole.rows) > len(candidate.rows):
            lost.append(whole)
        elif len(whole.rows) == len(candidate.rows):
            put(whole, Place(candidate))
        else:
            cuts = [place.at for place in siblings.get((own, whole.name.rpartition(".")[0]), []) if place.axis == "rows"
                    and place.cut and place.at is not None and len(place.at) == len(whole.rows)]
            put(whole, Place(candidate, "rows", cuts[0])) if cuts else None
    return places, lost


def like(named: dict[str, list[Whole]], whole: Whole) -> Whole | None:
    """The tensor of this name that the same rank has."""
    return next((one for one in named.get(whole.name, ()) if whole.ranks[0] in one.ranks), None)


def far_from(full: Whole | None, own: Whole, place: Place) -> float:
    """How far the direction of a gradient is from what a place expects: its size may be wrong, or clipped."""
    if full is None:
        return np.inf
    due, values = (numbers / max(float(np.linalg.norm(numbers)), 1e-300) for numbers in (
        place.of(getattr(full, place.axis), place.axis), getattr(own, place.axis)))
    return float(np.linalg.norm(values - due)) if due.shape == values.shape else np.inf
