"""What a training run will need, before it runs: by formula, and by its stages' own text on shapes.

`zerosim.plan` can be called: `zs.plan("scenarios/plans/mpt_7b.toml", ranks=[8, 64])` gives what `zerosim plan` shows.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerosim.plan.planning import Plan


class Planning(ModuleType):
    """The package itself, as a function: its name is that of the command."""

    def __call__(
        self, path: str | os.PathLike[str], ranks: int | Sequence[int] = (), *, set: Mapping[str, Any] = {},
        sweep: Mapping[str, Sequence[Any]] = {},
    ) -> "Plan":
        """The plan of the scenario at `path`, on its own number of ranks, on so many, or on each of `ranks`.

        `set` replaces keys of the scenario, `sweep` gives several values of a key, which are all combined. Raises
        `ScenarioError` as `zerosim plan` does, and `UsageError` for `ranks` that are no numbers of ranks.
        """
        from zerosim.plan.reading import read_plan  # noqa: PLC0415 - what it imports, most programs do without

        return read_plan(path, [ranks] if isinstance(ranks, int) else list(ranks), set, sweep)


sys.modules[__name__].__class__ = Planning
