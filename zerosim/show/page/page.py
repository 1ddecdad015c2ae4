"""The page: sections, styles, scripts and data in one file that loads nothing."""

import json
from base64 import b64encode
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from zerosim.errors import UsageError
from zerosim.show.activities import ACTIVITIES, activity, definitions, edge, is_paler
from zerosim.show.legend import KIND_WORDS
from zerosim.show.page import origins, pictures, sections, step_pictures, steps, vega
from zerosim.show.page.drawings import Drawings
from zerosim.show.page.markup import Markup, element, joined
from zerosim.show.run_document import RunDocument
from zerosim.show.schedule import Schedule
from zerosim.show.step import RecordedStep

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
               for each in steps.of_run(order, ranks)]
    content = [sections.head(runs), *map(sections.checks, runs), sections.results(runs), origins.differences(runs)]
    if any(row.steps for row in rows):
        about_times = [run.about_times for run in runs if run.about_times]
        content += [sections.step(rows, drawings, about_times), sections.traffic(rows), sections.losses(rows)]
    content += map(sections.calls, filter(lambda row: "calls" in row.found, rows))
    content += [sections.schedules(stepped, ranks), sections.divergence(rows), sections.row_differences(runs)]
    content += map(origins.origin, runs)
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
    stepped = [steps.steps(schedule, first)]
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
