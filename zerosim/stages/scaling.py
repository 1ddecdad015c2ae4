"""One factor for all gradients of a step, which undoes the loss scale and clips by the global norm.

    norm         √ Σ g², over all parameters; partial sums of squares are float64, one for each chunk of each unit, and
                 are added unit by unit, chunk by chunk, so that every stage and the reference get the same bits
    loss scale   the factor of the loss before backward, a power of two; if dynamic, it halves when a gradient
                 overflows, that step is skipped, and it doubles after 2,000 steps without overflow; it does not fall
                 below 2⁻²⁴, where steps that overflow are still skipped

Sums are added unit by unit, and within a unit chunk by chunk, in the same order on every rank, so the norm does not
depend on the sharding. Where ranks share a micro-batch, each counts its pieces of cut parameters, and the first of them
what all have; the chunks' sums are added over them. Ranks of a pipeline have 0 for the units of others, which changes
no bit of the sum; of a unit that two of them have, the first counts it.

Gradients themselves are not changed; the optimizer multiplies by the factor. Stages I to III all-gather the partial
sums, 8 bytes per unit and rank. All ranks have the same sums, so they agree without another message whether to skip a
step.

A doubt: chunks depend on the number of ranks, so with clipping the bits do too, even in the orders `tree` and `exact`.

Sources: Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks" (2013), section 3.2,
with the constants of `torch.nn.utils.clip_grad_norm_`; Micikevicius et al., "Mixed precision training" (2018), section
3.2, with the constants of `torch.amp.GradScaler`, which has no lowest scale and may halve to 0. Here the lowest scale
is the smallest positive float16: a loss gradient of 1 times this scale is still that number, and half of it would
round to 0. A lower scale would not save such gradients but erase them.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from zerosim.autograd.tape_collectives import ALONE, TapeGroups, added_over
from zerosim.core.allocation import Array
from zerosim.models.parameters import Coordinates
from zerosim.models.units import Unit
from zerosim.stages.optimizers import PIECE

if TYPE_CHECKING:
    from zerosim.stages.replica import Replica

INITIAL_SCALE = 2.0**16
LOWEST_SCALE = 2.0**-24
STEPS_TO_GROW = 2000
EPSILON = 1e-6


def square_sum(chunk: Array) -> float:
    """Σ x² of a chunk in float64, piece by piece, left to right.

    >>> square_sum(np.array([3.0, 4.0], np.float16))
    25.0
    """
    total = 0.0
    for start in range(0, len(chunk), PIECE):
        total += float(np.sum(np.square(chunk[start : start + PIECE].astype(np.float64))))
    return total


def counted_square_sum(unit: Unit, start: int, values: Array, coordinates: Coordinates) -> float:
    """Σ x² of the elements of a unit from `start` on for which a place answers, where each is counted once."""
    if not any(coordinates.values()):
        return square_sum(values)
    stretches = ((max(place.start - start, 0), max(place.stop - start, 0)) for place in unit.places
                 if place.parameter.answers(coordinates))
    return float(sum(square_sum(values[first:last]) for first, last in stretches))


class SquareSums:
    """A rank with all gradients computes all sums; otherwise each computes its chunks', and all-gathers them.

    `groups` are those of the ranks that share a micro-batch; `pipeline` is that of the ranks which together have all
    units, `trained`.
    """

    def __init__(
        self, groups: TapeGroups = ALONE, pipeline: TapeGroups = ALONE, trained: Sequence[Unit] = ()
    ) -> None:
        self._groups = {**groups, **pipeline}
        self._coordinates = {name: group.place for name, group in groups.items()}
        self._trained = trained

    def of_gradients(self, replica: "Replica") -> Iterable[float]:
        sharded = "optimizer" in replica.state.layouts.sharded
        sums = iter(self._gathered(replica) if sharded else self._own(replica))
        chunks, nothing = range(replica.mesh.size), [0.0] * replica.mesh.size
        counts = {unit.numbers: ([next(sums) for _ in chunks], unit.end) for unit in replica.trained}
        counted = {numbers: infinities for numbers, (infinities, end) in counts.items() if not end}
        return added_over(self._groups, [
            count for unit in self._trained or replica.trained for count in counted.get(unit.numbers, nothing)])

    def of_chunk(self, replica: "Replica", chunk: int) -> list[float]:
        """The square sums of one chunk of each trained unit."""
        sums = []
        for unit in replica.trained:
            layout = replica.state.gradient_layouts[unit]
            wanted = replace(layout, first=chunk, last=chunk + 1)
            own = layout.part(replica.reduced_gradients[unit], wanted)
            unpadded = own[: max(unit.count - wanted.start, 0)]
            sums.append(counted_square_sum(unit, wanted.start, unpadded, self._coordinates))
        return sums

    def _own(self, replica: "Replica") -> Iterator[float]:
        by_chunk = [self.of_chunk(replica, chunk) for chunk in range(replica.mesh.size)]
        return (sums[unit] for unit in range(len(by_chunk[0])) for sums in by_chunk)

    def _gathered(self, replica: "Replica") -> Iterator[float]:
        within, trained = replica.mesh.within(replica.comm), len(replica.trained)
        everyone = np.empty((replica.mesh.size, trained))
        for chunk in replica.mesh.owned:
            everyone[chunk] = self.of_chunk(replica, chunk)
        replica.collectives.gather_norms("norms", within, list(everyone.reshape(within.size, -1)))
        return (float(sums[unit]) for unit in range(trained) for sums in everyone)


@dataclass
class Scaling:
    """The loss scale, and the norm for clipping (0: no clipping), before a step."""

    loss_scale: float = 1.0
    dynamic: bool = False
    clip_norm: float = 0.0
    good_steps: int = 0

    @property
    def needs_norm(self) -> bool:
        """Whether a step needs the norm of its gradients."""
        return self.dynamic or self.clip_norm > 0

    def factor(self, square_sums: Iterable[float]) -> float | None:
        """The factor of the gradients from their partial sums of squares; None if the step is skipped.

        >>> Scaling(clip_norm=1.0).factor([9.0, 16.0])
        0.199999960000008
        >>> scaling = Scaling(loss_scale=4.0, dynamic=True)
        >>> scaling.factor([math.inf]), scaling.loss_scale, scaling.factor([1.0])
        (None, 2.0, 0.5)
        """
        factor = 1.0 / self.loss_scale
        if not self.needs_norm:
            return factor
        total = 0.0
        for part in square_sums:
            total += part
        if self.dynamic and not math.isfinite(total):
            self.loss_scale = max(self.loss_scale / 2.0, LOWEST_SCALE)
            self.good_steps = 0
            return None
        if self.clip_norm:
            norm = math.sqrt(total) * factor
            factor *= min(1.0, self.clip_norm / (norm + EPSILON))
        if self.dynamic:
            self._grow()
        return factor

    def _grow(self) -> None:
        self.good_steps += 1
        if self.good_steps == STEPS_TO_GROW:
            self.loss_scale *= 2.0
            self.good_steps = 0
