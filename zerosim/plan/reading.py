"""Read a scenario file and plan it."""

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from operator import index
from typing import Any, SupportsIndex

from zerosim.core.errors import ScenarioError, UsageError
from zerosim.core.files import content, reason
from zerosim.plan.planned_row import PlannedRow, on_ranks, rows_of
from zerosim.plan.planning import Plan
from zerosim.plan.search import (
    USUAL_MOST,
    WITHOUT_PIECES,
    Identity,
    fastest,
    in_one_piece,
    layouts_of,
    samples,
    space,
    uncollected,
    written,
)
from zerosim.scenario import Scenario, Source, load
from zerosim.scenario.load import changed_caption
from zerosim.scenario.reading import OVERRIDE, parse
from zerosim.scenario.sections import MOST_RANKS, Check

WRITE_ONE = "write one with zerosim bench collectives --toml FILE"


def with_usual_settings(ranks: int = 8) -> dict[str, Any]:
    """The scenario of a model that is planned without one, but for its [model]."""
    return {
        "title": "A model of another project's file, with usual settings",
        "caption": "8 H100 with 80 GB, AdamW, bf16, recomputation; --ranks, --set and --sweep change these.",
        "world": {"ranks": ranks},
        "train": {"micro_batch": 1, "micro_batches": ranks, "optimizer": "adamw", "precision": "bf16"},
        "parallel": {"stages": ["ddp", "zero1", "zero2", "zero3"], "prefetch": True, "overlap": True,
                     "recompute": True, "accumulation": "micro_batch"},
        "cluster": {"device": "h100_80gb", "kernels": "fused"},
    }


def read_plan(
    path: Source, ranks: int | Iterable[int], overrides: Mapping[str, Any],
    sweep: Mapping[str, Sequence[Any]], *, python: bool = True,
) -> Plan:
    """The plan of a scenario file with its keys replaced by `overrides`, for all combinations of the values in `sweep`.

    Values are TOML values, or text as on a command line. `python=False` refuses keys that name Python code. A rank has
    as many micro-batches on any number of ranks, so that the batch of a step grows with them. Raises `UsageError` for
    wrong numbers of ranks and for a wrong sweep, and `ScenarioError` for numbers that do not go together.
    """
    counts = numbers_of_ranks(ranks)
    scenario = scenario_of(path, overrides, python=python)
    if counts and counts != [scenario.world.ranks] and (scenario.title or scenario.caption):
        caption = changed_caption(scenario.caption, [f"world.ranks={','.join(map(str, counts))}"])
        scenario = replace(scenario, caption=caption)
    swept, _ = scenarios_of(path, overrides, sweep, python=python)
    return Plan(scenario, tuple(
        row.planned() for names, own in swept or [((), scenario)] for count in counts or [own.world.ranks]
        for row in rows_of(on_ranks(own, count), names)))


def read_search(
    path: Source, ranks: int | Iterable[int], overrides: Mapping[str, Any], sweep: Mapping[str, Sequence[Any]], *,
    most: str | int = USUAL_MOST, python: bool = True, say: Callable[[str], None] = lambda words: None,
) -> Plan:
    """The plan of the `most` fastest layouts that fit on each number of ranks; `most` may be `all`.

    Keys in `overrides` are not searched; `sweep` has the values of further keys, or other values. The other arguments
    are those of `read_plan`. Raises `UsageError` for a scenario with rows of its own.
    """
    if most != "all" and (isinstance(most, bool) or not str(most).isdecimal() or int(most) < 1):
        raise UsageError(f"search: found {most!r}; give a number of layouts from 1, or all")
    wanted = inf if most == "all" else int(most)
    scenario = replace(scenario_of(path, overrides, python=python), check=Check())
    swept, refused = scenarios_of(path, overrides, sweep, python=python, some=True)
    if any(own.variant for own in (scenario, *(own for _, own in swept))):
        raise UsageError("--search: this scenario has rows of its own, [[variant]]; use one without")

    rows, words = list[PlannedRow](), list[str]()
    for count in numbers_of_ranks(ranks) or [scenario.world.ranks]:
        with uncollected():
            layouts, batch = dict[Identity, PlannedRow](), samples(on_ranks(scenario, count))
            for names, own in swept or [((), scenario)]:
                one = on_ranks(replace(own, check=Check(), fault=()), count)
                values = {key: some for key, some in space(one, batch).items() if key not in {**overrides, **sweep}}
                for key, row in layouts_of(one, values, names, batch).items():
                    layouts.setdefault(key, row)
            say(f"Searching {len(layouts):,} layouts on {count:,} devices")
            best = fastest([*layouts.values()], wanted)
        rows += best.rows
        words.append(best.words + WITHOUT_PIECES * in_one_piece(scenario.model))
    return Plan(scenario, tuple(rows), search="; ".join([*words, *refused]))


