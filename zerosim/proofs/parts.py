"""What each kind of a user's part promises, as claims; `zerosim check` checks them.

    collective   proofs on 1 to 17 ranks: every contribution once, the declared order, chunks and rounds
    stage        small trainings: the bits of one process, and the bytes and memory of the formulas
    optimizer    an elementwise formula that works in place
    model        layers that fit together, and gradients that agree with finite differences
    samples      a function that returns the same arrays twice

Each part is also trained with by all stages and by one process. An exercise is a part with its
declarations and without a body.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from zerosim.collectives import Algorithm
from zerosim.collectives.own import SERVING
from zerosim.core.errors import UsageError, ZerosimError
from zerosim.core.parts import Named
from zerosim.core.parts.signature import as_source
from zerosim.core.words import plural
from zerosim.models.units import Model, ModelKind, Task
from zerosim.models.users_model import as_model, check_layers
from zerosim.observe.process import FRAMES, STEP_BYTES, made_by, traced
from zerosim.proofs.cause import diagnosis
from zerosim.proofs.claim import CheckedPart, Claim, tried
from zerosim.proofs.ended import endless_loop, in_file, raised
from zerosim.proofs.example import wrong_on_numbers
from zerosim.proofs.proof import prove
from zerosim.proofs.stage_cause import first_unlike
from zerosim.proofs.subject import Subject, subject
from zerosim.scenario import Check, Data, ModelKeys, Parallel, Scenario, Train, WorldKeys
from zerosim.scenario.data import Dataset, load_dataset
from zerosim.stages import STAGES, Stage
from zerosim.stages.optimizers import Optimizer
from zerosim.stages.replica import Batch, Replica
from zerosim.stages.users_optimizer import declared, wrong
from zerosim.stages.users_stage import as_stage, like
from zerosim.training.config import configured
from zerosim.training.experiment import Experiment, prepare
from zerosim.training.one_function import computed, differences, some_batch, some_weights
from zerosim.verdict.judged_run import run_locally

TRAINED = "every stage trains with it to the bits of one process"
DIGITS, TEXT = Task(64, 10, "cross_entropy"), Task(8, 65, "cross_entropy", tokens=True)
PATIENCE_SECONDS = 60.0
RANKS = range(1, 18)


def checked(name: str, part: Any) -> CheckedPart:
    """The check of a user's part; a malformed one has one claim, which fails. Raises `UsageError` for anything else."""
    claims_of, constructor = KINDS[kind_of(name, part)]
    try:
        claims = claims_of(name, constructor(name, part))
    except UsageError as error:
        complaint = str(error).removeprefix(f"{name}: ")
        claims = [Claim("it is written as its kind is", lambda: complaint, first=True)]
    return tried(name, claims)


def kind_of(name: str, part: Any) -> str:
    """The kind of a part, by the type that its decorator gave it, or by its parameters."""
    for row, kind in DECLARED.items():
        if isinstance(part, row):
            return kind
    if not inspect.isfunction(part):
        raise UsageError(f"{name} is a {type(part).__name__}; give a model, an optimizer, a stage, a collective or a "
                         "function that gives samples, as docs/extend.md writes them")
    parameters = inspect.signature(part).parameters
    positional = [parameter.name for parameter in parameters.values()
                  if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.default is parameter.empty]
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


# Collectives.


def collective_of(name: str, part: Any) -> Subject:
    """The collective that its name contains.

    One that serves a stage must declare its order of addition, and one that declares its cost must take `reduce`.
    """
    examined = subject(part)
    row = examined.declared
    if row is not None and (row.chunks_sent or row.rounds) and examined.kind.reducing and not examined.takes_reduction:
        given = ", ".join(inspect.signature(examined.function).parameters)
        raise UsageError(f"{name} has no parameter reduce, so it can only add; write ({given}, reduce=np.add) and pass "
                         "reduce=reduce to what adds")
    ordered = row is not None and row.order is not None
    if examined.collective in SERVING and examined.kind.reducing and not ordered:
        raise UsageError(f"{name} does not declare its order of addition; write @collective(order=\"ring\") above it")
    return examined


def collective_claims(name: str, examined: Subject) -> list[Claim]:
    """Proofs on the supported numbers of ranks, and a training with a collective that serves a stage."""
    sizes = [size for size in RANKS if examined.serves(size)]
    claims = [Claim("every contribution arrives at its place, once, and added as declared, on 1 to 17 ranks",
                   partial(unproved, examined, sizes), first=True)]
    what = "adds" if examined.kind.reducing else "moves"
    claims.append(Claim(
        f"it {what} numbers of every dtype, short and long, subnormal, infinite and NaN, as due to the bit, and leaves "
        "its argument alone", partial(wrong_on_numbers, examined, sizes)))
    if examined.collective in SERVING and examined.manner == "in place" and examined.declared is not None:
        row = replace(examined.declared, name=name, collective=examined.collective)
        keys: dict[str, Any] = {examined.collective: Named(name, row, "")}
        if examined.collective == "broadcast":
            keys["publish"] = "broadcasts"
        claims.append(Claim(TRAINED, partial(differs, parallel=keys)))
    return claims


