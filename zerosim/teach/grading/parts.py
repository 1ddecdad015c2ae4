"""The claims about a user's own part: the checks that a scenario makes before a run, and more.

    collective   proofs on 1 to 8 ranks, and the declared order of addition
    stage        the bits of the shipped stage with the same sharding, and the same bytes sent and kept
    optimizer    an elementwise formula that works in place
    model        layers that fit together, and gradients that agree with finite differences
    samples      a function that returns the same arrays twice

Each part except a stage, which is compared separately, is also trained with by all stages and by one process.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from zerosim.collectives import Algorithm
from zerosim.collectives.own import SERVING, as_collective
from zerosim.data import load_dataset
from zerosim.errors import UsageError, ZerosimError
from zerosim.models.own import as_model
from zerosim.models.units import Model, ModelKind, Task
from zerosim.optim.optimizers import Optimizer
from zerosim.optim.own import declared, wrong
from zerosim.parts import Named
from zerosim.parts.signature import as_source
from zerosim.scenario import Data, ModelKeys, Parallel, Scenario, Train, WorldKeys
from zerosim.show.table import divergence
from zerosim.stages import STAGES, Stage
from zerosim.stages.own import as_stage
from zerosim.teach.grading.claims import CLAIMS
from zerosim.teach.grading.examination import Examination, grade
from zerosim.teach.grading.exercises import Claim, Grade
from zerosim.teach.grading.proved import PLAIN, RANKS, added_in, unproved
from zerosim.teach.grading.stages import StageTrial, fault_in, trials_of
from zerosim.teach.proofs.subject import Subject, collective_in
from zerosim.training.config import configured
from zerosim.training.experiment import prepare
from zerosim.training.one_function import computed, differences, some_batch, some_weights
from zerosim.training.program import Silent
from zerosim.verdict.judged_run import run_locally

TRAINED = "every stage trains with it to the bits of one process"
DIGITS, TEXT = Task(64, 10, "cross_entropy"), Task(8, 65, "cross_entropy", tokens=True)
PATIENCE_SECONDS = 60.0


def grade_named(name: str, part: Any) -> Grade:
    """The grade of an exercise if the function has the name of one, else of a part."""
    function = getattr(part, "__name__", "")
    if function not in CLAIMS:
        return grade_part(name, part)
    return grade(part, function, CLAIMS[function], inspect.getsourcefile(part) or "")


def grade_part(name: str, part: Any) -> Grade:
    """The grade of a user's own part. Raises `UsageError` for anything else."""
    file = getattr(inspect.getmodule(part), "__file__", None) or name.rpartition(":")[0]
    examination = Examination(file)
    try:
        items = list(examination.items(part_claims(name, part)))
    except NotImplementedError:
        return Grade(name, "not yet written")
    failed = [item for item in items if item.state == "does not hold"]
    complaint = f"not so: {failed[0].says}\n{failed[0].complaint}" if failed else None
    return Grade(name, "does not hold yet" if failed else "holds", items, complaint, examination.printed)


def fault_of_part(name: str, part: Any) -> str | None:
    """The first complaint about a part, without training with it."""
    return next((said for claim in part_claims(name, part) if claim.says != TRAINED and (said := claim.complaint())),
                None)


def part_claims(name: str, part: Any) -> list[Claim]:
    """All claims about a part, the most basic first; a malformed part has one claim, which fails."""
    claims_of, made = KINDS[kind_of(name, part)]
    try:
        return claims_of(name, made(name, part))
    except UsageError as error:
        said = str(error).removeprefix(f"{name}: ")
        return [Claim("it is written as its kind is", lambda: said, first=True)]


def kind_of(name: str, part: Any) -> str:
    """The kind of a part, by the type that its decorator gave it, or by its parameters."""
    for row, kind in DECLARED.items():
        if isinstance(part, row):
            return kind
    if not inspect.isfunction(part):
        raise UsageError(f"{name} is a {type(part).__name__}; give a model, an optimizer, a stage, a collective or a "
                         "function that gives samples, as docs/extend.md writes them")
    parameters = inspect.signature(part).parameters
    positional = [each.name for each in parameters.values()
                  if each.kind is each.POSITIONAL_OR_KEYWORD and each.default is each.empty]
    if positional[:1] == ["comm"]:
        return "collective"
    if {"t", "h"} & set(parameters):
        return "optimizer"
    if len(positional) < len(BY_COUNT):
        return BY_COUNT[len(positional)]
    raise UsageError(f"{name}{inspect.signature(part)} is no part; write f(comm, chunks), step(replica, batch), "
                     "f(g, …, *, t, h, a, b), f(task, *, key=default) or f(*, key=default)")


