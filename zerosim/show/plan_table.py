"""A plan in the terminal: a table, the bound of each row, the best row that fits, a sweep side by side; and as CSV."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from zerosim.core.words import ON_HOST, common_unit, duration, ignored_in_words, in_unit, joined, joined_names, plural
from zerosim.plan.cluster import Cluster
from zerosim.plan.planned_row import PlannedRow
from zerosim.plan.planning import Plan
from zerosim.plan.software import Software
from zerosim.show.grid import Column, show_grid, show_words


def show_plan(console: Console, plan: Plan) -> None:
    """Show a plan: the table, then sentences."""
    first = plan.rows[0]
    show_words(console, machine(plan.rows), style="dim")
    show_words(console, f"{first.config.model.words}, {first.config.in_one_piece.count:,} parameters, "
                        f"{first.config.train.precision}, {first.config.train.optimizer}", style="dim")
    names = names_of(plan.rows)
    show_grid(console, names, columns(plan.rows))
    for word, meaning in legend(plan.rows):
        show_words(console, meaning, key=f"{word:<10}", style="dim")
    for name, row in zip(names, plan.rows, strict=True):
        show_words(console, f"{name}: {row.bound}{room(row)}")
        if row.over_directions:
            show_words(console, f"{name}: {row.over_directions}")
    show_others(console, plan, names)
    if plan.best is None or len(plan.rows) > 1:
        show_words(console, sentence(plan), style="bold")
    for broken in plan.broken:
        show_words(console, f"FAILED: {broken}", style="bold red")
    for words in not_judged(plan):
        show_words(console, words)
    if plan.passed and any(claim.broken is not None for claim in plan.claims):
        ranks = plural(plan.scenario.world.ranks, "rank")
        show_words(console, f"PASSED: all claims hold on {ranks}", style="bold")


def show_others(console: Console, plan: Plan, names: Sequence[str]) -> None:
    """Show the layouts that a search left out; without one ignored keys, the speed on several ranks, and the sweep."""
    for pricing in dict.fromkeys(filter(None, (row.pricing for row in plan.rows))):
        show_words(console, pricing, style="yellow")
    if plan.search:
        show_words(console, plan.search)
        return
    for ignored in ignored_in_words((name, row.config.ignored) for name, row in zip(names, plan.rows, strict=True)):
        show_words(console, ignored, style="yellow")
    if len({row.config.all_ranks for row in plan.rows}) > 1:
        show_scaling(console, plan.rows)
    show_sweep(console, plan, unit_of_data(plan.rows[0]))


def room(row: PlannedRow) -> str:
    """The memory that a fitting row leaves, if the allocator has a reserve, and the memory that this holds."""
    if not row.fits or row.reserved_bytes == row.peak_bytes:
        return ""
    left = (row.cluster.device.memory - row.peak_bytes) / 1e9
    return f"; fits with {left:.1f} GB to spare, and the allocator holds {row.reserved_bytes / 1e9:.1f} GB"


def not_judged(plan: Plan) -> list[str]:
    """A sentence about the claims that are not judged here, if there are any."""
    left = [claim.title for claim in plan.claims if claim.broken is None]
    why = "Scenario checks skipped, because --ranks, --set or --sweep changed it"
    return [f"{why}: {joined_names(left)}"] if left else []


def names_of(rows: Sequence[PlannedRow]) -> list[str]:
    """The names of rows, with their ranks where these differ."""
    several = len({row.config.all_ranks for row in rows}) > 1 and not any(row.layout for row in rows)
    return [f"{row.name} on {row.config.all_ranks:,}" if several else row.name for row in rows]


def sentence(plan: Plan) -> str:
    """A sentence about the best row that fits, and the best one on the fewest devices."""
    best, fewest = plan.best, plan.fewest
    if best is None or fewest is None:
        return f"Nothing fits. {plan.advice}"

    def named(row: PlannedRow) -> str:
        return f"{names_of(plan.rows)[plan.rows.index(row)]}, {row.tokens_per_second:,.0f}"

    speed = f"{unit_of_data(best)} a second on each"
    if fewest.config.all_ranks < best.config.all_ranks:
        return f"Fewest devices that fit: {named(fewest)} {speed}; fastest: {named(best)}"
    several = len({row.config.all_ranks for row in plan.rows}) > 1
    return f"{'Fewest devices that fit, and fastest' if several else 'Best that fits'}: {named(best)} {speed} device"


def legend(rows: Sequence[PlannedRow]) -> list[tuple[str, str]]:
    """The meaning of the columns."""
    found = [
        ("memory", "at the peak, on each device; below 'fits': the bytes beyond its memory"),
        *([(ON_HOST, "the same of offloaded states, for each device")] if offloaded(rows) else []),
        ("step", "time of one step; compute: forward, backward and recomputation"),
        ("waits", "exposed communication: time in which the device does not compute"),
        *([("bubble", "share of the step in which the ranks of a pipeline wait for each other's passes")]
          if pipelined(rows) else []),
        ("MFU, HFU", "operations that the model needs, and operations executed, over the device's peak rate"),
    ]
    if any(round(row.hfu, 3) < round(row.mfu, 3) for row in rows):
        found.append(("HFU < MFU", "MFU counts 6 operations for a token and each parameter that it meets; HFU counts "
                                   "matrix products only; the lookup of an embedding, a norm and a bias have none"))
    return found


def machine(rows: Sequence[PlannedRow]) -> str:
    """The machine that a plan is for, in words."""
    cluster = rows[0].cluster
    ranks = sorted({row.config.all_ranks for row in rows})
    links = []
    if cluster.devices_per_host > 1:
        links.append(f"{cluster.inside.title} inside a host of {cluster.devices_per_host}")
    if ranks[-1] > cluster.devices_per_host:
        links.append(f"{cluster.between.title} between hosts")
    cost = "pipelined" if cluster.pipelined else "as written"
    counts = plural(ranks[0], "rank") if len(ranks) == 1 else f"{joined([f'{each:,}' for each in ranks])} ranks"
    parts = [f"{counts} of {cluster.device.title}", ", ".join(links), f"collectives {cost}", software(cluster)]
    return "; ".join(filter(None, parts))


def software(cluster: Cluster) -> str:
    """The software of a plan in words; empty if it is that of the device's fitted runs."""
    title, reserve = cluster.software.title, cluster.software.reserve
    named = "" if title == Software().title else title
    return ", ".join(filter(None, [named, f"{reserve:.0%} of the peak in the allocator's reserve" if reserve else ""]))


