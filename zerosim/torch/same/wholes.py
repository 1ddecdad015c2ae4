"""Tensors put together from the parts of ranks, and found in those of another run by their content. NumPy alone."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from zerosim.torch.check.record import Array, Entry
from zerosim.torch.same.record import is_range, matrix, span

COPIED = 1e-11
"""Projections of equal weights differ by less than this part of the largest number: they are added in other orders."""


NOBODY, SEVERAL = -1, -2
"""Instead of the rank that has a row or a column."""


@dataclass
class Whole:
    """A tensor as `ranks` hold it together, with its projections, and the rank that has each row and each column."""

    name: str
    aliases: list[str]
    shape: tuple[int, ...]
    ranks: tuple[int, ...]
    rows: Array
    columns: Array
    owners: Array
    column_owners: Array
    line: str
    settings: dict[str, float]

    @classmethod
    def of(cls, parts: list[tuple[int, Entry]]) -> "Whole":
        """The sum of what these parts contribute."""
        entry = parts[0][1]
        count, width = matrix(entry.shape)
        whole = cls(entry.name, entry.aliases, entry.shape, tuple(sorted(rank for rank, _ in parts)), np.zeros(count),
                    np.zeros(width), np.full(count, NOBODY), np.full(width, NOBODY), entry.line, entry.settings)
        for rank, part in parts:
            first, last, columns = span(part.shape, part.place)
            whole.rows[first:last] += part.rows
            whole.columns[columns] += part.columns
            for owners, at in ((whole.owners, slice(first, last)), (whole.column_owners, columns)):
                owners[at] = np.where(owners[at] == NOBODY, rank, SEVERAL)
        return whole

    @property
    def constant(self) -> bool:
        """Whether its content cannot tell where it belongs."""
        return len(self.rows) == 0 or (bool(np.ptp(self.rows) <= COPIED * np.abs(self.rows).max()) and len(
            self.columns) == 1) or not self.rows.any()


@dataclass
class Place:
    """Where a tensor of a rank is in the reference's: all of it, or the rows or columns `at`."""

    whole: Whole
    axis: str
    at: Array | None
    size: tuple[int, int]

    @property
    def cut(self) -> bool:
        return self.at is not None and len(self.at) < len(getattr(self.whole, self.axis))


class Run:
    """The records of all ranks of one run."""

    def __init__(self, ranks: list[list[Entry]]) -> None:
        self.ranks = ranks
        self.kinds: dict[tuple[str, int], list[tuple[int, Entry]]] = {}
        for rank, entries in enumerate(ranks):
            for entry in entries:
                self.kinds.setdefault((entry.kind, entry.step), []).append((rank, entry))
        self.votes: dict[int, dict[str, Counter[str]]] = {}
        self._wholes: dict[tuple[str, int], list[Whole]] = {}
        self._named: dict[tuple[str, int], dict[str, list[Whole]]] = {}
        self._tokens: dict[tuple[str, int], dict[Any, dict[int, Array]]] = {}

    @cached_property
    def steps(self) -> int:
        """How many updates all ranks have recorded."""
        return max((step for kind, step in self.kinds if kind in ("updated", "gradient")), default=0)

    @cached_property
    def names(self) -> set[str]:
        return {whole.name for whole in self.wholes("weight", 1)}

    def has_gradients(self, rank: int, step: int) -> bool:
        return any(holder == rank for holder, _ in self.kinds.get(("gradient", step), []))

    def wholes(self, kind: str, step: int) -> list[Whole]:
        """The tensors of a kind, one for each rank or group of ranks that holds all that there is of it."""
        if (kind, step) not in self._wholes:
            parts: dict[Any, dict[Any, list[tuple[int, Entry]]]] = {}
            for rank, entry in self.kinds.get((kind, step), []):
                holders = parts.setdefault((entry.name, tuple(entry.group), is_range(entry.shape, entry.place)),
                                           {}).setdefault((entry.place, rank if entry.added else -1), [])
                if not holders or holders[-1][0] != rank:
                    holders.append((rank, entry))
            self._wholes[kind, step] = [
                Whole.of([holders[min(number, len(holders) - 1)] for holders in places.values()])
                for places in parts.values() for number in range(max(map(len, places.values())))]
        return self._wholes[kind, step]

    def named(self, kind: str, step: int) -> dict[str, list[Whole]]:
        """The tensors of a kind by name."""
        if (kind, step) not in self._named:
            of = self._named[kind, step] = {}
            for whole in self.wholes(kind, step):
                of.setdefault(whole.name, []).append(whole)
        return self._named[kind, step]

    def tokens(self, kind: str, step: int) -> dict[Any, dict[int, Array]]:
        """For each name with the width of a row, the numbers of each rank in the order of its calls."""
        if (kind, step) not in self._tokens:
            parts: dict[Any, dict[int, list[Entry]]] = {}
            for rank, entry in self.kinds.get((kind, step), []):
                parts.setdefault((entry.name, entry.shape[0]), {}).setdefault(rank, []).append(entry)
            self._tokens[kind, step] = {
                key: {rank: np.concatenate([entry.rows for entry in sorted(entries, key=lambda entry: entry.call)])
                      for rank, entries in of_rank.items()} for key, of_rank in parts.items()}
        return self._tokens[kind, step]

    def loss(self, step: int) -> float:
        """The sum of a rank's losses, as a mean over the ranks that have one."""
        sums: dict[int, float] = {}
        for rank, entry in self.kinds.get(("loss", step), []):
            sums[rank] = sums.get(rank, 0.0) + float(entry.rows[0])
        return float(np.mean([*sums.values()])) if sums else float("nan")

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


