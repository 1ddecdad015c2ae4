"""Sections on the origin of a run: its command, its scenario as TOML, and the differences of two runs."""

import json
from collections.abc import Sequence
from typing import Any

from zerosim.show.page.markup import Markup, element, joined, scrolling, section, table
from zerosim.show.run_document import RunDocument
from zerosim.words import plural, toml


def origin(run: RunDocument) -> Markup:
    """The resolved scenario, versions, digests and the command that repeats the run."""
    world = run.document["world"]
    facts = {
        "world": f"{world['kind']}, {plural(world['ranks'], 'rank')}, {world['library']}",
        **{name: str(found) for name, found in run.document["versions"].items()},
    }
    digests = [[row.name, *(element("code", row.found[f"{what}_sha256"]) for what in ("weights", "optimizer"))]
               for row in run.rows]
    command = run.document["command"]
    again = toml(run.scenario)
    prefix = f"mpirun -n {run.ranks} " if world["kind"] == "mpi" else ""
    name = f"{run.label}: " if run.label else ""
    return section(
        f"origin{run.label}", f"{name}How to reproduce it",
        *([element("p", "This was run as"), element("pre", str(command))] if command else []),
        *([] if run.is_script else [
            element("p", "The resolved scenario, with all defaults. Saved as again.toml, it reproduces the same bits "
                         "with ",
                    element("code", f"{prefix}zerosim run again.toml --report again.html"), "."),
            element("details", element("summary", "again.toml"), element("pre", again, class_="scenario"))]),
        table(facts.items(), class_="facts"), element("h3", "SHA-256"),
        scrolling(table(digests, ("row", "weights", "optimizer state"))))


def differences(runs: Sequence[RunDocument]) -> Markup:
    """The keys in which the scenarios of two runs differ, and the rows with the same weights."""
    if len(runs) < 2:
        return joined()
    one, other = (flat(run.scenario) for run in runs)
    changed = [(key, one.get(key), other.get(key)) for key in dict.fromkeys([*one, *other])
               if one.get(key) != other.get(key) and key not in ("title", "caption")]
    lines = [[key, *(json.dumps(each, ensure_ascii=False) for each in both)] for key, *both in changed]
    found = table(lines, ("key", *(run.label for run in runs))) if lines else element(
        "p", "Both have the same scenario, except for titles and captions.")
    return section("differences", "Differences of the scenarios", scrolling(found), element("p", same_bits(runs)))


def same_bits(runs: Sequence[RunDocument]) -> str:
    """A sentence on whether the rows of both runs end with the same weights."""
    digests = [{row.found["weights_sha256"] for row in run.rows} for run in runs]
    if digests[0] == digests[1] and len(digests[0]) == 1:
        return "All rows of both end with the same weights, bit for bit."
    common = digests[0] & digests[1]
    return "Some rows of both end with the same weights." if common else "They end with different weights."


def flat(scenario: dict[str, Any]) -> dict[str, Any]:
    """The keys of a scenario with their sections before them.

    >>> flat({"title": "x", "world": {"ranks": 2}})
    {'title': 'x', 'world.ranks': 2}
    """
    found: dict[str, Any] = {}
    for key, value in scenario.items():
        found |= {f"{key}.{name}": each for name, each in value.items()} if isinstance(value, dict) else {key: value}
    return found
