"""The page: sections, styles, scripts and data in one file that loads nothing.

The last sections are about the origin of a run: its command, its scenario as TOML, and the differences of two runs.
A schedule is data for an interactive drawing: the contents of every rank after each round, and its messages.
"""

import json
from base64 import b64encode
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from zerosim.collectives import ALGORITHMS
from zerosim.errors import UsageError
from zerosim.payloads.terms import Term, leaves
from zerosim.show.activities import ACTIVITIES, activity, definitions, edge, is_paler
from zerosim.show.legend import KIND_WORDS
from zerosim.show.page import pictures, sections, step_pictures, vega
from zerosim.show.page.drawings import Drawings
from zerosim.show.page.markup import Markup, element, joined, scrolling, section, table
from zerosim.show.run_document import RunDocument
from zerosim.show.schedule import Cell, Schedule, expression, scheduled
from zerosim.show.schedule_svg import TONES
from zerosim.show.step import RecordedStep
from zerosim.stages.adding import ADDITIONS
from zerosim.teach.proofs.subject import named_subject
from zerosim.words import plural, toml

POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:"
"""The browser may load nothing. Vega compiles its expressions to functions, which counts as evaluating."""


def page(runs: Sequence[RunDocument]) -> str:
    """The HTML of one run, or of several side by side.

    Raises `UsageError` if the extra that draws pictures is missing.
    """
    rows = [row for run in runs for row in run.rows]
    drawings = Drawings(rows)
    ranks = max(run.ranks for run in runs)
    stepped = [each for order in dict.fromkeys(run.scenario["parallel"]["order"] for run in runs)
               for each in schedules_of(order, ranks)]
    content = [sections.head(runs), *map(sections.checks, runs), sections.results(runs), differences(runs)]
    if any(row.steps for row in rows):
        about_times = [run.about_times for run in runs if run.about_times]
        content += [sections.step(rows, drawings, about_times), sections.traffic(rows), sections.losses(rows)]
    content += map(sections.calls, filter(lambda row: "calls" in row.found, rows))
    content += [sections.schedules(stepped, ranks), sections.divergence(rows), sections.row_differences(runs)]
    content += map(origin, runs)
    data = {
        "specs": {name: vega.compiled(spec) for name, spec in drawings.for_a_page().items()},
        "values": {name: columns(values) for name, values in drawings.values.items()},
        "schedules": stepped,
        "lanes": {"tops": step_pictures.lane_tops(drawings.lanes), "height": step_pictures.rank_height(drawings.lanes)},
    }
    title = " · ".join(run.title for run in runs if run.title) or "A run"
    return html_document(title, content, data, [vega.script(), own("page.js"), own("player.js")])


def schedule_page(schedule: Schedule, first: int = 0) -> str:
    """The HTML of one collective, shown round by round from round `first` on; it needs no extra.

    >>> from zerosim.teach.proofs.subject import named_subject
    >>> from zerosim.show.schedule import scheduled
    >>> schedule_page(scheduled(named_subject("ring.all_reduce"), 4)).count("<script")
    2
    """
    stepped = [states_of(schedule, first)]
    head = sections.verdict_of(schedule.title, f"{schedule.cost}; {schedule.about}", schedule.verdict.split("; "),
                               passed=not schedule.faults)
    content = [head, sections.schedules(stepped, schedule.size)]
    return html_document(schedule.title, content, {"schedules": stepped}, [own("player.js")])


def step_page(found: RecordedStep, first: int = 0) -> str:
    """The HTML of a stage's step, shown event by event from event `first` on; it needs no extra."""
    units = list(dict.fromkeys(event.unit for event in found.events if event.unit))
    drawn = found.document()
    for event, each in zip(found.events, drawn["moments"], strict=True):
        each |= {"letter": event.letter, "paler": is_paler(event.unit, units),
                 "colour": ACTIVITIES[activity(event.what)], "edge": edge(ACTIVITIES[activity(event.what)])}
    kinds = {kind: {"words": words, "colour": colour, "edge": edge(colour)}
             for (kind, words), colour in zip(KIND_WORDS.items(), pictures.KIND_COLOURS, strict=True)}
    data = {"step": {**drawn, "first": first, "most": found.most, "kinds": kinds}}
    head = sections.verdict_of(found.title, found.about, [found.verdict], passed=found.fault is None)
    content = [head, sections.step_by_step(found, kinds)]
    return html_document(f"{found.title}, {found.about}", content, data, [own("stage.js")])