class Index:
    """The tensors of the reference that may contain another: those that have its largest number, by rows or columns."""

    def __init__(self, full: list[Whole]) -> None:
        self.full, self.sorted = full, dict[tuple[str, int], tuple[Array, Array, float]]()
        groups: dict[tuple[str, int], list[int]] = {}
        for number, whole in enumerate(full):
            for axis, length in (("rows", len(whole.columns)), ("columns", len(whole.rows))):
                groups.setdefault((axis, length), []).append(number)
        for (axis, length), numbers in groups.items():
            parts = [getattr(full[number], axis) for number in numbers]
            values, owners = np.concatenate(parts), np.repeat(numbers, [len(part) for part in parts])
            sort = np.argsort(values, kind="stable")
            self.sorted[axis, length] = values[sort], owners[sort], COPIED * float(np.abs(values).max(initial=0))

    def candidates(self, part: Whole) -> list[Whole]:
        numbers: set[int] = set()
        for axis, own, length in (("rows", part.rows, len(part.columns)), ("columns", part.columns, len(part.rows))):
            values, owners, error = self.sorted.get((axis, length), (np.zeros(0), np.zeros(0, int), 0.0))
            if len(own):
                largest = own[np.argmax(np.abs(own))]
                first, last = np.searchsorted(values, [largest - error, np.nextafter(largest + error, np.inf)])
                numbers.update(owners[first:last].tolist())
        return [self.full[number] for number in sorted(numbers)]


def found(full: Whole, part: Whole) -> Place | None:
    """Where a tensor's content is in a tensor of the reference; None if it is not there."""
    size = len(part.rows), len(part.columns)
    for axis, other in (("rows", "columns"), ("columns", "rows")):
        whole, own = getattr(full, axis), getattr(part, axis)
        if len(getattr(full, other)) != len(getattr(part, other)) or len(own) > len(whole):
            continue
        tolerance = COPIED * max(np.abs(whole).max(initial=0), 1e-300)
        if len(own) == len(whole) and np.abs(own - whole).max(initial=0) <= tolerance:
            return Place(full, axis, None, size)
        sort = np.argsort(whole, kind="stable")
        at, far = nearest(whole[sort], own)
        if (far <= tolerance).all():
            twice = bool((np.diff(whole[sort]) <= tolerance).any())
            return Place(full, axis, following(whole, own, sort[at], tolerance) if twice else sort[at], size)
    return None


