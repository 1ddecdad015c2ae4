"""What `zerosim show` and `zs.show` draw: a recorded run of a collective, or recorded steps of stages, event by event.

    event    an activity of a step's thread on every rank: a computation, a collective with its messages, or a message
             outside of all collectives
    held     the bytes of each kind that a rank has when an event ends

A step of a stage, of the library, of a learner or of a user, is recorded in a short training on digits. Times of a
small step say little. The order of events is the same on all ranks, so event k is the k-th activity of each rank, and
the drawing needs no clock. Memory is the ledger's when an event ends.
"""

import inspect
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.text import Text

from zerosim.collectives import Algorithm
from zerosim.core.allocation import MODEL_STATES
from zerosim.core.errors import ScenarioError, UsageError, ZerosimError
from zerosim.core.parts import Loader, Named, is_python, named
from zerosim.core.words import joined, plural
from zerosim.observe.trace import COLLECTIVES, COMPUTATION, OUT, RankStep, Span, Trace
from zerosim.plan.reading import numbers_of_ranks
from zerosim.proofs.ended import endless_loop, raised
from zerosim.proofs.parts import checked
from zerosim.proofs.schedule import scheduled
from zerosim.proofs.subject import subject_on_hosts
from zerosim.proofs.symbolic_step import contents_of
from zerosim.scenario import ModelKeys, Parallel, Scenario, Train, WorldKeys
from zerosim.scenario.conditions import ignored_by_stage
from zerosim.scenario.data import load_dataset
from zerosim.show.columns import KIND_WORDS
from zerosim.show.drawing import Filmed, shown_schedule
from zerosim.show.film import Panel, of_passes, of_step
from zerosim.show.grid import SHADES, Column, bar, show_grid, show_words
from zerosim.show.page import Head
from zerosim.show.shown import Shown
from zerosim.stages import STAGES, Stage
from zerosim.stages.schedules import SCHEDULES
from zerosim.stages.users_stage import as_stage
from zerosim.training.config import Config
from zerosim.training.experiment import prepare
from zerosim.verdict.judged_run import run_locally
from zerosim.verdict.pipelines import Passes, bubble, held, pass_lines
from zerosim.worlds.local import StillRunning

MOST_SHOWN_RANKS = 128
LIMIT_SECONDS = 60.0
STEPS = 2
"""The last step is recorded, when all states exist."""
ROOM, FIGURE = 8, 5
"""The columns of a bar, and of the number beside it."""
ABREAST = 4
"""The most ranks in one table."""
MOST_DRAWN = 16
"""The most ranks whose cells a page draws."""
LEGEND = (
    "A column is a rank, and in it a cell a chunk of a unit, in the chunk's colour. w: weights; 2+3: the ranks (or, of "
    "several for each rank, the micro-batches) whose gradients a sum has, as its stripes show; Σ: all; optimizer state "
    "by the initials of its slots; ′: updated in this step; dashed: allocated and not filled; framed: used by a "
    "computation; red: wrong. The stage's code ran on symbols, which the cells show; it sends and keeps the bytes that "
    "they stand for, and activations and buffers are those of a training.",)
PASSES = ("A column is a rank, a row a micro-batch, and a cell a model chunk of the rank, filled while its activations "
          "are kept. F: forward; B: backward; W: backward of the weights; framed: now.",)


Event = dict[str, Any]
"""An event as JSON has it: `what`, its `unit`, which may be empty, `words` about both, and of each of the `ranks` the
bytes that it sent to others, `sent_bytes`, and its memory afterwards by kind, `held_bytes`."""


@dataclass(frozen=True)
class RecordedStep:
    """One step: its title, its description, its events, and the fault of the training or None."""

    title: str
    about: str
    events: list[Event]
    fault: str | None
    config: Config

    @property
    def verdict(self) -> str:
        return f"FAILED: {self.fault}" if self.fault else "PASSED: every bit equal to one process"

    def document(self) -> dict[str, Any]:
        return {
            "schema": "zerosim.step/1", "title": self.title, "about": self.about, "ranks": self.config.directions.data,
            "verdict": self.verdict, "moments": self.events}


