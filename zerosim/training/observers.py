"""What observes a row on one rank: counts its messages, follows its memory, notes its times, and lets faults strike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from zerosim.allocation import Allocator, Kind, Tier, allocate
from zerosim.comm import Communicator
from zerosim.instruments.faults import Faults
from zerosim.instruments.lifetimes import Lifetimes
from zerosim.instruments.location import Locator
from zerosim.instruments.memory import HeldAtBeginnings, Ledger
from zerosim.instruments.moves import Moves
from zerosim.instruments.observed import Observed, ObservedAllocator
from zerosim.instruments.trace import Tracer
from zerosim.instruments.traffic import Traffic
from zerosim.training.tiers import Tiers

BEGINNINGS = ("reduce_scatter", "update")
"""What begins when a step should have let go of what it no longer needs."""


@dataclass(frozen=True, eq=False)
class Observers:
    """The instruments of a row on one rank, each fresh."""

    locator: Locator
    faults: Faults
    traffic: Traffic
    ledger: Ledger
    far: dict[Tier, Ledger]
    """The ledgers of memory beside the device's."""
    moves: Moves
    held: HeldAtBeginnings
    lifetimes: Lifetimes | None
    """If every array of the last step is written down."""
    tracer: Tracer | None
    """If any step is traced."""

    def observed(self, comm: Communicator) -> Observed:
        """A channel that tells them what goes through it."""
        befalling = [self.faults] if self.faults.faults else []
        traced = [self.tracer] if self.tracer else []
        return Observed(comm, self.locator, *befalling, self.traffic, self.held, *traced)

    def tiers(self, folder: str) -> Tiers:
        """Memory beside the device's, of which they are told."""
        traced = [self.tracer] if self.tracer else []
        return Tiers(
            folder, lambda tier, allocate: ObservedAllocator(allocate, self.far[tier]), [self.moves, *traced])

    def beside_the_device(self, counted: Callable[[Ledger], Mapping[Kind, int]]) -> dict[str, dict[str, int]]:
        """What the ledger of each tier beside the device's says, by kind."""
        return {
            str(tier): {str(kind): held for kind, held in counted(ledger).items() if held}
            for tier, ledger in self.far.items()}

    def allocator(self) -> Allocator:
        """Memory of which they are told."""
        return ObservedAllocator(allocate, self.ledger, *([self.lifetimes] if self.lifetimes else []))


def observers(
    row: str, rank: int, hosts: Sequence[int], faults: Faults, *, lifetimes: bool, traced: bool
) -> Observers:
    """The observers of a row of this name on `rank`, with the faults that befall it; `hosts` has each rank's host."""
    ledger = Ledger()
    return Observers(
        Locator(row), faults, Traffic(away=lambda to: hosts[to] != hosts[rank]), ledger,
        {"host": Ledger(), "disk": Ledger()}, Moves(),
        HeldAtBeginnings(ledger, BEGINNINGS), Lifetimes() if lifetimes else None, Tracer(rank) if traced else None,
    )