def unit_of_data(row: PlannedRow) -> str:
    return "tokens" if row.config.model.task.tokens else "samples"


def offloaded(rows: Sequence[PlannedRow]) -> bool:
    """Whether some row needs memory of the host."""
    return any(row.host_bytes for row in rows)


def pipelined(rows: Sequence[PlannedRow]) -> bool:
    """Whether some row has a pipeline."""
    return any(row.config.directions.pipeline > 1 for row in rows)


def columns(rows: Sequence[PlannedRow]) -> list[Column]:
    size = common_unit(max(row.peak_bytes for row in rows))
    what = unit_of_data(rows[0])
    return [
        Column(f"memory\n{size.name}", [in_unit(row.peak_bytes, size) for row in rows]),
        *([Column(f"{ON_HOST}\n{size.name}", [in_unit(row.host_bytes, size) for row in rows])]
          if offloaded(rows) else []),
        Column("fits", ["yes" if row.fits else f"+{in_unit(row.missing_bytes, size)}" for row in rows]),
        Column("step", [duration(row.step_seconds) for row in rows]),
        Column("compute", [duration(row.compute_seconds) for row in rows]),
        Column("update", [duration(row.update_seconds) for row in rows]),
        Column("sends for", [duration(row.communication_seconds) for row in rows]),
        Column("waits", [duration(row.exposed_seconds) for row in rows]),
        *([Column("bubble", [f"{row.found.bubble:.1%}" for row in rows])] if pipelined(rows) else []),
        Column("MFU", [f"{row.mfu:.1%}" for row in rows]),
        Column("HFU", [f"{row.hfu:.1%}" for row in rows]),
        Column(f"{what}/s\na device", [f"{row.tokens_per_second:,.0f}" for row in rows]),
    ]