def unproved(examined: Subject, sizes: Sequence[int]) -> str | None:
    """The first fault on the fewest ranks, and its cause."""
    for number, size in enumerate(sizes):
        proof = prove(examined, size)
        failure = proof.case and proof.case.recording.failure
        if isinstance(failure, NotImplementedError):
            raise failure
        if proof.faults:
            before = f"right on {', '.join(map(str, sizes[:number]))}, but " if number else ""
            return f"{before}on {plural(size, 'rank')}: {proof.faults[0].what}\n{diagnosis(proof)}"
    return None


# Stages.

TRIALS: Sequence[tuple[str, dict[str, Any]]] = (
    ("with layered accumulation it trains to the bits of one process, sends the bytes of the formulas, and has their "
     "memory in arrays of zerosim's allocator", {}),
    ("also where each micro-batch is reduced by itself", {"accumulation": "micro_batch"}),
    ("also where the ranks do not divide the layers", {"ranks": 3, "hidden": (5, 4)}),
    ("also with clipped gradients, in 16 bits", {"ranks": 2, "precision": "fp16", "clip_norm": 0.05}),
)
"""The small trainings of a stage, and what they differ in."""


def stage_claims(name: str, part: Stage) -> list[Claim]:
    trials = [Claim(says, partial(training_fault, name, part, **changes), first=number == 0)
              for number, (says, changes) in enumerate(TRIALS)
              if "accumulation" not in changes or part.may_reduce_parts]
    return [*trials, Claim(
        "what its file allocates by itself does not outlive a step", partial(outlives, name, part))]


def outlives(name: str, part: Stage) -> str | None:
    """The line of its file whose arrays or objects are alive after the last step, on the rank that ends it last."""
    file, lines, steps = part.step.__code__.co_filename, list[Counter[int]](), 4

    def watched(replica: Replica, batch: Batch) -> Any:
        loss = part.step(replica, batch)
        if batch.step == steps:
            lines.append(made_by(file))
        return loss

    scenario = stage_scenario(Named(name, replace(part, step=watched), ""), 2, (64, 64), steps=steps)
    with traced(FRAMES):
        run_locally(prepare(scenario, SAMPLES_OF_A_STAGE), limit_seconds=PATIENCE_SECONDS)
    (line, kept), = min(lines, key=Counter.total).most_common(1) or [(0, 0)]
    return (f"{kept:,} B allocated in line {line} are alive after step {steps} of 2 ranks; what a stage keeps belongs "
            "into arrays of replica.allocate, which are counted") if kept > STEP_BYTES else None


def stage_scenario(
    stage: Any, ranks: int = 4, hidden: tuple[int, ...] = (7,), *, accumulation: Any = "layered", steps: int = 2,
    **train: Any,
) -> Scenario:
    """A small training by a stage."""
    return Scenario(
        world=WorldKeys(ranks), model=ModelKeys(hidden=hidden, activation="tanh"), check=Check(reference=True),
        train=Train(steps=steps, micro_batch=2, micro_batches=2 * ranks, learning_rate=0.01, **train),
        parallel=Parallel(stages=(stage,), accumulation=accumulation))


RANDOM = np.random.default_rng(0)
SAMPLES_OF_A_STAGE = Dataset(
    RANDOM.standard_normal((24, 3)).astype(np.float32), RANDOM.integers(0, 2, 24), None, None, 2)


def training_fault(name: str, part: Stage, ranks: int = 4, **changes: Any) -> str | None:
    """The first failed check of a small training, and the first call that differs from the shipped stage's."""
    def experiment_of(stage: Stage) -> Experiment:
        return prepare(stage_scenario(Named(name, stage, ""), ranks, **changes), SAMPLES_OF_A_STAGE)

    file = part.step.__code__.co_filename
    try:
        (row,) = run_locally(experiment_of(part), limit_seconds=PATIENCE_SECONDS).rows
        due = row.due and replace(    # a stage may save memory, and send without a verb
            row.due, memory=[replace(memory, least_bytes={}) for memory in row.due.memory],
            traffic=[replace(traffic, by_collective=measured.by_collective)
                     for measured, traffic in zip(row.measured.traffic, row.due.traffic, strict=True)])
        faults = [*replace(row, due=due).failures]
        if faults and row.first_divergence:
            faults[0] += f", first {row.first_divergence.words}"
    except NotImplementedError:
        raise
    except Exception as error:
        if not isinstance(error, ZerosimError) and not in_file(error, file):
            raise
        faults = [raised(error, file)]
        if loop := endless_loop(error, file):
            return f"on {ranks} ranks: {faults[0]}\nwhy: {loop}"
    if not faults:
        return None
    shipped = like(part).part
    cause = first_unlike(experiment_of(shipped).rows[0], part, shipped)
    return "\n".join([
        f"on {ranks} ranks: {faults[0]}", *faults[1:], *([f"why: {cause}"] if cause else []),
        f"see: zerosim show {name} --ranks {ranks}, and zerosim show {shipped.key} --ranks {ranks}"])


