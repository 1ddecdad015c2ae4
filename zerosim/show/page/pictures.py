"""The pictures of a run, each declared as a Vega-Lite specification over named data, and that data.

A specification is the same for all rows; its data has a name, so that a page draws it from its own copy and a file
contains it. Times are nanoseconds since the step began, bytes are bytes.

The page contains each specification once, compiled, and each data set once. Altair makes such dicts from Python. It
would add narwhals, jinja2, jsonschema and their dependencies, 0.7 s of import, and a second vocabulary. Tests check
specifications instead: every picture has marks, in files and in the browser, and the browser logs nothing.

Colour is the activity, and so is texture, as SVG patterns, so that a print in grey distinguishes backward from forward.
Every other layer is paler. Axes and words take their colours from the style sheet: light, dark and print are one
picture.

The visible time is two parameters, `begin` and `end`, of every picture of time, so rows stay comparable at any
zoom. The wheel zooms only after a click (or with Ctrl), so that a page can be scrolled.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from zerosim.instruments.memory import MEMORY_KINDS
from zerosim.show.activities import ACTIVITIES, edge
from zerosim.show.page.vega import Spec
from zerosim.show.run_document import KIND_NAMES, RowDocument
from zerosim.words import ByteUnit, three_digits

PictureValues = list[dict[str, Any]]

VEGA_LITE = "https://vega.github.io/schema/vega-lite/v6.json"

ROW_COLOURS = ("#3b8fd4", "#e39a1b", "#19a37a", "#cf6fae", "#7fb8e8", "#e0662f", "#b9a62a", "#8f83d8", "#4fb3b3",
                "#b5765a")
"""The colours of rows in curves, in turn; curves have shapes as well."""
KIND_COLOURS = ("#d9b53b", "#b0305c", "#6b4f3a", "#e6a5c3", "#8c9a4b")
"""The colours of kinds of memory, from the bottom up; none is that of an activity."""

TALL, LANE, GAP = 18, 11, 12
"""The heights in pixels of the lane of computation, of another lane, and of the gap between two ranks."""
PICKED = "#d0006f"
DEVICE = "#2f7fd0"
"""The colour of the line at the device's memory, which no kind of memory has."""
SIDE = 96
"""The pixels on the left of every picture of time, so that their axes are aligned."""

BYTES = {"format": "~s", "labelExpr": "replace(datum.label, /([a-zA-Z]?)$/, ' $1B')"}
"""A tick of 50,000 is labelled 50 kB."""
FONT = "system-ui, sans-serif"
CONFIG: Spec = {
    "background": None,
    "font": FONT,
    "view": {"stroke": None},
    "axis": {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal", "gridOpacity": 0.25,
             "domainOpacity": 0.6, "tickOpacity": 0.6},
    "legend": {"orient": "top", "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal",
               "symbolType": "square", "labelLimit": 600},
}


def colour(domain: Sequence[str], colours: Sequence[str], title: str | None) -> Spec:
    """A scale that gives the domain colours in turn."""
    scale = {"domain": list(domain), "range": [colours[number % len(colours)] for number in range(len(domain))]}
    return {"type": "nominal", "scale": scale, "title": title}


def filled(field: str, domain: Sequence[str], colours: Sequence[str], title: str | None = None, **more: Any) -> Spec:
    """The colour of a mark by a field, and its outline: the edge of that colour, which can be seen on any ground."""
    return {"color": {"field": field, **colour(domain, colours, title), "legend": {}, **more},
            "stroke": {"field": field, **colour(domain, [*map(edge, colours)], title), "legend": None}}


def chart(data: str, height: int, **more: Any) -> Spec:
    """The specification of a picture of named data, as wide as its place."""
    return {
        "$schema": VEGA_LITE,
        "data": {"name": data},
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": CONFIG,
        **more,
    }


def distinguished(names: Sequence[str]) -> Spec:
    """The colour and the shape of the curve of each name."""
    return {"color": {"field": "row", **colour(names, [*map(edge, ROW_COLOURS)], None)},
            "shape": {"field": "row", "type": "nominal", "scale": {"domain": list(names)}, "title": None}}