def shown(
    subject: str | Algorithm | Stage | Callable[..., Any], ranks: int, *, root: int | None = None,
    claims: str | None = None, ranks_per_host: int | None = None, only: int | None = None, **groups: int | None,
) -> Shown:
    """The schedule of a collective, or `only` one round of it, a step of a stage, or the passes of a pipeline; of
    several stages or schedules, with commas between their names, all.

    `groups` has keys of [parallel] for a stage. Raises `UsageError` for what the subject does not have.
    """
    def refuse(keys: set[str], what: str) -> None:
        if beyond := sorted(given & keys):
            raise UsageError(f"remove {joined(beyond).replace('_', '-')}: {what} has none")

    [ranks] = numbers_of_ranks([ranks], MOST_SHOWN_RANKS)
    of_collectives = {"root": root, "as": claims, "ranks_per_host": ranks_per_host, "round": only}
    given = {name for name, value in (groups | of_collectives).items() if value is not None}
    loader, names = Loader(), subject.split(",") if isinstance(subject, str) else [subject]
    if {*map(str, names)} <= {*SCHEDULES}:
        refuse(given, "a schedule of a pipeline")
        return shown_pipelines({name: recorded_passes(name, ranks) for name in map(str, names)})
    stages = [stage_in(name, loader) for name in names]
    if None in stages and len(names) > 1:
        raise UsageError(f"{names[stages.index(None)]!r} is no stage, and only stages, or schedules of pipelines, "
                         f"stand beside each other: {joined([*STAGES])}; {joined([*SCHEDULES])}")
    if stages != [None]:
        refuse({*of_collectives}, "a stage")
        return shown_steps([recorded_stage(stage, ranks, **{key: groups[key] for key in given})
                            for stage in stages if stage is not None])
    assert not isinstance(subject, Stage)
    refuse({*groups}, "a collective")
    collective = subject_on_hosts(subject, claims, ranks_per_host, loader, [*STAGES, *SCHEDULES])
    row = collective.algorithm or collective.declared
    if row is not None and not row.serves(ranks):
        raise UsageError(f"{collective.name} serves {row.limit}, not {ranks}; give another number of ranks")
    refuse(set() if collective.kind.rooted else {"root"}, collective.name)
    if not 0 <= (root or 0) < ranks:
        raise UsageError(f"root {root} is none of the {ranks} ranks: give one from 0 to {ranks - 1}")
    schedule = scheduled(collective, ranks, root or 0)
    if only not in (None, *range(len(schedule.states))):
        raise UsageError(f"round {only}: there are rounds 0 to {len(schedule.states) - 1}")
    return shown_schedule(schedule, only)


def stage_in(subject: Any, loader: Loader) -> str | Named | None:
    """A shipped stage by its name, or a user's by its name or as an object; None for anything else.

    >>> stage_in("zero3", Loader()), stage_in("ring.all_reduce", Loader()), stage_in(stage_in, Loader())
    ('zero3', None, None)
    """
    if isinstance(subject, str) and subject in STAGES:
        return subject
    if isinstance(subject, str) and not is_python(subject):
        return None
    given = loader.load(subject) if isinstance(subject, str) else named(subject)
    part = given.part
    is_step = inspect.isfunction(part) and list(inspect.signature(part).parameters) == ["replica", "batch"]
    return replace(given, part=as_stage(given.source, part)) if is_step or isinstance(part, Stage) else None


def recorded_stage(stage: str | Named, ranks: int, **groups: Any) -> RecordedStep:
    """The last step of a short training of a small perceptron by a stage, with keys of [parallel]; of a user's stage
    that is wrong with two micro-batches a rank only, such a step.

    Raises `UsageError` for keys that the stage or [parallel] refuses, and for exceptions in a user's stage, with the
    line.

    >>> [event["words"] for event in recorded_stage("zero1", 2).events][:2]
    ['forward layers.0', 'forward layers.1']
    """
    if not isinstance(stage, Named) and (why := ignored_by_stage(stage, groups)):
        raise UsageError("; ".join(f"leave out {key}: of {stage}, {words}" for key, words in why.items()))
    try:
        step = trained(stage, ranks, groups, 1)
        if isinstance(stage, Named) and step.fault is None:
            with suppress(Exception):    # of a step that is not written for several micro-batches
                several = trained(stage, ranks, groups, 2)
                step = several if several.fault else step
    except ScenarioError as error:
        raise UsageError(error.args[0].partition(": ")[2] or str(error)) from None
    except Exception as error:
        if not isinstance(stage, Named) or (isinstance(error, ZerosimError) and not isinstance(error, StillRunning)):
            raise
        file = os.path.abspath(stage.part.step.__code__.co_filename)
        raise UsageError(f"{stage}: {endless_loop(error, file) or raised(error, file)}") from error
    return step


