"""A plan: for each row of a scenario on each number of ranks, whether it fits, the time of a step, and the bottleneck.

Each device has three fitted numbers. Where plans were off in the same direction repeatedly, the missing effect was
modelled instead of fitted: PyTorch's checkpoint stops early, a loss has more passes, an operation's bytes come after
its products, collectives occupy multiprocessors, fused attention is computed again in backward. Each has a source and
lowered the errors; all together were then compared with runs that were not used for fitting.

Nearly full memory is not modelled. Four published runs are slow with little memory left, because an allocator has to
stall the device; other runs with as little left are not. A number for that would fit four runs and predict none.

A plan stores no curve of memory. A curve has tens of thousands of points for a model of a hundred blocks, and a sweep
would hold a thousand curves; `PlannedRow.trace` computes one on demand.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from zerosim.core.words import ignored_in_words, joined, joined_names, plural
from zerosim.plan.planned_row import PlannedRow, Run
from zerosim.plan.search import advised
from zerosim.scenario.schema import Scenario
from zerosim.stages import STAGES
from zerosim.training.config import Config


class PlanClaim(NamedTuple):
    """A claim of a scenario, with a sentence for each row that breaks it; None if it concerns no row of the plan."""

    title: str
    broken: list[str] | None


PLANNED = ("world", "data", "model", "train", "parallel", "variant", "cluster")
"""The sections of a scenario that determine a plan."""


@dataclass(frozen=True)
class Plan:
    """All rows of a plan, which judges the claims of its scenario."""

    scenario: Scenario
    rows: tuple[PlannedRow, ...]
    run: Run | None = None
    """The training whose time and cost each row has as well."""
    search: str = ""
    """The numbers of layouts that a search planned, and that it left out for each reason."""

    @cached_property
    def advice(self) -> str:
        """If no row fits, a layout that does, or what was tried; the search runs on first access."""
        return advised(self.rows) if self.best is None else ""

    @property
    def best(self) -> PlannedRow | None:
        """The row that fits with the most tokens per second and device."""
        fitting = [row for row in self.rows if row.fits]
        return max(fitting, key=lambda row: row.tokens_per_second, default=None)

    @property
    def fewest(self) -> PlannedRow | None:
        """The fastest of the rows that fit on the fewest devices."""
        return min((row for row in self.rows if row.fits), default=None,
                   key=lambda row: (row.config.directions.ranks, -row.tokens_per_second))

    @property
    def claims(self) -> list[PlanClaim]:
        """The claims of the scenario's [check] about plans; they concern rows on its own ranks and without swept keys.

        They concern none if an override changes the plan, but not the claim.
        """
        check, origin, claims = self.scenario.check, self.scenario.origin, list[PlanClaim]()
        own = [row for row in self.rows if row.config.directions.ranks == self.scenario.world.ranks and not row.swept]
        changed = any(path[0] in PLANNED for path in origin.overrides)
        judged = {key: own if origin.is_override(("check", key)) or not changed else []
                  for key in ("fits", "does_not_fit", "mfu")}
        for key, verb in (("fits", "fits"), ("does_not_fit", "does not fit")):
            for stage in getattr(check, key):
                rows = [row for row in judged[key] if row.config.stage_key == stage]
                broken = [f"{row.name} must {'not ' * (key != 'fits')}fit, but it {'does' if row.fits else 'does not'}"
                          for row in rows if row.fits != (key == "fits")]
                claims.append(PlanClaim(f"{STAGES[stage].title} {verb}", broken if rows else None))
        if check.mfu:
            low, high = check.mfu
            words, fastest = f"an MFU of {low:.0%} to {high:.0%}", max(
                (row.mfu for row in judged["mfu"] if row.fits), default=0.0)
            broken = [f"the fastest row has an MFU of {fastest:.1%}; expected {words}"] * (not low <= fastest <= high)
            claims.append(PlanClaim(words, broken if judged["mfu"] else None))
        return claims

    @property
    def broken(self) -> list[str]:
        """The broken claims, each as a sentence."""
        return [words for claim in self.claims for words in claim.broken or []]

    @property
    def passed(self) -> bool:
        return not self.broken

    @property
    def names(self) -> list[str]:
        """The names of the rows, with their ranks where these differ."""
        several = len({row.config.directions.ranks for row in self.rows}) > 1 and not any(
            row.layout for row in self.rows)
        return [f"{row.name} on {row.config.directions.ranks:,}" if several else row.name for row in self.rows]

    @property
    def verdict(self) -> str:
        """A sentence about the best row that fits, and the best one on the fewest devices."""
        best, fewest = self.best, self.fewest
        if best is None or fewest is None:
            return f"Nothing fits. {self.advice}"
        speed = f"{best.data_unit} a second on each"
        named = [f"{self.names[self.rows.index(row)]}, {row.tokens_per_second:,.0f}" for row in (fewest, best)]
        if fewest.config.directions.ranks < best.config.directions.ranks:
            return f"Fewest devices that fit: {named[0]} {speed}; fastest: {named[1]}"
        several = len({row.config.directions.ranks for row in self.rows}) > 1
        return f"{'Fewest devices that fit, and fastest' if several else 'Best that fits'}: {named[1]} {speed} device"

    @property
    def setting(self) -> str:
        """The machine in a line; the model, its data and the software in two."""
        config, cluster = self.rows[0].config, self.rows[0].cluster
        ranks, software = sorted({row.config.directions.ranks for row in self.rows}), cluster.software
        links = [f"{cluster.inside.title} inside a host of {cluster.devices_per_host}"] * (cluster.devices_per_host > 1)
        links += [f"{cluster.between.title} between hosts"] * (ranks[-1] > cluster.devices_per_host)
        counts = plural(ranks[0], "rank") if len(ranks) == 1 else f"{joined([f'{count:,}' for count in ranks])} ranks"
        settings = [f"{software.reserve:.0%} of the peak in the allocator's reserve"] * (software.reserve > 0)
        machine = [f"{counts} of {cluster.device.title}", ", ".join(links),
                   f"collectives {'pipelined' if cluster.pipelined else 'as written'}", ", ".join(settings)]
        return (f"{'; '.join(filter(None, machine))}\n{config.model.words}, {config.in_one_piece.count:,} parameters, "
                f"{config.train.precision}, {config.train.optimizer}{cluster.tuning.words}\n{self._work}")

    @property
    def _work(self) -> str:
        """The data of a step, and what is computed again."""
        def several(values: Iterable[Any]) -> str:
            return joined([*dict.fromkeys(map(str, values))])

        configs = [row.config for row in self.rows]
        tokens = [f"sequences of {several(f'{config.model.task.inputs:,}' for config in configs)} tokens"] * any(
            config.model.task.tokens for config in configs)
        reduced = several("each micro-batch" if config.arithmetic.part_by_part else "a step" for config in configs)
        return ", ".join([
            *tokens, f"micro-batches of {several(config.train.micro_batch for config in configs)}",
            f"{several(config.block for config in configs)} in a step on a rank",
            f"gradients reduced after {reduced}" if any(config.block > 1 for config in configs) else "",
            several(recomputed_in_words(config) for config in configs),
            f"software: {self.rows[0].cluster.software.title}"]).replace(", , ", ", ")

    @property
    def notes(self) -> list[str]:
        """The bound of each row, the price of its collectives, its ignored keys, and the claims that are not judged."""
        named = [*zip(self.names, self.rows, strict=True)]
        notes = [f"{name}: {words}" for name, row in named
                 for words in (row.bound + row.spare, row.over_directions) if words]
        notes += dict.fromkeys(words for row in self.rows for words in (row.pricing, row.error_bar) if words)
        notes += [self.search] if self.search else ignored_in_words((name, row.config.ignored) for name, row in named)
        unjudged = [claim.title for claim in self.claims if claim.broken is None]
        why = "Scenario checks skipped, because --ranks, --set or --sweep changed it"
        return [*notes, f"{why}: {joined_names(unjudged)}"] if unjudged else notes

    def document(self) -> dict[str, Any]:
        """The plan as JSON types."""
        return {
            "schema": "zerosim.plan/1",
            "title": self.scenario.title,
            "passed": self.passed,
            "broken": self.broken,
            "not_judged": [claim.title for claim in self.claims if claim.broken is None],
            "best": None if self.best is None else self.best.name,
            "fewest_ranks": None if self.fewest is None else self.fewest.config.directions.ranks,
            "rows": [row.document() | ({"run": self.run.of(row)} if self.run else {}) for row in self.rows],
            "advice": self.advice,
            "search": self.search,
        }


def recomputed_in_words(config: Config) -> str:
    """What a row computes again before backward.

    >>> recomputed_in_words(Config(**vars(next(iter(Scenario().rows))), model=None))    # type: ignore[arg-type]
    'nothing recomputed'
    """
    chosen, keeps = config.parallel.recompute, config.parallel.recompute_keeps
    if not chosen:
        return "nothing recomputed"
    every = f"{len(chosen)} layers" if isinstance(chosen, tuple) else "every layer"
    return f"{every} recomputed" + (f" but {keeps}" if keeps else "")