def time_axis(title: str | None) -> Spec:
    """The axis of time between the parameters `begin` and `end`, in milliseconds."""
    return {
        "type": "quantitative",
        "scale": {"domain": [{"expr": "begin"}, {"expr": "end"}], "nice": False, "zero": False},
        "axis": {"title": title, "labelExpr": "format(datum.value / 1e6, end - begin < 4e5 ? '.3~f' : '.2~f')",
                 "grid": True, "tickCount": 8},
    }


def window(until: int) -> list[Spec]:
    """The parameters of the visible time; at first all of it."""
    return [{"name": "begin", "value": 0}, {"name": "end", "value": until}]


def memory(until: int, most_bytes: int) -> Spec:
    """The memory of a rank in a step, stacked by kind; data `curve`.

    A kind's outline is its edge, so that a peak narrower than a pixel can be seen on dark and on white.
    """
    return chart(
        "curve", 130, params=window(until),
        mark={"type": "area", "interpolate": "step-after", "clip": True, "aria": False, "strokeWidth": 1},
        encoding={
            "x": {"field": "ns", **time_axis("ms since the step began")},
            "y": {"field": "bytes", "type": "quantitative", "stack": "zero",
                  "scale": {"domain": [0, most_bytes], "nice": True},
                  "axis": {"title": None, **BYTES, "tickCount": 4, "minExtent": SIDE, "maxExtent": SIDE}},
            **filled("kind", list(KIND_NAMES.values()), KIND_COLOURS, "kind"),
            "order": {"field": "place", "type": "quantitative"},
            "tooltip": [{"field": "kind"}],
        })


def curve_values(curve: Sequence[dict[str, int]], until: int) -> PictureValues:
    """A curve of memory as one value for each change and kind, up to the end of the step."""
    ends = [{**curve[-1], "ns": until}] if curve and curve[-1]["ns"] < until else []
    return [
        {"ns": at["ns"], "kind": KIND_NAMES[kind], "place": place, "bytes": at.get(kind, 0)}
        for at in [*curve, *ends] for place, kind in enumerate(MEMORY_KINDS)
    ]