def following(whole: Array, own: Array, at: Array, tolerance: float) -> Array:
    """Positions with the same numbers where these follow each other as often as possible: some numbers come twice.

    >>> following(np.array([1.0, 2.0, 3.0, 1.0, 2.0, 4.0]), np.array([1.0, 2.0, 4.0]), np.array([0, 1, 5]), 0.0)
    array([3, 4, 5])
    """
    for numbers, way in ((range(1, len(at)), 1), (range(len(at) - 2, -1, -1), -1)):
        for number in numbers:
            beside = at[number - way] + way
            if 0 <= beside < len(whole) and abs(whole[beside] - own[number]) <= tolerance:
                at[number] = beside
    return at


def placed(reference: Run, other: Run) -> tuple[dict[tuple[int, str], Place], list[Whole]]:
    """The place of each rank's tensors by name, and those that have none.

    Content decides, first where the name agrees. Tensors with the same content are told apart by their first gradient.
    Constants, such as the weights of norms, are found by name, after the modules that contain them are known; where
    they are cut, they are cut like the weight beside them.
    """
    full = reference.wholes("weight", 1)
    named = {name: whole for whole in full for name in (whole.name, *whole.aliases)}
    index = Index(full)
    twins: dict[bytes, list[Whole]] = {}
    for whole in full:
        twins.setdefault(whole.rows.tobytes(), []).append(whole)
    gradients = {whole.name: whole for whole in reference.wholes("gradient", 1)}
    own_gradients = {(rank, whole.name): whole for whole in other.wholes("gradient", 1) for rank in whole.ranks}
    places: dict[tuple[int, str], Place] = {}
    beside: dict[tuple[int, str], list[Place]] = {}
    lost, constants = [], []

    def put(whole: Whole, place: Place) -> None:
        for rank in whole.ranks:
            places[rank, whole.name] = place
            beside.setdefault((rank, whole.name.rpartition(".")[0]), []).append(place)
            if not whole.name.startswith("?"):
                other.vote(rank, whole.name, next((name for name in (place.whole.name, *place.whole.aliases)
                                                   if name == whole.name), place.whole.name))

    for whole in other.wholes("weight", 1):
        if whole.constant:
            constants.append(whole)
            continue
        by_name = [named[name] for name in (whole.name, *whole.aliases) if name in named]
        place = next(filter(None, (found(candidate, whole) for candidate in by_name)), None) or next(
            filter(None, (found(candidate, whole) for candidate in index.candidates(whole))), None)
        if place is None:
            lost.append(whole)
            continue
        same = twins[place.whole.rows.tobytes()]
        gradient = own_gradients.get((whole.ranks[0], whole.name))
        if len(same) > 1 and gradient is not None:
            candidates = [Place(twin, place.axis, place.at, place.size) for twin in (place.whole, *same)]
            place = min(candidates, key=lambda one: far_from(gradients.get(one.whole.name), gradient, one))
        put(whole, place)
    for whole in constants:
        own = whole.ranks[0]
        names = [other.there(own, whole.name), whole.name]
        candidate = next((named[name] for name in names if name in named), None)
        if candidate is None or len(whole.rows) > len(candidate.rows):
            lost.append(whole)
            continue
        like = [place.at for place in beside.get((own, whole.name.rpartition(".")[0]), []) if place.axis == "rows"
                and place.cut and place.at is not None and len(place.at) == len(whole.rows)]
        if len(whole.rows) == len(candidate.rows):
            put(whole, Place(candidate, "rows", None, (len(whole.rows), len(whole.columns))))
        elif like:
            put(whole, Place(candidate, "rows", like[0], (len(whole.rows), len(whole.columns))))
    return places, lost


def far_from(full: Whole | None, own: Whole, place: Place) -> float:
    """How far the direction of a gradient is from what a place expects: its size may be wrong, or clipped."""
    if full is None:
        return np.inf
    due = getattr(full, place.axis)
    due = due if place.at is None else due[place.at]
    values = getattr(own, place.axis)
    due, values = (numbers / max(float(np.linalg.norm(numbers)), 1e-300) for numbers in (due, values))
    return float(np.linalg.norm(values - due)) if due.shape == values.shape else np.inf
