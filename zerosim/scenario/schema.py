"""A scenario of training, and its rows: each variant or stage becomes a `Row` with claims of its own.

Rows used to be a name and a position; then a row that did not fit took another row's claim.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zerosim.parts import Named
from zerosim.scenario.collective import CollectiveScenario
from zerosim.scenario.conditions import conflicts, no_fault, of_frozen
from zerosim.scenario.fault import Fault
from zerosim.scenario.origin import Origin
from zerosim.scenario.positions import dotted
from zerosim.scenario.rules import rules
from zerosim.scenario.sections import ModelKeys, Parallel, Sections, Train
from zerosim.sharding import Directions

OFFLOAD_FOLDER = ("parallel", "offload_folder")


@dataclass(frozen=True)
class Claims:
    """The claims of a scenario about one row; None for no claim."""

    volume: float | None = None
    messages: int | None = None
    largest_message: int | None = None
    """The bytes of the largest message."""
    activations: int | None = None
    """The bytes of activations at the peak."""
    beyond_peak: int | None = None
    """The bytes beyond the peak that first fit needs."""
    beyond_peak_laid_out: int | None = None
    """The bytes beyond the peak that first fit needs if long-lived arrays are laid out beforehand."""
    fragmentation: bool = False
    """Whether fragmentation is measured."""
    does_not_fit: bool = False
    test_accuracy: float = 0.0
    test_loss: float = 0.0
    """The upper limit of the test loss; 0 for no claim."""
    reference: bool = True
    """The claim that it equals one process, which is then trained."""
    between_bytes: int | None = None
    """The bytes that leave hosts in a step, over all ranks."""
    kept_bytes: int | None = None
    """The bytes of model states that a rank keeps between steps."""
    collectives: tuple[str, ...] = ()
    """The collectives of `collective_bytes`; all, if there are none."""
    collective_bytes: int | None = None
    """The bytes that these send in a step, on the rank that sends the most."""


@dataclass(frozen=True)
class Row:
    """One line of a comparison. Rows are identified by themselves, never by their position."""

    name: str
    """The scenario's name of the row, or one made from its keys; empty: the title of its stage."""
    stage: str
    """A key of the table of stages."""
    ranks: int
    """The number of ranks with micro-batches of their own."""
    directions: Directions
    """The ranks that train one copy of the model."""
    ranks_per_host: int
    """The number of ranks on a host; 0: that of the real hosts."""
    short_gather_bytes: int
    """The longest vector that is short, for `parallel.all_gather = "auto"`."""
    memory_limit_mb: int
    model: ModelKeys
    train: Train
    parallel: Parallel
    """The section with the row's own keys; its `stages` names this row's alone."""
    layers: tuple[tuple[int, ...], ...]
    """The layers of each unit."""
    claims: Claims


