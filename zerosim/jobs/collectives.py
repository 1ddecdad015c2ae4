"""A scenario of collectives as a job: programs on every rank, and their expected results."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from zerosim.core.errors import UsageError
from zerosim.jobs.job import Job, Request, described, inputs_digest
from zerosim.proofs.programs import CollectivesOutcome, PreparedProgram, programs_of, run_collectives
from zerosim.scenario import CollectiveScenario
from zerosim.show.collectives import collectives_document, described_values, show_collectives
from zerosim.training.program import Progress
from zerosim.worlds.local import LocalWorld
from zerosim.worlds.world import World


@dataclass(frozen=True)
class CollectivesJob(Job):
    """Programs of collectives, every call of them looked up."""

    scenario: CollectiveScenario
    programs: list[PreparedProgram]

    @property
    def inputs_sha256(self) -> str:
        return inputs_digest(self.scenario)

    @property
    def setting(self) -> str:
        return described_values(self.scenario)

    @property
    def files(self) -> dict[str, Path]:
        return files_of_collectives(self.scenario)

    def check_launched(self) -> None:
        if self.scenario.world.sends != "buffered":
            raise self.scenario.origin.error(
                f"world.sends {self.scenario.world.sends} is for the local world; run it without mpirun",
                ("world", "sends"))

    def check_resumable(self) -> None:
        raise UsageError("a scenario of collectives has nothing to resume from; remove --restarts")

    def on_ranks(self, ranks: int) -> list[list[str]]:
        return [[f"world.ranks={ranks}"]]

    def local_world(self) -> LocalWorld:
        sends: Any = self.scenario.world.sends
        return LocalWorld(self.scenario.world.ranks, sends=sends)

    def run(self, world: World, progress: Progress) -> CollectivesOutcome | None:
        return world.run(lambda comm: run_collectives(comm, self.scenario, self.programs))[0]

    def show(self, console: Console, outcome: CollectivesOutcome, found: dict[str, Any], **options: Any) -> None:
        show_collectives(console, outcome)

    def document(self, outcome: CollectivesOutcome, world: World, command: str | None = None) -> dict[str, Any]:
        return collectives_document(outcome, described(world))


def collectives_job(scenario: CollectiveScenario, request: Request) -> CollectivesJob:
    """The scenario ready to run; `UsageError` for a request that only trainings support."""
    for flag in ("weights", "checkpoint", "every", "resume"):
        if getattr(request, flag):
            raise UsageError(f"a scenario of collectives has no weights; remove --{flag}")
    if request.trace or request.trace_steps or request.timeline:
        raise UsageError(
            "a scenario of collectives has no steps to trace; remove --trace, --trace-steps and --timeline")
    if request.report:
        raise UsageError("a scenario of collectives has no page; remove --report, and draw it with zerosim show")
    return CollectivesJob(scenario, programs_of(scenario))


def files_of_collectives(scenario: CollectiveScenario) -> dict[str, Path]:
    """The files whose functions a scenario of collectives calls."""
    origin = scenario.origin
    found = {"the scenario": Path(origin.file)}
    for p, program in enumerate(scenario.program):
        for c, call in enumerate(program.calls):
            file = call.rpartition(":")[0]
            if file:
                found[file] = origin.folder(("program", p, "calls", c)) / file
    return found
