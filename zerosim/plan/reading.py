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
from zerosim.models import MODELS
from zerosim.plan.planning import Plan, Swept, Unplanned, on_ranks, plan
from zerosim.plan.search import (
    USUAL_MOST,
    WITHOUT_PIECES,
    Identity,
    advised,
    fastest,
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
    say: Callable[[str], None] = lambda words: None,
) -> Plan:
    """The plan of a scenario file with its keys replaced by `overrides`, for all combinations of the values in `sweep`.

    Values are TOML values, or text as on a command line. `python=False` refuses keys that name Python code. `say`
    gets a line before a long computation. Raises `UsageError` for wrong numbers of ranks and for a wrong sweep.
    """
    counts = numbers_of_ranks(ranks)
    fixed = [f"{key}={written(value)}" for key, value in overrides.items()]
    scenario = training(path, fixed, python=python)
    if counts and counts != [scenario.world.ranks] and (scenario.title or scenario.caption):
        caption = changed_caption(scenario.caption, [f"world.ranks={','.join(map(str, counts))}"])
        scenario = replace(scenario, caption=caption)
    scenarios = scenarios_of(path, fixed, sweep, python=python)
    return with_advice(plan(scenario, scenarios, counts), say)


def with_advice(made: Plan, say: Callable[[str], None]) -> Plan:
    """The plan, with what would fit if no row does."""
    if made.best is not None or not made.rows:
        return made
    say("Nothing fits: searching for a layout that does")
    return replace(made, advice=advised(made.rows))


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
    fixed = [f"{key}={written(value)}" for key, value in overrides.items()]
    scenario = replace(training(path, fixed, python=python), check=Check())
    impossible = list[str]()
    scenarios = scenarios_of(path, fixed, sweep, python=python, impossible=impossible) or [((), scenario)]
    if any(own.variant for _, own in scenarios):
        raise UsageError("--search: this scenario has rows of its own, [[variant]]; use one without")

    @uncollected()
    def on(count: int) -> Plan:
        layouts, batch = dict[Identity, Unplanned](), samples(on_ranks(scenario, count))
        for names, own in scenarios:
            one = on_ranks(replace(own, check=Check(), fault=()), count)
            values = {key: choices for key, choices in space(one, batch).items() if key not in {**overrides, **sweep}}
            for key, row in layouts_of(one, values, names, batch).items():
                layouts.setdefault(key, row)
        say(f"Searching {len(layouts):,} layouts on {count:,} devices")
        best = fastest([*layouts.values()], wanted)
        whole_queues = "queue_tokens" in MODELS[scenario.model.kind].own_keys and not scenario.model.queue_tokens
        return Plan(scenario, best.rows, search=best.words + WITHOUT_PIECES * whole_queues)

    counts = numbers_of_ranks(ranks)
    plans = [on(count) for count in counts or [scenario.world.ranks]]
    rows = tuple(row for plan in plans for row in plan.rows)
    words = [*(plan.search for plan in plans), *impossible[:1]]
    return with_advice(Plan(scenario, rows, search="; ".join(words)), say)


def scenario_of(path: Source, overrides: Mapping[str, Any], *, python: bool = True) -> Scenario:
    """The training scenario in a file, with keys replaced by `overrides`."""
    return training(path, [f"{key}={written(value)}" for key, value in overrides.items()], python=python)


def scenarios_of(
    path: Source, fixed: Sequence[str], sweep: Mapping[str, Sequence[Any]], *, python: bool,
    impossible: list[str] | None = None,
) -> list[Swept]:
    """The scenario with each combination of the values in `sweep`; none without a sweep. Errors are those of the sweep.

    With `impossible`, combinations that are refused drop out into this list, unless all are.
    """
    for key, values in sweep.items():
        if key == "world.ranks":
            raise UsageError("sweep: found world.ranks; give numbers of ranks with --ranks, such as --ranks 8,16")
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise UsageError(f"sweep: found {values!r} for {key}; give a list of its values")
    keys, scenarios = [[f"{key}={written(value)}" for value in values] for key, values in sweep.items()], list[Swept]()
    refused = list[str]()
    for names in filter(None, itertools.product(*keys)):
        try:
            scenarios.append((names, training(path, [*fixed, *names], python=python)))
        except ScenarioError as error:
            if error.file != OVERRIDE:
                raise
            what = str(error).removeprefix(f"{error.file}:{error.line}:{error.column}: ")
            refused.append(f"--sweep {', '.join(names)}: {what}")
    if refused and (impossible is None or not scenarios):
        raise UsageError(refused[0])
    if refused and impossible is not None:
        impossible.append(f"{len(refused)} combinations of the sweep are left out: {refused[0]}")
    return scenarios


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


def training(path: Source, overrides: Sequence[str], *, python: bool) -> Scenario:
    """The training scenario in a file."""
    scenario = load(path, overrides, python=python)
    if not isinstance(scenario, Scenario):
        raise UsageError(f"{path} is a scenario of collectives, which cannot be planned; give a training scenario")
    return scenario