def scenario_of(path: Source, overrides: Mapping[str, Any], *names: str, python: bool = True) -> Scenario:
    """The training scenario in a file, with keys replaced by `overrides`, then by `names` as on a command line."""
    scenario = load(path, [*(f"{key}={written(value)}" for key, value in overrides.items()), *names], python=python)
    if not isinstance(scenario, Scenario):
        raise UsageError(f"{path} is a scenario of collectives, which cannot be planned; give a training scenario")
    return scenario


def scenarios_of(
    path: Source, overrides: Mapping[str, Any], sweep: Mapping[str, Sequence[Any]], *, python: bool, some: bool = False,
) -> tuple[list[tuple[tuple[str, ...], Scenario]], list[str]]:
    """The scenario with each combination of the values in `sweep`, and their names; none without a sweep.

    Errors are those of the sweep. With `some`, combinations that are refused are left out, unless all are, and the
    second list has a sentence about them.
    """
    for key, values in sweep.items():
        if key == "world.ranks":
            raise UsageError("sweep: found world.ranks; give numbers of ranks with --ranks, such as --ranks 8,16")
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise UsageError(f"sweep: found {values!r} for {key}; give a list of its values")
    keys = [[f"{key}={written(value)}" for value in values] for key, values in sweep.items()]
    scenarios, refused = list[tuple[tuple[str, ...], Scenario]](), list[str]()
    for names in filter(None, itertools.product(*keys)):
        try:
            scenarios.append((names, scenario_of(path, overrides, *names, python=python)))
        except ScenarioError as error:
            if error.file != OVERRIDE:
                raise
            what = str(error).removeprefix(f"{error.file}:{error.line}:{error.column}: ")
            refused.append(f"--sweep {', '.join(names)}: {what}")
    if refused and not (some and scenarios):
        raise UsageError(refused[0])
    return scenarios, [f"{len(refused)} combinations of the sweep are left out: {refused[0]}"] if refused else []


def numbers_of_ranks(given: int | Iterable[int], most: int = MOST_RANKS) -> list[int]:
    """One number of ranks or several as Python integers, each once; raises `UsageError` for anything else."""
    counts = list(given) if isinstance(given, Iterable) else [given]
    for count in counts:
        if isinstance(count, bool) or not isinstance(count, SupportsIndex) or not 1 <= index(count) <= most:
            raise UsageError(f"ranks: found {count!r}; give whole numbers from 1 to {most}")
    return list(dict.fromkeys(map(index, counts)))


def cluster_in(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The keys of [cluster] in a file, each prefixed with its section.

    Raises `UsageError` if there is no [cluster], and `ScenarioError` if the file is not TOML.
    """
    try:
        table = parse(content(path).decode("utf-8-sig"), os.fspath(path)).get("cluster")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--cluster: cannot read {os.fspath(path)}: {reason(error)}; {WRITE_ONE}") from error
    if not isinstance(table, dict) or not table:
        raise UsageError(f"--cluster: {os.fspath(path)} has no [cluster]; {WRITE_ONE}")
    return {f"cluster.{key}": value for key, value in table.items()}
