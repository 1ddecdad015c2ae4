"""The observers of a row on one rank: traffic, memory, times, and injected faults."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from zerosim.allocation import Allocator, Kind, Tier, allocate
from zerosim.comm import Communicator
from zerosim.instruments.faults import Faults
from zerosim.instruments.lifetimes import Lifetimes
from zerosim.instruments.location import Locator
from zerosim.instruments.memory import HeldAtBeginnings, Ledger, Moves
from zerosim.instruments.observed import Observed, ObservedAllocator
from zerosim.instruments.trace import Tracer
from zerosim.instruments.traffic import Traffic
from zerosim.stages.storage import FarMemory
from zerosim.training.tiers import far_memory

BEGINNINGS = ("reduce_scatter", "update")
"""Operations at whose beginning a step should have freed all arrays that it no longer needs."""


@dataclass(frozen=True, eq=False)
class Observers:
    """The instruments of one row on one rank; every row has new ones."""

    locator: Locator
    faults: Faults
    traffic: Traffic
    ledger: Ledger
    far: dict[Tier, Ledger]
    """The ledgers of memory tiers beside the device's."""
    moves: Moves
    held: HeldAtBeginnings
    lifetimes: Lifetimes | None
    """None unless the arrays of the last step are recorded."""
    tracer: Tracer | None
    """None unless a step is traced."""

    def observed(self, comm: Communicator) -> Observed:
        """A channel whose traffic the instruments observe."""
        injected = [self.faults] if self.faults.faults else []
        traced = [self.tracer] if self.tracer else []
        return Observed(comm, self.locator, *injected, self.traffic, self.held, *traced)

    def tiers(self, folder: str) -> FarMemory:
        """The memory tiers beside the device's, with instruments."""
        traced = [self.tracer] if self.tracer else []
        return far_memory(
            folder, lambda tier, allocate: ObservedAllocator(allocate, self.far[tier]), [self.moves, *traced])

    def beside_the_device(self, counted: Callable[[Ledger], Mapping[Kind, int]]) -> dict[str, dict[str, int]]:
        """The counts of the ledger of each tier beside the device's, by kind."""
        return {
            str(tier): {str(kind): held for kind, held in counted(ledger).items() if held}
            for tier, ledger in self.far.items()}

    def allocator(self) -> Allocator:
        """The allocator of the device's memory, with instruments."""
        return ObservedAllocator(allocate, self.ledger, *([self.lifetimes] if self.lifetimes else []))


def observers(
    row: str, rank: int, hosts: Sequence[int], faults: Faults, *, lifetimes: bool, traced: bool
) -> Observers:
    """The observers of row `row` on `rank`, with that rank's faults; `hosts` has each rank's host."""
    ledger = Ledger()
    return Observers(
        Locator(row), faults, Traffic(away=lambda to: hosts[to] != hosts[rank]), ledger,
        {"host": Ledger(), "disk": Ledger()}, Moves(),
        HeldAtBeginnings(ledger, BEGINNINGS), Lifetimes() if lifetimes else None, Tracer(rank) if traced else None,
    )
