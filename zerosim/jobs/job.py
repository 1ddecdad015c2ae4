"""The interface of jobs, and of requests to run them."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from zerosim.scenario import CollectiveScenario, Scenario, resolved
from zerosim.scenario.schema import parts_in
from zerosim.training.program import Progress
from zerosim.worlds.local import LocalWorld
from zerosim.worlds.world import World


@dataclass(frozen=True)
class Request:
    """The options of a run besides its scenario, most of them flags of `zerosim run`."""

    checkpoint: str | None = None
    """The folder in which rows are saved."""
    every: int | None = None
    """The number of steps between two checkpoints."""
    resume: str | None = None
    """The folder of the checkpoints from which to resume."""
    weights: bool = False
    """Whether the outcome contains the final weights."""
    report: bool = False
    trace: bool = False
    trace_steps: range | None = None
    timeline: bool = False
    last_step: bool = False
    """Whether to trace the last step, if there are steps."""
    python: bool = True
    """Whether Python files that the scenario names may be run."""
    accept_python: bool = False
    """Whether to resume although Python files that the scenario names have changed."""

    @property
    def overrides(self) -> Iterator[str]:
        """The overrides of the scenario that it implies."""
        if self.checkpoint is not None:
            yield f"checkpoint.folder={json.dumps(self.checkpoint)}"
        if self.every is not None:
            yield f"checkpoint.every={self.every}"


class Job(Protocol):
    """A prepared scenario: runs in a world, and describes itself before and after. It accepts every world by default.
    """

    scenario: Scenario | CollectiveScenario
    @property
    def inputs_sha256(self) -> str:
        """SHA-256 of the resolved scenario and of the data, which must be equal on all ranks."""
    @property
    def setting(self) -> str:
        """The description of the run, in a few lines."""
    @property
    def files(self) -> dict[str, Path]:
        """The input files, by purpose."""
    @property
    def timeout_seconds(self) -> float | None:
        """The longest wait of a rank for a message; None for the world's own limit."""
        return None

    def check_local(self) -> None:
        """Refuse scenarios that one process for all ranks cannot run."""
        return
    def check_launched(self) -> None:
        """Refuse scenarios that one process for each rank cannot run."""
        return
    def check_resumable(self) -> None:
        """Refuse scenarios that cannot be restarted from a checkpoint."""
        return
    def on_ranks(self, ranks: int) -> list[list[str]]:
        """Overrides with which it may run on `ranks` ranks, the smallest changes first."""
    def local_world(self) -> LocalWorld:
        """A local world with the scenario's settings."""
    def run(self, world: World, progress: Progress) -> Any:
        """The outcome in the process that has rank 0, None in others."""
    def show(self, console: Console, outcome: Any, found: dict[str, Any], **options: Any) -> None:
        """Print the outcome, whose document is `found`; `options` are those of `show_run`."""
    def document(self, outcome: Any, world: World, command: str | None = None) -> dict[str, Any]:
        """The outcome as `zerosim run --json` writes it."""


def inputs_digest(scenario: Scenario | CollectiveScenario, *others: str) -> str:
    """SHA-256 of every key's value, of the Python files that keys name, and of other inputs."""
    code = {where: part.sha256 for where, part in parts_in(scenario)}
    return hashlib.sha256(json.dumps([resolved(scenario), code, *others]).encode()).hexdigest()


def described(world: World) -> dict[str, Any]:
    """A world in documents."""
    found: dict[str, Any] = {"kind": world.kind, "ranks": world.ranks, "library": world.library}
    return found | ({"shared_cores": world.shared_cores} if world.shared_cores else {})