def partners(ranks: int, unit: ByteUnit) -> Spec:
    """The bytes between every two ranks in a step, in that unit; data `partners`."""
    axis = {"labelAngle": 0, "domain": False, "ticks": False, "grid": False}
    cell = min(54, max(18, 312 // ranks))
    return {
        "$schema": VEGA_LITE,
        "data": {"name": "partners"},
        "width": ranks * cell,
        "height": ranks * cell,
        "config": CONFIG,
        "encoding": {
            "x": {"field": "to", "type": "ordinal", "axis": axis | {"title": f"{unit.name} to rank", "orient": "top"}},
            "y": {"field": "source", "type": "ordinal", "axis": axis | {"title": "from rank"}},
            "tooltip": [{"field": "source", "title": "from rank"}, {"field": "to", "title": "to rank"},
                        {"field": "bytes", "format": ","}, {"field": "messages"}],
        },
        "layer": [
            {"mark": {"type": "rect", "aria": False, "stroke": "#8886", "strokeWidth": 1}, "encoding": {
                "fill": {"value": ROW_COLOURS[0]},
                "fillOpacity": {"field": "bytes", "type": "quantitative", "legend": None,
                                "scale": {"domainMin": 0, "range": [0, 0.6]}},
            }},
            {"mark": {"type": "text", "aria": False, "fontSize": 10}, "encoding": {
                "text": {"field": "words"},
            }},
        ],
    }


def partner_values(row: RowDocument, unit: ByteUnit) -> PictureValues:
    """The bytes and messages between every two ranks in the traced step."""
    sent = {(source, to): [0, 0] for source in range(row.ranks) for to in range(row.ranks)}
    for span in (span for step in row.traced for span in step["spans"]):
        if span["lane"] == "communication out":
            found = sent[span["rank"], span["peer"]]
            found[0] += span["bytes"]
            found[1] += 1
    return [
        {"source": source, "to": to, "bytes": count, "messages": messages,
         "words": three_digits(count / unit.size) if count else ""}
        for (source, to), (count, messages) in sent.items()
    ]


def bars(title: str, field: str, domain: Sequence[str], colours: Sequence[str], names: Sequence[str]) -> Spec:
    """A bar for each row, in parts by `field`; data `bars`."""
    return chart(
        "bars", 26 * len(names), mark={"type": "bar", "aria": False, "strokeWidth": 1},
        encoding={
            "y": {"field": "row", "type": "nominal", "sort": list(names),
                  "axis": {"title": None, "labelLimit": 150, "ticks": False, "domain": False}},
            "x": {"field": "bytes", "type": "quantitative",
                  "axis": {"title": title, **BYTES, "tickCount": 8, "labelOverlap": "greedy"}},
            **filled(field, domain, colours, legend={"columns": 3}),
            "order": {"field": "place", "type": "quantitative"},
            "tooltip": [{"field": "row"}, {"field": field}, {"field": "bytes", "format": ",.6~g"}],
        })


def kept(rows: Sequence[RowDocument]) -> Spec:
    """The memory that a rank of each row keeps between steps, by kind: the picture of the ZeRO paper's Figure 1."""
    return by_kind("kept by a rank between steps", MEMORY_KINDS[:3], rows)


def by_kind(title: str, kinds: Sequence[str], rows: Sequence[RowDocument]) -> Spec:
    """A bar for each row, in parts by kind of memory."""
    return bars(title, "kind", [KIND_NAMES[kind] for kind in kinds], KIND_COLOURS, [row.name for row in rows])


def kind_values(kinds: Sequence[str], rows: Sequence[tuple[str, Mapping[str, int]]]) -> PictureValues:
    """The bytes of these kinds, from the bottom up, for each named row."""
    return [{"row": name, "kind": KIND_NAMES[kind], "place": place, "bytes": held.get(kind, 0)}
            for name, held in rows for place, kind in enumerate(kinds)]


def peaks(rows: Sequence[RowDocument], device_bytes: int) -> Spec:
    """The memory of a rank of each row at the peak, by kind, and a line at the memory of the device."""
    return beside_device(by_kind("held at the peak", MEMORY_KINDS, rows), "x", device_bytes)


def peak_values(rows: Sequence[RowDocument]) -> PictureValues:
    """The memory of each row and kind at the peak of the step."""
    return kind_values(MEMORY_KINDS, [
        (row.name, max(row.curve, key=lambda at: sum(at.get(kind, 0) for kind in MEMORY_KINDS))) for row in rows])


COLLECTIVE_COLOURS = {
    "reduce_scatter": ACTIVITIES["reduce"], "all_reduce": "#f0a04b", "all_gather": ACTIVITIES["gather"],
    "broadcast": "#7fcfae", "gather_norms": ACTIVITIES["other"],
}
"""The colours of collectives: those of their activities, paler for the second of an activity."""


def sent(rows: Sequence[RowDocument]) -> Spec:
    """The bytes that a rank of each row sends in a step, by collective."""
    used = {value["collective"] for value in sent_values(rows)}
    colours = {name: each for name, each in COLLECTIVE_COLOURS.items() if name in used}
    return bars("sent by a rank in a step, the mean over ranks and steps", "collective", list(colours),
                list(colours.values()), [row.name for row in rows])


def sent_values(rows: Sequence[RowDocument]) -> PictureValues:
    """The mean bytes that a rank of each row sends in a step, by collective."""
    found = []
    for row in rows:
        steps = max(row.steps_here, 1) * max(len(row.found["traffic"]), 1)
        for place, name in enumerate(COLLECTIVE_COLOURS):
            shares = [rank["by_collective"].get(name, {}) for rank in row.found["traffic"]]
            if any(shares):
                found.append({
                    "row": row.name, "collective": name, "place": place,
                    "bytes": sum(share.get("sent_bytes", 0) for share in shares) / steps,
                    "messages": sum(share.get("messages", 0) for share in shares) / steps,
                })
    return found


def losses(names: Sequence[str], steps: int, logarithmic: bool) -> Spec:
    """The loss of every step, a line for each row or for rows that have the same; data `losses` and `divergences`."""
    x = {"field": "step", "type": "quantitative", "scale": {"domain": [1, max(steps, 2)], "nice": False},
         "axis": {"title": "step", "format": "d", "tickMinStep": 1, "grid": False}}
    y = {"field": "loss", "type": "quantitative", "axis": {"title": "loss", "tickCount": 5},
         "scale": {"type": "log", "nice": True} if logarithmic else {"zero": False, "nice": True}}
    return chart("losses", 240, layer=[
        {
            "mark": {"type": "line", "strokeWidth": 2, "point": {"size": 26}},
            "encoding": {"x": x, "y": y, **distinguished(names), "tooltip": [
                {"field": "row"}, {"field": "step"}, {"field": "loss", "format": ".9~g"}]},
        },
        {
            "data": {"name": "divergences"},
            "mark": {"type": "rule", "aria": False, "stroke": PICKED, "strokeWidth": 2, "strokeDash": [5, 3]},
            "encoding": {"x": {"field": "step", "type": "quantitative"},
                         "tooltip": [{"field": "row"}, {"field": "step", "title": "bits first differ in step"}]},
        },
    ])


def loss_curves(rows: Sequence[RowDocument]) -> dict[str, list[float | None]]:
    """Each curve once, under the names of all rows that have it."""
    found: dict[tuple[float | None, ...], list[str]] = {}
    for row in rows:
        found.setdefault(tuple(row.losses), []).append(row.name)
    return {", ".join(names): list(curve) for curve, names in found.items()}


def loss_values(rows: Sequence[RowDocument]) -> PictureValues:
    """The curves, step by step; losses that are not finite are left out."""
    return [
        {"row": names, "step": step, "loss": loss}
        for names, curve in loss_curves(rows).items() for step, loss in enumerate(curve, 1) if loss is not None
    ]


def beside_device(drawn: Spec, axis: str, device_bytes: int) -> Spec:
    """A picture of bytes with a line at the memory of the device across the axis of bytes."""
    held = {key: drawn[key] for key in ("mark", "encoding")}
    at = {"field": "bytes", "type": "quantitative"}
    here = {"values": [{"bytes": device_bytes, "of": "device memory"}]}
    line = {
        "data": here,
        "mark": {"type": "rule", "aria": False, "stroke": DEVICE, "strokeWidth": 2, "strokeDash": [6, 3]},
        "encoding": {axis: at, "tooltip": [{"field": "of"}, {"field": "bytes", "format": ",.6~g"}]},
    }
    other, align, baseline, dx = ("y", "right", "top", -4) if axis == "x" else ("x", "left", "bottom", 4)
    label = {
        "data": here,
        "mark": {"type": "text", "aria": False, "align": align, "dx": dx, "baseline": baseline, "fontSize": 11},
        "encoding": {axis: at, other: {"value": 2}, "text": {"field": "of"}},
    }
    return {key: value for key, value in drawn.items() if key not in held} | {"layer": [held, line, label]}


def above(upper: Spec, lower: Spec, title: str) -> Spec:
    """Two pictures with their data as one, with one visible time."""
    whole = {"$schema", "config", "background", "datasets", "params"}
    params = {param["name"]: param for spec in (upper, lower) for param in spec["params"]}
    return {key: upper[key] for key in whole} | headed(title) | {
        "params": list(params.values()),
        "datasets": upper["datasets"] | lower["datasets"],
        "vconcat": [{key: each for key, each in spec.items() if key not in whole} for spec in (upper, lower)],
        "resolve": {"scale": {"color": "independent", "stroke": "independent"}},
    }


def headed(title: str) -> Spec:
    return {"title": {"text": title, "anchor": "start", "font": FONT, "fontSize": 14}}


def with_values(spec: Spec, data: dict[str, PictureValues], width: int = 860) -> Spec:
    """The specification with its data inside and a fixed width: a picture for a file."""
    found = spec | {"datasets": data, "background": "white"}
    if spec["width"] == "container":
        found |= {"width": width}
        found["params"] = [
            {"name": "room", "value": width} if param["name"] == "room" else param for param in spec.get("params", [])]
        del found["autosize"]
    return found