def trained(stage: str | Named, ranks: int, groups: Mapping[str, Any], block: int) -> RecordedStep:
    """The last step of a training with so many micro-batches a rank."""
    scenario = Scenario(
        world=WorldKeys(ranks), model=ModelKeys(hidden=(64, 32)),
        train=Train(steps=STEPS, micro_batch=8, micro_batches=ranks * block), parallel=Parallel((stage,), **groups))
    row = run_locally(prepare(scenario, load_dataset(scenario), traced=range(STEPS, STEPS + 1)),
                      limit_seconds=LIMIT_SECONDS).trained[0]
    assert row.measured.trace is not None
    blocks = f" of {block} micro-batches each" * (block > 1)
    about = f"a step on {plural(ranks, 'rank')}{blocks}, {row.config.model.words}, {scenario.train.optimizer}"
    fault = row.first_divergence.words if row.first_divergence else next(iter(row.failures), None)
    if fault and isinstance(stage, Named):
        fault = "\n".join([fault, *checked(str(stage), stage.part).complaints[:1]])
    titles = [str(stage) if isinstance(stage, Named) else STAGES[stage].title,
              *(f"{key} = {value}" for key, value in groups.items())]
    return RecordedStep(", ".join(titles), about, events_of(row.measured.trace), fault, row.config)


def recorded_passes(schedule: str, ranks: int) -> Passes:
    """The passes of each rank of a pipeline in a step with two micro-batches a rank, which were recorded in a training.

    Raises `UsageError` for one rank, and for more than `MOST_DRAWN`.

    >>> [slot.what for slot in recorded_passes("1f1b", 2)[0]]
    ['F', 'F', 'B', 'F', 'B', 'F', 'B', 'B']
    """
    if not 1 < ranks <= MOST_DRAWN:
        raise UsageError(f"a pipeline is shown on 2 to {MOST_DRAWN} ranks, not on {ranks}")
    chunks = 2 if schedule == "interleaved_1f1b" else 1
    scenario = Scenario(
        world=WorldKeys(ranks), model=ModelKeys(hidden=(8,) * (2 * ranks * chunks - 1)),
        train=Train(steps=1, micro_batch=1, micro_batches=2 * ranks),
        parallel=Parallel(("ddp",), pipeline_ranks=ranks, schedule=schedule, model_chunks=chunks))
    row = run_locally(prepare(scenario, load_dataset(scenario)), limit_seconds=LIMIT_SECONDS).trained[0]
    return row.measured.passes[0]


def shown_pipelines(pipelines: Mapping[str, Passes]) -> Shown:
    """Recorded passes of pipelines that display themselves, a line for each rank; a page shows them at the same time.

    A row, one for each pass, has `schedule`, `rank`, `pass`, `micro_batch`, `chunk`.
    """
    size = len(next(iter(pipelines.values())))
    title = f"{' · '.join(pipelines)} on {plural(size, 'rank')}"
    about = f"{2 * size} micro-batches; every pass takes one unit of time, messages none"
    verdict = "; ".join(f"{schedule}: the ranks wait {bubble(passes)} of the time, and hold the activations of at most "
                        f"{max(map(held, passes))} forward passes" for schedule, passes in pipelines.items())

    def show(console: Console) -> None:
        for schedule, passes in pipelines.items():
            show_words(console, Text.assemble((schedule, "bold"), f": {about}; (backward), [of weights]"))
            for line in pass_lines(passes):
                console.print(line, markup=False, soft_wrap=True)
        show_words(console, verdict)

    rows = [{"schedule": name, "rank": rank, "pass": what, "micro_batch": number, "chunk": chunk}
            for name, passes in pipelines.items() for rank, slots in enumerate(passes) for what, number, chunk in slots]
    return Filmed(
        pipelines, True, verdict, f"<{title}: {verdict}>", show=show, rows_of=lambda document: list(document["passes"]),
        make_document=lambda: {"schema": "zerosim.pipelines/1", "ranks": size, "passes": rows},
        head=Head(title, verdict.split("; "), True, about), legend=PASSES,
        make_panels=lambda: [of_passes(schedule, passes) for schedule, passes in pipelines.items()])


def events_of(trace: Trace) -> list[Event]:
    """The events of a traced step, the last one after the end of all.

    Raises `UsageError` if ranks did different things.
    """
    columns = [list(acts(step)) for step in sorted(trace.steps, key=lambda step: step.rank)]
    names = [[name for name, _ in column] for column in columns]
    if any(of_rank != names[0] for of_rank in names):
        raise UsageError("ranks did different things in this step, so they have no common drawing; zerosim run "
                         "--report FILE.html draws each rank")
    return [{"what": what, "unit": unit, "words": f"{what.replace('_', '-')} {unit}".strip(),
             "ranks": [column[number][1] for column in columns]} for number, (what, unit) in enumerate(names[0])]