DECLARED: dict[type, str] = {
    Algorithm: "collective", Stage: "stage", Optimizer: "optimizer", ModelKind: "model",
}
BY_COUNT = ("samples", "model", "stage")
"""The kind of a function by the number of its positional parameters."""


def collective_of(name: str, part: Any) -> Algorithm:
    """The algorithm, of the kind in its name."""
    function = part.function if isinstance(part, Algorithm) else part
    kind = collective_in(function.__name__)
    if kind not in SERVING:
        raise UsageError(f"{name} serves a stage as one of {', '.join(SERVING)}: let its name contain which")
    return as_collective(kind)(name, part)


def collective_claims(name: str, row: Algorithm) -> list[Claim]:
    """Proofs on the numbers of ranks that the algorithm supports, and a training."""
    examined = Subject(row.function.__name__, row.collective, row.function, "in place", declared=row)
    sizes = [size for size in RANKS if row.serves(size)]
    found = [
        Claim("every contribution arrives at its place, once", partial(unproved_on, examined, sizes), 3, first=True),
        Claim("also where the ranks do not divide the vector", partial(unproved, examined, sizes, divided=False)),
    ]
    if row.order is not None:
        adds = partial(added_in, examined, row.order, sizes)
        found.append(Claim("every chunk is added in the order that it declares", adds, 2))
    keys: dict[str, Any] = {row.collective: Named(name, row, "")}
    if row.collective == "broadcast":
        keys["publish"] = "broadcasts"
    return [*found, Claim(TRAINED, partial(differs, parallel=keys), 2)]


def unproved_on(examined: Subject, sizes: Sequence[int]) -> str | None:
    """The error on the fewest ranks, and the declaration to add if it is correct on powers of two."""
    found = unproved(examined, sizes)
    if found is None or unproved(examined, [size for size in PLAIN if size in sizes]) is not None:
        return found
    return f"{found}\n{DECLARE}"


DECLARE = "or declare it: @collective(powers_of_two=True) serves 1, 2, 4, 8, … ranks only"


def stage_claims(name: str, part: Stage) -> list[Claim]:
    """The bits of the shipped stage with the same sharding, and its bytes sent, kept and held."""
    at_once, in_turn = trials = trials_of(part)
    return [
        Claim("it trains to the bits of the stage that shards the same", partial(fault_in, at_once), 3,
              first=True),
        Claim("also where micro-batches go one after another", partial(fault_in, in_turn), first=True),
        Claim("every rank sends the bytes of the formula", partial(either, trials, StageTrial.sent_otherwise), 2),
        Claim("every rank keeps between steps what it declares, and no more",
              partial(either, trials, StageTrial.kept_otherwise), 2),
        Claim("nothing is held longer than it is used", partial(either, trials, StageTrial.held_too_much), 2),
    ]


def either(trials: Sequence[StageTrial], ask: Callable[[StageTrial], str | None]) -> str | None:
    """The first complaint about the trials."""
    return next(filter(None, map(ask, trials)), None)


def optimizer_of(name: str, part: Any) -> Optimizer:
    return part if isinstance(part, Optimizer) else declared(name, part)


def optimizer_claims(name: str, rule: Optimizer) -> list[Claim]:
    return [
        Claim("its formula works element by element, and writes its slots in place", partial(wrong, rule), 2,
              first=True),
        Claim(TRAINED, partial(differs, train={"optimizer": Named(name, rule, "")}), 2),
    ]


def model_claims(name: str, kind: ModelKind) -> list[Claim]:
    settings, task = trial_of(name, kind)
    data = {"source": "text"} if task.tokens else {}

    def read() -> str | None:
        groups = [[number] for number in range(kind.layer_count(settings))]
        kind.for_task(settings, task, groups, ())
        return None

    def slopes() -> str | None:
        groups = [[number] for number in range(kind.layer_count(settings))]
        return wrong_slope(kind.for_task(settings, task, groups, ()))

    return [
        Claim("its layers fit together and read all of their parameters", partial(named_error, name, read), first=True),
        Claim("its gradients are what differences of forward say, in float64", slopes, 2),
        Claim(TRAINED, partial(differs, model=settings, data=data), 2),
        Claim("over two ranks of any direction it is the model in one piece", partial(split_otherwise, name, kind)),
    ]