def show_scaling(console: Console, rows: Sequence[PlannedRow]) -> None:
    """Show the speed of a device for each row on several numbers of ranks."""
    for name in dict.fromkeys(row.name for row in rows):
        curve = [row for row in rows if row.name == name]
        first = curve[0].tokens_per_second
        shares = [f"{row.tokens_per_second / first:.0%} on {row.config.all_ranks:,}" for row in curve if first]
        show_words(console, f"{name}, speed of a device: {joined(shares)}")


def show_sweep(console: Console, plan: Plan, data: str) -> None:
    """Show the speed of all rows of a sweep side by side, in `data` per second; nothing without a sweep."""
    swept = [row for row in plan.rows if row.swept]
    if not swept:
        return
    key = column_key(swept)
    headings = list(dict.fromkeys(heading(row, key) for row in swept))
    names = list(dict.fromkeys(label(row, key) for row in swept))
    cells = {(label(row, key), heading(row, key)): cell(row, best=row is plan.best) for row in swept}
    meaning = f"{data}/s on each device by {key}; * is the best that fits, + what is too much, in GB"
    show_words(console, meaning, style="dim")
    show_grid(console, names, [
        Column(heading, [cells.get((name, heading), "") for name in names]) for heading in headings])


def column_key(rows: Sequence[PlannedRow]) -> str:
    """The swept key of the columns: the micro-batch, or else the first."""
    keys = [setting.split("=", 1)[0] for setting in rows[0].swept]
    return next((key for key in keys if key == "train.micro_batch"), keys[0])


def heading(row: PlannedRow, key: str) -> str:
    """The value of the columns' key in a row."""
    return next(setting.split("=", 1)[1] for setting in row.swept if setting.startswith(f"{key}="))


def label(row: PlannedRow, key: str) -> str:
    """A row's stage, its ranks, and its other swept keys."""
    settings = [setting.partition("=") for setting in row.swept]
    others = [f"{name.rsplit('.', 1)[-1]}={value}" for name, _, value in settings if name != key]
    return ", ".join([row.config.name, f"{row.config.all_ranks:,} ranks", *others])


def cell(row: PlannedRow, *, best: bool) -> str:
    """A row's speed, or the memory beyond the device's."""
    return f"{row.tokens_per_second:,.0f}{'*' * best}" if row.fits else f"+{row.missing_bytes / 1e9:.1f}"


def csv_of(plan: Plan) -> str:
    """A line for each row: each swept key in its own column, then every figure of `zerosim plan --json`."""
    document = plan.document()
    rows = [row.pop("swept") | flat(row) for row in document["rows"]]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), restval="", extrasaction="raise", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the document with nested dicts flattened.

    >>> flat({"name": "DDP", "memory": {"peak": 3, "resting": {"parameters": 1}}, "mfu": 0.5})
    {'name': 'DDP', 'peak_bytes': 3, 'resting_parameters_bytes': 1, 'mfu': 0.5}
    """
    found: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, list):
            found |= {f"{key}_{name}": "; ".join(str(each[name]) for each in value) for name in value[0]}
            continue
        if not isinstance(value, dict):
            found[key] = value
            continue
        if key != "memory":
            found[key] = "; ".join(f"{name}: {why}" for name, why in value.items())
            continue
        held = {kind: each for kind, each in value.items() if kind != "resting"}
        resting = {f"resting_{kind}": each for kind, each in value["resting"].items()}
        found |= {f"{kind}_bytes": each for kind, each in (held | resting).items()}
    return found