# Other parts.


def optimizer_claims(name: str, rule: Optimizer) -> list[Claim]:
    return [
        Claim("its formula works element by element, and writes its slots in place", partial(wrong, rule), first=True),
        Claim(TRAINED, partial(differs, train={"optimizer": Named(name, rule, "")})),
    ]


def model_claims(name: str, kind: ModelKind) -> list[Claim]:
    task = TEXT if kind.reads_tokens else DIGITS
    settings = ModelKeys(kind=Named(name, kind, ""))
    settings = replace(settings, sequence=task.inputs) if task.tokens else settings

    def build() -> Model:
        model = kind.for_task(settings, task, [[number] for number in range(kind.layer_count(settings))], ())
        check_layers(name, kind.for_task, model.layers, task)
        return model

    return [
        Claim("its layers fit together and read all of their parameters", partial(named_error, name, build),
              first=True),
        Claim("its gradients are what differences of forward say, in float64", lambda: wrong_slope(build())),
        Claim(TRAINED, partial(differs, model=settings, data={"source": "text"} if task.tokens else {})),
        Claim("over two ranks of any direction it is the model in one piece", partial(split_fault, settings, task)),
    ]


def split_fault(settings: ModelKeys, task: Task) -> str | None:
    """The first difference of the model over two ranks of a direction, in float64; None where it cannot be split."""
    for direction in ("tensor", "context", "expert"):
        sizes: dict[str, Any] = {f"{direction}_ranks": 2}
        (row,) = Scenario(world=WorldKeys(2), model=settings, parallel=Parallel(("ddp",), **sizes)).rows
        try:
            config = configured(row, task)
        except ZerosimError:
            continue
        for difference in differences(config):
            return f"over two {direction} ranks: {difference}"
    return None


def samples_claims(name: str, part: Any) -> list[Claim]:
    data = {"source": Named(name, part, "")}
    return [
        Claim("it gives the same arrays each time, which fit together",
              partial(named_error, name, lambda: load_dataset(small(data=data))), first=True),
        Claim(TRAINED, partial(differs, data=data)),
    ]


def named_error(name: str, call: Callable[[], Any]) -> str | None:
    """The message of a named error without the part's name; None without an error."""
    try:
        call()
    except ZerosimError as error:
        return str(error).removeprefix(f"{name}: ")
    return None


def small(*, model: ModelKeys | None = None, **sections: dict[str, Any]) -> Scenario:
    """A scenario of two steps on four ranks by every stage, with keys of sections."""
    data, train, parallel = (sections.get(name, {}) for name in ("data", "train", "parallel"))
    return Scenario(
        world=WorldKeys(4), data=Data(**data), model=model or ModelKeys(hidden=(9,)),
        train=Train(steps=2, micro_batch=4, micro_batches=8, **train), parallel=Parallel(tuple(STAGES)[:4], **parallel))


def differs(**sections: Any) -> str | None:
    """The failed claims of a training with the part, and the first number that differs."""
    scenario = small(**sections)
    try:
        outcome = run_locally(prepare(scenario, load_dataset(scenario)), limit_seconds=PATIENCE_SECONDS)
    except ZerosimError as error:
        return str(error)
    if outcome.passed:
        return None
    first = next((row for row in outcome.trained if row.first_divergence is not None), None)
    where = f"\n{first.config.name}: {first.first_divergence.words}" if first and first.first_divergence else ""
    return "; ".join(f"{row}: {what}" for row, what in outcome.failures) + where


KINDS: dict[str, tuple[Callable[[str, Any], list[Claim]], Callable[[str, Any], Any]]] = {
    "collective": (collective_claims, collective_of),
    "stage": (stage_claims, as_stage),
    "optimizer": (optimizer_claims, lambda name, part: part if isinstance(part, Optimizer) else declared(name, part)),
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
    places = [(unit, place) for unit in reversed(model.units) for place in reversed(unit.places)]
    for unit, place in places:
        weight, gradient = unit.views(weights[unit])[place.name], gradients[place.name]
        direction, before, losses = random.standard_normal(weight.shape), weight.copy(), []
        for step in (STEP, -STEP):
            weight[...] = before + step * direction
            losses.append(float(computed(model, weights, batch)[0][0]))
        weight[...] = before
        by_differences = (losses[0] - losses[1]) / (2 * STEP)
        by_backward, size = float(np.sum(gradient * direction)), float(np.abs(gradient * direction).sum())
        if not abs(by_backward - by_differences) <= TOLERANCE * size + NOISE:
            return (f"layer {place.prefix.rstrip('.')}: the gradient of its parameter {place.parameter.name!r} along a "
                    f"random direction is {by_backward:.6g} by backward and {by_differences:.6g} by finite "
                    "differences; zerosim check FILE tries single operations")
    return None