def html_document(title: str, content: Sequence[Markup], data: dict[str, Any], scripts: Sequence[str]) -> str:
    """The HTML of the whole page."""
    head = element(
        "head", element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title), element("style", Markup(own("page.css"))))
    textures = Markup(f'<svg width="0" height="0" aria-hidden="true" class="textures">{definitions()}</svg>')
    body = element(
        "body", textures, element("main", *content), element("div", id="tip", role="status", hidden=True),
        element("script", embedded(data), type="application/json", id="data"),
        *(element("script", Markup(each)) for each in scripts))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def own(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def embedded(data: Any) -> Markup:
    """JSON that cannot end the script that contains it.

    >>> embedded(["</script>"])
    '["\\\\u003c/script>"]'
    """
    return Markup(json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"))


def columns(values: pictures.PictureValues) -> dict[str, list[Any]]:
    """Each key once, with its values in a list: a third of the size.

    >>> columns([{"a": 1, "b": 2}, {"a": 3, "b": 4}])
    {'a': [1, 3], 'b': [2, 4]}
    """
    return {key: [value[key] for value in values] for key in values[0]} if values else {}


PICTURES = {"kept": "memory of a rank between steps, by kind",
            "sent": "bytes sent by a rank in a step, by collective"}


def excerpt(run: RunDocument) -> Markup:
    """The verdict, the table, and pictures of kept and sent bytes; a sentence if pictures cannot be drawn."""
    said = [element("p", element("strong", run.title)), element("p", str(run.document["verdict"])),
            sections.failures(run)]
    if not run.rows:
        return joined(*said)
    return joined(*said, sections.rows_table(run.rows), images(run))


def images(run: RunDocument) -> Markup:
    """Pictures as images: the styles and names of SVG inside the page would apply to all cells."""
    specs = dict(Drawings(run.rows).files())
    try:
        drawn = {about: vega.svg(specs[name]) for name, about in PICTURES.items() if name in specs}
    except UsageError as error:
        return element("p", str(error))
    return joined(*(
        element("p", element("img", src=f"data:image/svg+xml;base64,{b64encode(each.encode()).decode()}", alt=about))
        for about, each in drawn.items()))


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


MOST_RANKS = 8
"""The most columns that fit on a lecturer's screen."""


def collectives_of(order: str) -> list[str]:
    """The algorithms by which a run adds and gathers, and their composition if there is one.

    >>> collectives_of("ring"), collectives_of("exact")
    (['ring.all_reduce', 'ring.reduce_scatter', 'ring.all_gather'], ['ring.all_gather'])
    """
    adds = ADDITIONS[order].collective
    family = adds.__module__.rpartition(".")[2] if adds else ""
    wanted = (f"{family}.all_reduce", f"{family}.reduce_scatter", "ring.all_gather")
    return [name for name in wanted if name in ALGORITHMS]


def states_of(schedule: Schedule, first: int = 0) -> dict[str, Any]:
    """The schedule by states, shown from state `first` on; each state has only the cells that changed.

    >>> found = states_of(scheduled(named_subject("ring.all_gather"), 2))
    >>> found["states"][1]["messages"][0]["words"]
    'rank 1 sends chunk 1 to rank 0'
    """
    return {
        "name": schedule.subject.name,
        "about": f"{schedule.title}: {schedule.cost}",
        "ranks": schedule.size,
        "places": [schedule.place_name(place) for place in range(schedule.chunks)],
        "tones": tones(schedule.chunks),
        "first": first,
        "states": [state(schedule, number) for number in range(len(schedule.states))],
    }


def tones(chunks: int) -> list[dict[str, str]]:
    """A colour for each chunk: those of the pictures or, for more chunks, hues around the circle.

    >>> len(tones(4)), len(tones(16)), tones(16)[4]["line"]
    (8, 16, 'hsl(90 65% 38%)')
    """
    if chunks <= len(TONES):
        return [{"line": tone.line, "ground": tone.ground} for tone in TONES]
    hues = [round(360 * chunk / chunks) for chunk in range(chunks)]
    return [{"line": f"hsl({hue} 65% 38%)", "ground": f"hsl({hue} 60% 84%)"} for hue in hues]


def share(cell: Cell, size: int) -> float:
    """The filled share of a cell without room for words: for a sum, the share of the ranks in it.

    >>> from zerosim.payloads.terms import Blank, Term
    >>> share(Cell(Term(0) + Term(1), 0, 1), 8), share(Cell(Blank(0), 0, 0), 8)
    (0.25, 0.0)
    """
    ranks = {leaf.rank for leaf in leaves(cell.holds) if isinstance(leaf, Term)}
    return 1.0 if cell.complete else round(len(ranks) / size, 3)


def state(schedule: Schedule, number: int) -> dict[str, Any]:
    return {
        "heading": schedule.heading(number),
        "cells": [
            {"rank": rank, "place": cell.place, "text": cell.text, "holds": expression(cell.holds, cell.place),
             "share": share(cell, schedule.size)}
            for rank, cells in enumerate(schedule.states[number]) for cell in cells if cell.since == number
        ],
        "messages": [
            {
                "source": arrow.source, "to": arrow.to, "chunks": list(arrow.chunks), "lands": list(arrow.lands),
                "words": f"rank {arrow.source} sends {schedule.cargo(arrow)} to rank {arrow.to}"
                         + ", which adds it" * arrow.reduced,
            }
            for arrow in schedule.arrows_in(number)
        ],
    }


def schedules_of(order: str, ranks: int) -> list[dict[str, Any]]:
    """The schedules of the collectives of a run with this order of addition."""
    return [states_of(scheduled(named_subject(name), min(ranks, MOST_RANKS))) for name in collectives_of(order)]