def acts(step: RankStep) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """What the thread of a step does on one rank, one thing after the other: name and unit, and the rank's part."""
    thread = sorted((span for span in step.spans if span.channel == 1), key=lambda span: span.begin_ns)
    within = {span: [message for message in thread if message.lane == OUT
                     and span.begin_ns <= message.begin_ns <= span.end_ns]
              for span in thread if span.lane == COLLECTIVES}
    changes = [at for at, _ in step.memory]

    def part(at_ns: int, messages: Sequence[Span] = ()) -> dict[str, Any]:
        sent = Counter[str]()
        for message in messages:
            sent[str(message.peer)] += message.bytes
        _, held = step.memory[max(bisect_right(changes, at_ns) - 1, 0)]
        return {"sent_bytes": dict(sent), "held_bytes": {kind: count for kind, count in held.items() if count}}

    for span in thread:
        if span.lane in (COMPUTATION, COLLECTIVES):
            yield (span.what, span.unit), part(span.end_ns, within.get(span, ()))
        elif span.lane == OUT and not any(span in messages for messages in within.values()):
            yield ("message", ""), part(span.end_ns, [span])
    yield ("between steps", ""), part(step.end_ns)


def shown_steps(steps: Sequence[RecordedStep]) -> Shown:
    """A step that displays itself, or the steps of several stages, which a page shows at the same computation.

    A row, one for each event of each rank, has `moment`, `what`, `unit`, `rank`, `sent_bytes`, `held_bytes`; of several
    stages also `stage`.
    """
    first, several = steps[0], len(steps) > 1
    faults = [f"{f'{step.title}: ' * several}{line}" for step in steps if step.fault
              for line in step.verdict.split("\n")]
    head = Head(" · ".join(step.title for step in steps), faults or [first.verdict], not faults,
                "; ".join(dict.fromkeys(step.about for step in steps)))
    return Filmed(
        steps if several else first, head.passed, "; ".join(dict.fromkeys(step.verdict for step in steps)),
        "\n".join(f"<{step.title}, {step.about}: {plural(len(step.events), 'event')}; {step.verdict}>"
                  for step in steps), show=lambda console: show_steps(console, steps),
        make_document=lambda: first.document() if not several else {
            "schema": "zerosim.steps/1", "steps": [step.document() for step in steps]},
        rows_of=lambda document: [
            ({"stage": of_stage["title"]} if several else {}) | {
                "moment": number, "what": event["what"], "unit": event["unit"], "rank": rank,
                "sent_bytes": sum(part["sent_bytes"].values()), "held_bytes": sum(part["held_bytes"].values())}
            for of_stage in document.get("steps", [document]) for number, event in enumerate(of_stage["moments"], 1)
            for rank, part in enumerate(event["ranks"])],
        head=head, legend=LEGEND, make_panels=lambda: [*map(panel_of, steps)])


def panel_of(step: RecordedStep) -> Panel:
    """The film of a step; raises `UsageError` for too many ranks, and for code that does not run on symbols."""
    if (ranks := step.config.directions.data) > MOST_DRAWN:
        raise UsageError(f"at most {MOST_DRAWN} ranks are drawn, not {ranks}; the terminal has them all")
    try:
        contents = contents_of(step.config, LIMIT_SECONDS, tolerant=step.fault is not None)
    except Exception as error:    # of a user's code
        raise UsageError(f"{step.title} is not drawn, only printed: {type(error).__name__}: {error}") from error
    return of_step(step.title, contents, [[part["held_bytes"] for part in event["ranks"]] for event in step.events])


def show_steps(console: Console, steps: Sequence[RecordedStep]) -> None:
    """Show a line for each event, with a column for each rank: a bar of its model states, and the sum in kB."""
    def cell(held: Mapping[str, int]) -> Text:
        drawn = bar({kind: held.get(kind, 0) for kind in MODEL_STATES}, most, ROOM)
        drawn.pad_right(ROOM - len(drawn))
        return drawn.append(f" {sum(held.values()) / 1e3:>{FIGURE}.1f}")

    states = "  ".join(f"{SHADES[kind][0]} {KIND_WORDS[kind]}" for kind in MODEL_STATES)
    for step in steps:
        show_words(console, Text.assemble((step.title, "bold"), f": {step.about}"))
        show_words(console, f"Memory of a rank when an event ends, kB: {states}, and the sum of all kinds. Sends: the "
                            "most kB that a rank sends.", style="dim")
        most = max(sum(part["held_bytes"].values()) for event in step.events for part in event["ranks"])
        names = [f"{number:>3} {event['words']}" for number, event in enumerate(step.events, 1)]
        sent = [max(sum(part["sent_bytes"].values()) for part in event["ranks"]) for event in step.events]
        sends = Column("sends", [f"{count / 1e3:.1f}" if count else "" for count in sent])
        ranks = [Column(f"rank {rank}", [cell(event["ranks"][rank]["held_bytes"]) for event in step.events],
                        to_the_left=True) for rank in range(step.config.directions.data)]
        for first in range(0, len(ranks), ABREAST):
            show_grid(console, names, [sends, *ranks[first : first + ABREAST]])
        console.print(Text(step.verdict, style="bold red" if step.fault else "bold green"),
                      soft_wrap=not console.is_terminal)