@dataclass(frozen=True)
class Scenario(Sections):
    """A whole scenario.

    >>> Scenario(train=Train(optimizer="adamw")).train.weight_decay
    0.01

    Raises `ScenarioError` if two keys contradict each other.
    """

    def __post_init__(self) -> None:
        rows, origin = self.names({}), self.origin
        if origin.is_override(("model", "kind")):
            self._reset_keys_of_other_kinds()
        changed = origin.overridden("parallel", "variant") and not origin.is_override(("check", "does_not_fit"))
        for conflict in conflicts(self, rows, changed=changed):
            raise conflict.error(origin)

    def _reset_keys_of_other_kinds(self) -> None:
        """Leave out the file's keys of a kind of model that an override has replaced."""
        default = ModelKeys()
        reset = {key: getattr(default, key) for key in self.model.others_keys
                 if not self.origin.is_override(("model", key))}
        object.__setattr__(self, "model", dataclasses.replace(self.model, **reset))

    def faults_after(self, restarts: int) -> list[Fault]:
        """The faults of a run after this number of restarts; raises `ScenarioError` if one names a missing rank."""
        due = [(index, fault) for index, fault in enumerate(self.fault) if fault.after_restarts == restarts]
        last = self.world.ranks - 1
        for index, fault in due:
            if fault.rank > last:
                raise no_fault(
                    index, "rank", f"rank is {fault.rank}, but the last rank is {last}; give an existing rank",
                ).error(self.origin)
        return [fault for _, fault in due]

    @property
    def parts(self) -> dict[str, Named]:
        """The users' Python parts, by the key that names them."""
        return dict(parts_in(self))

    @property
    def rows(self) -> "list[Row]":
        """The rows in the order of training: each variant or, without any, each stage.

        >>> from zerosim.scenario.sections import Check
        >>> [(row.stage, row.claims.volume) for row in Scenario(
        ...     parallel=Parallel(stages=("ddp", "zero3")), check=Check(volumes=(2, 3))).rows]
        [('ddp', 2), ('zero3', 3)]
        """
        named = [(variant.name, variant.applied(self.parallel)) for variant in self.variant]
        alone = [("", dataclasses.replace(self.parallel, stages=(stage,))) for stage in self.parallel.stages]
        return [self._row(number, name, parallel) for number, (name, parallel) in enumerate(named or alone)]

    def names(self, titles: Mapping[str, str]) -> list[str]:
        """The name of each row, with `titles` for stages; names are unique.

        >>> from zerosim.scenario.sections import Variant
        >>> Scenario(variant=(Variant("a"), Variant("a"), Variant(stage="ddp"))).names({"ddp": "DDP"})
        ['a', 'a (2)', 'DDP']
        """
        found: dict[str, None] = {}
        numbers: dict[str, int] = {}
        given = [variant.named(titles) for variant in self.variant]
        for name in given or [titles.get(stage, stage) for stage in self.parallel.stages]:
            another = name
            while another in found:
                numbers[name] = numbers.get(name, 1) + 1
                another = f"{name} ({numbers[name]})"
            found[another] = None
        return list(found)

    def _row(self, number: int, name: str, parallel: Parallel) -> Row:
        (stage,) = parallel.stages
        for conflict in of_frozen(parallel, self.model) if self.model.frozen else ():
            raise conflict.error(self.origin)
        if parallel.offload_folder:
            folder = self.origin.folder(OFFLOAD_FOLDER) / parallel.offload_folder
            parallel = dataclasses.replace(parallel, offload_folder=str(folder))
        claims = Claims(
            **self.check.of_row(number),
            fragmentation=bool(self.check.fragmentation or self.check.beyond_peak or self.check.beyond_peak_laid_out),
            does_not_fit=stage in self.check.does_not_fit,
            test_accuracy=self.check.test_accuracy,
            test_loss=self.check.test_loss if isinstance(self.check.test_loss, float) else 0.0,
            reference=self.check.reference,
            collectives=self.check.collectives,
        )
        return Row(
            name, stage, self.world.ranks // parallel.directions.places, parallel.directions, self.world.ranks_per_host,
            round(1000 * self.cluster.short_gather_kb), self.world.memory_limit_mb, self.model, self.train, parallel,
            self.model.units_of(parallel.units), claims,
        )


def resolved(scenario: "Scenario | CollectiveScenario") -> dict[str, Any]:
    """Every key with its value, defaults filled in, in JSON's own types.

    >>> resolved(Scenario())["data"]
    {'source': 'digits', 'target': '', 'test_every': 0}
    """
    return {name: plain(getattr(scenario, name)) for name in rules(type(scenario))}


def plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    if dataclasses.is_dataclass(value):
        found = {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
        return found | found.pop("own", {})
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    return value


def parts_in(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str, Named]]:
    """The users' parts in a scenario, with the keys that name them."""
    if isinstance(value, Named):
        yield dotted(path), value
    elif isinstance(value, tuple):
        for index, each in enumerate(value):
            yield from parts_in(each, (*path, index))
    elif dataclasses.is_dataclass(value) and not isinstance(value, Origin):
        for each in dataclasses.fields(value):
            yield from parts_in(getattr(value, each.name), (*path, each.name))


def python_run(scenario: Any) -> list[str]:
    """A line that names the Python files that a scenario runs, if any."""
    found = {f"{part} (sha256 {part.sha256[:8]}…)": None for _, part in parts_in(scenario)}
    return [f"runs your Python code: {', '.join(found)}"] if found else []
