"""Trainings of a submitted step on separate ranks, compared with the library's step on the same samples, drawn here."""

import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial

import numpy as np

from zerosim.comm import Communicator
from zerosim.instruments.observed import Observed
from zerosim.instruments.traffic import Traffic
from zerosim.show.table import divergence
from zerosim.stages import STAGES
from zerosim.teach.grading.claims import STAGE_TRIALS
from zerosim.teach.grading.rank_apart import unpacked
from zerosim.teach.grading.routed import RankProcesses
from zerosim.teach.grading.stages import StageTrial
from zerosim.teach.grading.tiny import EVEN, ODD, PRECISE, Tiny
from zerosim.teach.grading.trained import Figures, Trained, first_difference, itself, on_a_rank, prepared
from zerosim.training.alike import alike_everywhere
from zerosim.words import plural
from zerosim.worlds.local import spawn

ONE_AT_A_TIME = threading.Lock()
"""The number of BLAS threads is global to a process, so trainings run one at a time."""


@dataclass
class Both:
    """The results of one training by both steps; bytes and messages count all that a rank sent."""

    tiny: Tiny
    mine: Trained
    due: Trained


@dataclass
class TrainedApart:
    """The trainings of one exercise, and their errors."""

    name: str
    found: list[Both] = field(default_factory=list)

    @property
    def trial(self) -> StageTrial:
        """The trial of the library's step."""
        trial = STAGE_TRIALS[self.name](STAGES["zero1"].step)
        return replace(trial, step=STAGES[trial.stage].step)

    def bits(self, sizes: Sequence[Tiny], in_parts: bool, ranks: RankProcesses) -> str | None:
        """The first difference from the library's training."""
        trial = self.trial
        for size in sizes:
            if size.part_by_part and not in_parts:
                continue
            tiny = replace(size, drawn=secrets.randbits(32))
            mine, due = self.theirs(tiny, ranks), ours(trial, tiny)
            apart = first_difference(mine, due, tiny, trial.stage, trial.variant)
            if apart is not None:
                return f"{size}: {divergence(apart)}"
            self.found.append(Both(size, mine, due))
        return None

    def theirs(self, tiny: Tiny, ranks: RankProcesses) -> Trained:
        """The results of the ranks, and their traffic."""
        run = ranks.run([{"tiny": asdict(tiny)}] * tiny.ranks)
        found = Trained()
        for rank, gave in enumerate(run.gave):
            for step in range(1, tiny.steps + 1):
                found.held[rank, step] = {}
                found.losses[rank, step] = np.empty(0)
            for step, loss in gave["losses"]:
                found.losses[rank, whole(step)] = unpacked(loss)
            for step, what, unit, array in gave["held"]:
                found.held[rank, whole(step)][str(what), str(unit)] = unpacked(array)
            found.figures.append(Figures(
                run.bytes_of(rank), run.sent_by(rank)[0], kept=[by_kind(each) for each in gave["kept"]],
                peak=by_kind(gave["peak"]),
                weights_in_backward=[(str(unit), whole(held)) for unit, held in gave["weights_in_backward"]]))
        return found

    def differing(
        self, said: Callable[[Figures, Figures], str | None], in_parts: bool, ranks: RankProcesses
    ) -> str | None:
        """The first complaint about the figures of a rank, beside ours; of trainings in parts only with `in_parts`."""
        if not self.found:
            return NOT_TRAINED
        for both in self.found:
            if both.tiny.part_by_part and not in_parts:
                continue
            for rank, (mine, due) in enumerate(zip(both.mine.figures, both.due.figures, strict=True)):
                if complaint := said(mine, due):
                    return f"{both.tiny}: rank {rank} {complaint}"
        return None

    def in_pairs(self, ranks: RankProcesses) -> str | None:
        """The complaint if the number of messages is not that of gathering two layers in one message."""
        if not self.found:
            return NOT_TRAINED
        for both in self.found:
            tiny = both.tiny
            layers = len(tiny.hidden) + 1
            spared = 2 * (layers - -(-layers // 2)) * tiny.steps * tiny.ranks * (tiny.ranks - 1)
            messages = sum(figures.messages for figures in both.mine.figures)
            enough = sum(figures.messages for figures in both.due.figures) - spared
            if messages != enough:
                return f"{tiny}: the ranks send {plural(messages, 'message')}; expected {enough}"
        return None


NOT_TRAINED = "no training has the right bits, so there is nothing to measure"


def whole(said: object) -> int:
    """A count that a rank sent. Raises `ValueError` for anything else."""
    if type(said) is not int or said < 0:
        raise ValueError(said)
    return said


def by_kind(said: dict[str, object]) -> dict[str, int]:
    return {str(kind): whole(count) for kind, count in said.items()}


def sent(mine: Figures, due: Figures) -> str | None:
    return None if mine.sent_bytes == due.sent_bytes else (
        f"sends {mine.sent_bytes} bytes; expected {due.sent_bytes}")


def kept(mine: Figures, due: Figures) -> str | None:
    return None if mine.kept == due.kept else f"keeps {mine.kept} between steps; expected {due.kept}"


def held_at_most(mine: Figures, due: Figures) -> str | None:
    held = [count for _, count in mine.weights_in_backward]
    enough_in_backward = [count for _, count in due.weights_in_backward]
    if len(held) != len(enough_in_backward) or any(map(int.__gt__, held, enough_in_backward)):
        return f"holds {held} bytes of weights at the backward of each unit; {enough_in_backward} are enough"
    return None if all(mine.peak[kind] <= enough for kind, enough in due.peak.items()) else (
        f"holds {mine.peak}; {due.peak} are enough")


def ours(trial: StageTrial, tiny: Tiny) -> Trained:
    """The results of the library's step on every rank, trained in this process."""
    experiment = prepared(tiny, trial.stage, tuple(trial.variant.items()))
    found = Trained(figures=[Figures() for _ in range(tiny.ranks)])
    counted = [Traffic() for _ in range(tiny.ranks)]

    def program(comm: Communicator) -> None:
        on_a_rank(Observed(comm, counted[comm.rank]), experiment, trial.step, itself, found)

    with ONE_AT_A_TIME, alike_everywhere():
        spawn(program, tiny.ranks)
    for figures, traffic in zip(found.figures, counted, strict=True):
        figures.sent_bytes, figures.messages = traffic.sent_bytes, traffic.messages
    return found


def of_a_stage(name: str) -> list[Callable[[RankProcesses], str | None] | None]:
    """The check of each claim about an exercise that is a step."""
    training = TrainedApart(name)
    parts = name in ("zero1_step", "zero2_step", "zero3_step")
    found: list[Callable[[RankProcesses], str | None] | None] = [
        partial(training.bits, sizes, parts) for sizes in (EVEN, ODD, PRECISE)]
    figures = [partial(training.differing, said, said is not held_at_most) for said in (sent, kept, held_at_most)]
    if name == "fsdp_step":
        return [*found, figures[0], training.in_pairs, figures[1]]
    return [*found, *figures, *([None] if name == "zero3_kept_step" else [])]
