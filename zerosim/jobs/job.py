"""What every job can do, and how a scenario becomes one."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from zerosim.scenario import CollectiveScenario, Scenario, resolved
from zerosim.scenario.parts import parts_in
from zerosim.training.program import Progress
from zerosim.worlds.local import LocalWorld
from zerosim.worlds.world import Transport, World


@dataclass(frozen=True)
class Request:
    """What is wanted of a run beside its scenario, most of it as the flags of `zerosim run`."""

    checkpoint: str | None = None
    """The folder in which to save rows."""
    every: int | None = None
    """Steps between two checkpoints."""
    resume: str | None = None
    """The folder of the checkpoints from which to resume."""
    weights: bool = False
    """Whether the outcome is to have the final weights."""
    report: bool = False
    trace: bool = False
    trace_steps: range | None = None
    timeline: bool = False
    last_step: bool = False
    """Whether to trace the last step of what has steps."""
    python: bool = True
    """Whether Python that the scenario names may be run."""
    accept_python: bool = False
    """Whether to resume although Python that the scenario names has changed."""

    @property
    def overrides(self) -> Iterator[str]:
        """The keys of the scenario that it sets."""
        if self.checkpoint is not None:
            yield f"checkpoint.folder={json.dumps(self.checkpoint)}"
        if self.every is not None:
            yield f"checkpoint.every={self.every}"


@dataclass(frozen=True)
class Manner:
    """How an outcome is shown in a terminal."""

    verbose: bool = False
    timed: bool = False
    """Whether times say something: not where ranks take turns in one process."""
    timeline: bool = False
    shared_cores: int = 0
    """The cores of this host, where its ranks are more."""
    transport: str = ""
    """What carries messages within a host, in a sentence."""


class Job(Protocol):
    """A scenario made ready: what runs it in a world, and what is said of it before and after."""

    @property
    def scenario(self) -> Scenario | CollectiveScenario: ...
    @property
    def inputs_sha256(self) -> str:
        """SHA-256 of the scenario as resolved and of the data: what all ranks must have read alike."""
    @property
    def setting(self) -> str:
        """What is run, in a few lines."""
    @property
    def files(self) -> dict[str, Path]:
        """The files that are read, by what they are."""
    @property
    def timeout_seconds(self) -> float | None:
        """How long a rank may wait for a message; None for the world's own limit."""
    @property
    def transport(self) -> Transport:
        """What carries messages between processes of a host."""

    def check_local(self) -> None:
        """Refuse what one process for all ranks cannot run."""
    def check_launched(self) -> None:
        """Refuse what one process for each rank cannot run."""
    def check_resumable(self) -> None:
        """Refuse what cannot be restarted from a checkpoint."""
    def on_ranks(self, ranks: int) -> list[list[str]]:
        """Overrides that may let it run on so many ranks, those that change least first."""
    def local_world(self) -> LocalWorld:
        """A world in this process as the scenario wants it."""
    def run(self, world: World, progress: Progress) -> Any:
        """The outcome in the process that has rank 0, None in others."""
    def show(self, console: Console, outcome: Any, manner: Manner) -> None:
        """Print the outcome."""
    def document(self, outcome: Any, world: World, command: str | None = None) -> dict[str, Any]:
        """The outcome as `zerosim run --json` writes it."""


def inputs_digest(scenario: Scenario | CollectiveScenario, *others: str) -> str:
    """SHA-256 of every key's value, of the Python that keys name, and of what else was read."""
    code = {where: part.sha256 for where, part in parts_in(scenario)}
    return hashlib.sha256(json.dumps([resolved(scenario), code, *others]).encode()).hexdigest()


def described(world: World) -> dict[str, Any]:
    """A world as documents have it."""
    found: dict[str, Any] = {"kind": world.kind, "ranks": world.ranks, "library": world.library}
    return found | ({"shared_cores": world.shared_cores} if world.shared_cores else {})
