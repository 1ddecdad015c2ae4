"""The page: sections, styles, scripts and data in one file that asks nobody for anything."""

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from zerosim.report.figures import common_unit
from zerosim.report.memory_table import ByteUnit
from zerosim.report.page import pictures, sections, steps, vega
from zerosim.report.page.markup import Markup, element
from zerosim.report.page.run import NO_UNIT, Row, Run
from zerosim.report.page.textures import definitions

POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:"
"""What the browser may load: nothing. Vega makes functions of its expressions, which counts as evaluating."""


def page(runs: Sequence[Run]) -> str:
    """The HTML of one run, or of several side by side.

    Raises `UsageError` where the extra that draws pictures is missing.
    """
    rows = [row for run in runs for row in run.rows]
    found = dict.fromkeys(span["unit"] for row in rows for span in row.spans)
    units = sorted(found, key=lambda unit: (unit == NO_UNIT, len(unit), unit))
    lanes = 1 + max((span["lane"] for row in rows for span in row.spans), default=0)
    ranks = max(run.ranks for run in runs)
    stepped = [each for order in dict.fromkeys(run.scenario["parallel"]["order"] for run in runs)
               for each in steps.of_run(order, ranks)]
    content = [sections.head(runs), sections.table(runs), sections.differences(runs)]
    if any(row.steps for row in rows):
        content += [sections.step(rows, units, lanes), sections.traffic(rows), sections.losses(rows)]
    names = [each["name"] for each in stepped]
    content += [sections.schedules(names, ranks, steps.shown_ranks(ranks)), sections.divergence(rows),
                *map(sections.origin, runs)]
    data = {
        "specs": specs(rows, units, ranks, lanes),
        "values": {name: columns(values) for name, values in values_of(rows).items()},
        "schedules": stepped,
        "lanes": {"tops": pictures.lane_tops(lanes), "height": pictures.rank_height(lanes)},
    }
    title = " · ".join(run.title for run in runs) or "zerosim"
    return document(title, content, data)


def document(title: str, content: Sequence[Markup], data: dict[str, Any]) -> str:
    """The whole file."""
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
        element("script", Markup(vega.script())), element("script", Markup(own("page.js"))), element("script", Markup(own("player.js"))))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def own(name: str) -> str:
    """A file of this package's."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def embedded(data: Any) -> Markup:
    """JSON that cannot end the script it stands in.

    >>> embedded(["</script>"])
    '["\\\\u003c/script>"]'
    """
    return Markup(json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"))


def specs(rows: Sequence[Row], units: Sequence[str], ranks: int, lanes: int) -> dict[str, vega.Spec]:
    """Every picture that the page may have, by its name; all on one scale of time and of bytes."""
    until = max((row.end_ns for row in rows), default=1) or 1
    most_bytes = max((row.fullest["peak_bytes"]["total"] for row in rows), default=1)
    curves, names = pictures.loss_curves(rows), [row.name for row in rows]
    positive = [loss for curve in curves.values() for loss in curve if loss is not None]
    logarithmic = bool(positive) and min(positive) > 0 and max(positive) > 20 * min(positive)
    return {
        "timeline": pictures.timeline(units, ranks, lanes, until),
        "memory": pictures.memory(until, most_bytes),
        "partners": pictures.partners(ranks, traffic_unit(rows)),
        "kept": pictures.kept(names),
        "sent": pictures.sent(names),
        "losses": pictures.losses(list(curves), max(row.steps for row in rows), logarithmic),
    }


def values_of(rows: Sequence[Row]) -> dict[str, pictures.Values]:
    """All data that pictures name."""
    unit = traffic_unit(rows)
    found = {"kept": pictures.kept_values(rows), "sent": pictures.sent_values(rows),
             "losses": pictures.loss_values(rows), "divergences": pictures.divergence_values(rows)}
    for number, row in enumerate(rows):
        found[f"curve-{number}"] = pictures.curve_values(row.curve, row.end_ns)
        if row.spans:
            found[f"spans-{number}"] = pictures.span_values(row)
            found[f"links-{number}"] = pictures.link_values(row)
            found[f"partners-{number}"] = pictures.partner_values(row, unit)
    return found


def traffic_unit(rows: Sequence[Row]) -> ByteUnit:
    """For what one rank sends another in a step."""
    return common_unit(max((sections.sent_bytes(row) for row in rows), default=0))


def columns(values: pictures.Values) -> dict[str, list[Any]]:
    """Each key once, with its values in a row: a third of the size.

    >>> columns([{"a": 1, "b": 2}, {"a": 3, "b": 4}])
    {'a': [1, 3], 'b': [2, 4]}
    """
    return {key: [value[key] for value in values] for key in values[0]} if values else {}


