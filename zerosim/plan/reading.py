"""Read a scenario file and plan it."""

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import index
from pathlib import Path
from typing import Any, SupportsIndex

from zerosim.core.errors import ScenarioError, UsageError
from zerosim.core.files import reason
from zerosim.core.words import toml_value
from zerosim.plan.planning import Plan, Swept, plan
from zerosim.scenario import Scenario, Source, load
from zerosim.scenario.load import changed_caption
from zerosim.scenario.reading import OVERRIDE, parse
from zerosim.scenario.sections import MOST_RANKS

LONG = 20.0
"""The seconds beyond which a plan is said to be long before it starts."""

WRITE_ONE = "write one with zerosim bench collectives --toml FILE"


def with_usual_settings(ranks: int = 8) -> dict[str, Any]:
    """The scenario of a model that is planned without one, but for its [model]."""
    return {
        "title": "A model of another project's file, with usual settings",
        "caption": "8 H100 with 80 GB, AdamW, bf16, recomputation; --ranks, --set and --sweep change these.",
        "world": {"ranks": ranks},
        "train": {"micro_batch": 1, "micro_batches": ranks, "optimizer": "adamw", "precision": "bf16"},
        "parallel": {"stages": ["ddp", "zero1", "zero2", "zero3"], "prefetch": True, "overlap": True,
                     "recompute": True},
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
    seconds = sum(
        expected_seconds(swept, count) for _, swept in scenarios or [((), scenario)]
        for count in counts or [swept.world.ranks])
    if seconds > LONG:
        say(f"This plan may take {seconds:.0f} s or more; interrupt it with Ctrl-C")
    return plan(scenario, scenarios, counts)


def expected_seconds(scenario: Scenario, ranks: int) -> float:
    """A rough time to plan all rows: each layer has about forty operations on vectors with a number for each rank."""
    return len(scenario.rows) * scenario.model.layer_count * (3e-3 + 2.5e-7 * ranks)


def scenario_of(path: Source, overrides: Mapping[str, Any], *, python: bool = True) -> Scenario:
    """The training scenario in a file, with keys replaced by `overrides`."""
    return training(path, [f"{key}={written(value)}" for key, value in overrides.items()], python=python)


def scenarios_of(
    path: Source, fixed: Sequence[str], sweep: Mapping[str, Sequence[Any]], *, python: bool
) -> list[Swept]:
    """The scenario with each combination of the values in `sweep`; none without a sweep. Errors are those of the sweep.
    """
    for key, values in sweep.items():
        if key == "world.ranks":
            raise UsageError("sweep: found world.ranks; give numbers of ranks with --ranks, such as --ranks 8,16")
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise UsageError(f"sweep: found {values!r} for {key}; give a list of its values")
    keys, scenarios = [[f"{key}={written(value)}" for value in values] for key, values in sweep.items()], list[Swept]()
    for names in filter(None, itertools.product(*keys)):
        try:
            scenarios.append((names, training(path, [*fixed, *names], python=python)))
        except ScenarioError as error:
            if error.file != OVERRIDE:
                raise
            what = str(error).removeprefix(f"{error.file}:{error.line}:{error.column}: ")
            raise UsageError(f"--sweep {', '.join(names)}: {what}") from error
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
        table = parse(Path(path).read_bytes().decode("utf-8-sig"), os.fspath(path)).get("cluster")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--cluster: cannot read {os.fspath(path)}: {reason(error)}; {WRITE_ONE}") from error
    if not isinstance(table, dict) or not table:
        raise UsageError(f"--cluster: {os.fspath(path)} has no [cluster]; {WRITE_ONE}")
    return {f"cluster.{key}": value for key, value in table.items()}


def written(value: Any) -> str:
    """A value as the right-hand side of an override.

    A value without counterpart in JSON, such as a TOML date, becomes text, which only keys of text accept.

    >>> written("adam"), written(True), written([1, 2]), written({"flops": 1e12})
    ('adam', 'true', '[1, 2]', '{ flops = 1000000000000.0 }')
    """
    return value if isinstance(value, str) else toml_value(value)


def training(path: Source, overrides: Sequence[str], *, python: bool) -> Scenario:
    """The training scenario in a file."""
    scenario = load(path, overrides, python=python)
    if not isinstance(scenario, Scenario):
        raise UsageError(f"{path} is a scenario of collectives, which cannot be planned; give a training scenario")
    return scenario