def split_otherwise(name: str, kind: ModelKind) -> str | None:
    """The first difference of the model over two ranks of a direction, in float64; None where it cannot be split."""
    settings, task = trial_of(name, kind)
    for direction in ("tensor", "context", "expert"):
        sizes: dict[str, Any] = {f"{direction}_ranks": 2}
        (row,) = Scenario(world=WorldKeys(2), model=settings, parallel=Parallel(("ddp",), **sizes)).rows
        try:
            config = configured(row, task)
        except ZerosimError:
            continue
        for each in differences(config):
            return f"over two {direction} ranks: {each}"
    return None


def trial_of(name: str, kind: ModelKind) -> tuple[ModelKeys, Task]:
    """The keys of the model with their defaults, and a small task."""
    task = TEXT if kind.reads_tokens else DIGITS
    settings = ModelKeys(kind=Named(name, kind, ""))
    return (replace(settings, sequence=task.inputs) if task.tokens else settings), task


def samples_claims(name: str, part: Any) -> list[Claim]:
    scenario = partial(small, data={"source": Named(name, part, "")})
    return [
        Claim("it gives the same arrays each time, which fit together",
              partial(named_error, name, lambda: load_dataset(scenario()) and None), 2, first=True),
        Claim(TRAINED, partial(differs, data={"source": Named(name, part, "")})),
    ]


def named_error(name: str, call: Callable[[], Any]) -> str | None:
    """The message of a named error without the part's name; None without an error."""
    try:
        call()
    except ZerosimError as error:
        return str(error).removeprefix(f"{name}: ")
    return None


def small(
    *, data: dict[str, Any] | None = None, model: ModelKeys | None = None, train: dict[str, Any] | None = None,
    parallel: dict[str, Any] | None = None,
) -> Scenario:
    """A scenario of two steps on four ranks by every stage."""
    return Scenario(
        world=WorldKeys(4), data=Data(**data or {}), model=model or ModelKeys(hidden=(9,)),
        train=Train(steps=2, micro_batch=4, micro_batches=8, **train or {}),
        parallel=Parallel(tuple(STAGES)[:4], **parallel or {}))


def differs(**sections: Any) -> str | None:
    """The failed claims of a training with the part, and the first number that differs."""
    scenario = small(**sections)
    try:
        outcome = run_locally(prepare(scenario, load_dataset(scenario)), Silent(), limit_seconds=PATIENCE_SECONDS)
    except ZerosimError as error:
        return str(error)
    if outcome.passed:
        return None
    first = next((row for row in outcome.trained if row.first_divergence is not None), None)
    where = f"\n{first.config.name}: {divergence(first.first_divergence)}" if first and first.first_divergence else ""
    return "; ".join(f"{row}: {what}" for row, what in outcome.failures) + where


KINDS: dict[str, tuple[Callable[[str, Any], list[Claim]], Callable[[str, Any], Any]]] = {
    "collective": (collective_claims, collective_of),
    "stage": (stage_claims, as_stage),
    "optimizer": (optimizer_claims, optimizer_of),
    "model": (model_claims, as_model),
    "samples": (samples_claims, as_source),
}
"""The claims of each kind, and the constructor of a part of that kind."""


SAMPLES = 4
STEP = 1e-6
TOLERANCE = 1e-5
"""The greatest error relative to the sum of the terms in the slope; `NOISE` is that of a difference of losses."""
NOISE = 1e-8


def wrong_slope(model: Model) -> str | None:
    """The last parameter whose gradient differs from central differences of the loss; None if all agree.

    A wrong gradient of a layer's input also makes those of all earlier parameters wrong.
    """
    random, batch = np.random.default_rng(19), some_batch(model, SAMPLES)
    weights = some_weights(model)
    _, gradients = computed(model, weights, batch)
    for unit, place in ((each, place) for each in reversed(model.units) for place in reversed(each.places)):
        weight, gradient = unit.views(weights[unit])[place.name], gradients[place.name]
        direction, before, losses = random.standard_normal(weight.shape), weight.copy(), []
        for step in (STEP, -STEP):
            weight[...] = before + step * direction
            losses.append(float(computed(model, weights, batch)[0][0]))
        weight[...] = before
        due = (losses[0] - losses[1]) / (2 * STEP)
        told, size = float(np.sum(gradient * direction)), float(np.abs(gradient * direction).sum())
        if not abs(told - due) <= TOLERANCE * size + NOISE:
            return (f"layer {place.prefix.rstrip('.')}: the gradient of its parameter {place.parameter.name!r} along a "
                    f"random direction is {told:.6g} by backward and {due:.6g} by finite differences; zerosim check "
                    "FILE tries single operations")
    return None
