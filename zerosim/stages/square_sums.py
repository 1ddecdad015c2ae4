"""The sums of squares of the gradients, on every rank, for the norm of all of them.

They are added unit by unit, and within a unit chunk by chunk, in the same order on every rank, so the norm does not
depend on the sharding. Where ranks share a micro-batch, each counts its pieces of cut parameters, and the first of them
what all have; the chunks' sums are added over them. Ranks of a pipeline have 0 for the units of others, which changes
no bit of the sum; of a unit that two of them have, the first counts it.

Stages I to III all-gather the partial sums, 8 bytes per unit and rank.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from zerosim.autograd.tape_collectives import ALONE, TapeGroups, added_over
from zerosim.models.units import Unit
from zerosim.stages.replica import Replica
from zerosim.stages.scaling import counted_square_sum


class SquareSums:
    """The square sums: a rank with all gradients computes all; otherwise each rank its chunks', which are all-gathered.

    `groups` are those of the ranks that share a micro-batch; `pipeline` is that of the ranks which together have all
    units, `trained`.
    """

    def __init__(
        self, groups: TapeGroups = ALONE, pipeline: TapeGroups = ALONE, trained: Sequence[Unit] = ()
    ) -> None:
        self._groups = {**groups, **pipeline}
        self._coordinates = {name: group.place for name, group in groups.items()}
        self._trained = trained

    def of_gradients(self, replica: Replica) -> Iterable[float]:
        mesh, trained = replica.mesh, replica.trained
        everyone, sharded = np.empty((mesh.size, len(trained))), "optimizer" in replica.state.placement.sharded
        for chunk in mesh.owned if sharded else range(mesh.size):
            everyone[chunk] = self.of_chunk(replica, chunk)
        if sharded:
            within = mesh.within(replica.comm)
            replica.collectives.gather_norms("norms", within, list(everyone.reshape(within.size, -1)))
        counted = {unit.numbers: sums for unit, sums in zip(trained, everyone.T.tolist(), strict=True) if not unit.end}
        return added_over(self._groups, [
            count for unit in self._trained or trained for count in counted.get(unit.numbers, [0.0] * mesh.size)])

    def of_chunk(self, replica: Replica, chunk: int) -> list[float]:
        """The square sums of one chunk of each trained unit."""
        sums = []
        for unit in replica.trained:
            layout = replica.state.gradient_layouts[unit]
            wanted = replace(layout, first=chunk, last=chunk + 1)
            own = layout.part(replica.reduced_gradients[unit], wanted)
            unpadded = own[: max(unit.count - wanted.start, 0)]
            sums.append(counted_square_sum(unit, wanted.start, unpadded, self._coordinates))
        return sums
