"""Pictures of a step: the computation and the messages of each rank over time, as specifications for Vega-Lite."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from zerosim.show.activities import ACTIVITIES, PALER, TEXTURES, WAITING, activity, edge, is_paler
from zerosim.show.page.pictures import GAP, LANE, PICKED, SIDE, TALL, PictureValues, chart, filled, time_axis, window
from zerosim.show.page.vega import Spec
from zerosim.show.run_document import NO_UNIT, RowDocument

RECT: Spec = {"type": "rect", "clip": True, "aria": False}
NUMBERED: Spec = {"tooltip": {"field": "number", "type": "quantitative"}}
AFTER_WAITING: Spec = {"field": "came_ns"}


def lane_tops(lanes: int) -> list[int]:
    """The top of each lane of a rank in pixels, and last the rank's bottom.

    >>> lane_tops(3)
    [0, 19, 31, 42]
    """
    return [0, *(TALL + 1 + (LANE + 1) * lane for lane in range(lanes - 1)), TALL + (LANE + 1) * (lanes - 1)]


def rank_height(lanes: int) -> int:
    return lane_tops(lanes)[-1] + GAP


def timeline(activities: Sequence[str], other: str, ranks: int, lanes: int, until: int) -> Spec:
    """A step: lanes for each rank, colour and texture = activity, shade = layer; data `spans` and `links`.

    The parameters `picked` and `current` number the selected message and span; a line joins the two ends of that
    message.
    """
    tops, height = lane_tops(lanes), rank_height(lanes)

    def pixels(rank: str, lane: str, share: float = 0) -> str:
        """The vertical position of a lane of a rank, at this share of its height."""
        below = f"{share} * ({lane} == 0 ? {TALL} : {LANE})"
        return f"{rank} * {height} + {tops}[{lane}] + {below}"

    box = {
        "x": {"field": "begin_ns", **time_axis("ms since the step began")}, "x2": {"field": "end_ns"},
        "y": rank_axis(ranks, tops), "y2": {"field": "bottom"},
    }
    named: Spec = {"legend": {"labelExpr": f"datum.label == 'other' ? {json.dumps(other)} : datum.label"}}
    hue = filled("activity", activities, [ACTIVITIES[each] for each in activities],
                 **(named if other != "other" else {}))
    return chart(
        "spans", ranks * height + 3,
        params=[*window(until), {"name": "picked", "value": -1}, {"name": "current", "value": -1},
                {"name": "room", "expr": "width"}],
        transform=[
            {"calculate": pixels("datum.rank", "datum.lane"), "as": "top"},
            {"calculate": f"datum.kind == 'collectives' ? datum.top + {2 * LANE + 1} : "
                          + pixels("datum.rank", "datum.lane", 1), "as": "bottom"},
            {"calculate": "datum.begin_ns + datum.waited_ns", "as": "came_ns"},
        ],
        layer=[
            *span_layers(box, hue),
            texture_layer(box, [each for each in activities if each in TEXTURES]),
            label_layer(box, pixels("datum.rank", "datum.lane", 0.5)),
            *picked_layers(box, pixels("datum.source", "datum.out", 0.5), pixels("datum.to", "datum.in", 0.5)),
        ])


LANE_WORDS = ("rank {} computes", "sends", "receives", "sends beside", "receives beside", "offloads")
"""The labels of the lanes of a rank, from above."""


def rank_axis(ranks: int, tops: Sequence[int]) -> Spec:
    """The vertical axis in pixels, with the name of each lane."""
    height = tops[-1] + GAP
    middles = [(low + high) / 2 for low, high in pairwise(tops)]
    names = {rank * height + middle: words.format(rank)
             for rank in range(ranks) for middle, words in zip(middles, LANE_WORDS, strict=False)}
    return {
        "field": "top", "type": "quantitative",
        "scale": {"domain": [-3, ranks * height], "reverse": True, "nice": False, "zero": False},
        "axis": {"title": None, "grid": False, "values": list(names),
                 "labelExpr": f"{json.dumps(list(names.values()))}[indexof({list(names)}, datum.value)]",
                 "labelFontSize": {"condition": {"test": f"datum.value % {height} < {TALL}", "value": 11}, "value": 9},
                 "labelOverlap": False, "ticks": False, "domain": False, "minExtent": SIDE, "maxExtent": SIDE},
    }


def span_layers(box: Spec, hue: Spec) -> list[Spec]:
    """The layers of spans: pale collectives behind their messages; each span's waiting, pale, and the rest in its
    colour."""
    shades = [{"test": "datum.activity == 'wait'", "value": WAITING}, {"test": "datum.paler", "value": PALER}]
    return [
        {
            "name": "collectives",
            "transform": [{"filter": "datum.kind == 'collectives'"}],
            "mark": RECT | {"fillOpacity": 0.16, "strokeWidth": 1},
            "encoding": box | hue | NUMBERED,
        },
        {
            "name": "waits",
            "transform": [{"filter": "datum.waited_ns > 0"}],
            "mark": RECT | {"fillOpacity": WAITING, "stroke": edge(ACTIVITIES["wait"]), "strokeWidth": 1},
            "encoding": box | NUMBERED | {"x2": AFTER_WAITING, "fill": {"value": ACTIVITIES["wait"]}},
        },
        {
            "name": "spans",
            "transform": [{"filter": "datum.kind != 'collectives'"}],
            "mark": RECT | {"cursor": "pointer", "strokeWidth": 1},
            "encoding": box | hue | NUMBERED | {
                "x": box["x"] | AFTER_WAITING, "fillOpacity": {"condition": shades, "value": 1}},
        },
    ]


def texture_layer(box: Spec, textures: Sequence[str]) -> Spec:
    """The texture of a span's activity, over its colour."""
    return {
        "name": "textures",
        "transform": [{"filter": {
            "and": [{"field": "activity", "oneOf": list(textures)}, "datum.kind != 'collectives'"]}}],
        "mark": RECT,
        "encoding": box | {
            "x": box["x"] | AFTER_WAITING,
            "fill": {"field": "activity", "type": "nominal", "legend": None, "scale": {
                "domain": list(textures), "range": [f"url(#texture-{each})" for each in textures]}}},
    }


def label_layer(box: Spec, middle: str) -> Spec:
    """The label of a computation or of a collective, if there is room for it."""
    width = "(datum.end_ns - datum.begin_ns) / (end - begin) * room"
    return {
        "name": "labels",
        "transform": [{"filter": "datum.label != ''"}, {"calculate": middle, "as": "middle"}],
        "mark": {"type": "text", "clip": True, "aria": False, "align": "left", "dx": 3, "fontSize": 10},
        "encoding": {
            "x": box["x"],
            "y": box["y"] | {"field": "middle"},
            "text": {"field": "label"},
            "opacity": {"condition": {"test": f"{width} > 6.5 * length(datum.label) + 4", "value": 1}, "value": 0},
        },
    }


def picked_layers(box: Spec, source: str, to: str) -> list[Spec]:
    """A frame around the selected span, and around both spans of a message, with a line between them."""
    return [
        {
            "name": "chosen",
            "transform": [{"filter": "datum.number == current || (picked >= 0 && datum.link == picked)"}],
            "mark": RECT | {"fillOpacity": 0, "stroke": PICKED, "strokeWidth": 2.5},
            "encoding": box,
        },
        {
            "name": "links",
            "data": {"name": "links"},
            "transform": [
                {"filter": "datum.link == picked"},
                {"calculate": source, "as": "from"},
                {"calculate": to, "as": "towards"},
            ],
            "mark": {"type": "rule", "clip": True, "aria": False, "stroke": PICKED, "strokeWidth": 2.5},
            "encoding": box | {"y": box["y"] | {"field": "from"}, "y2": {"field": "towards"}},
        },
    ]


SPAN = ("rank", "lane", "kind", "channel", "what", "unit", "begin_ns", "end_ns", "bytes", "peer", "waited_ns")


def span_values(row: RowDocument) -> PictureValues:
    """The spans of a row, numbered; `link` is the number of a span's message, or −1."""
    link_of = {end: number for number, ends in enumerate(row.links) for end in ends}
    units = layers(row)
    return [
        {key: span[key] for key in SPAN}
        | {"number": number, "link": link_of.get(number, -1), "label": label(span), "activity": activity(span["what"]),
           "paler": is_paler(span["unit"], units)}
        for number, span in enumerate(row.spans)
    ]


def layers(row: RowDocument) -> list[str]:
    """The units of a row, in the order of their numbers."""
    return sorted({span["unit"] for span in row.spans} - {NO_UNIT}, key=lambda unit: (len(unit), unit))


def label(span: dict[str, Any]) -> str:
    """A span's label in a few characters; empty for a message, whose collective has one.

    >>> label({"kind": "computation", "what": "backward", "unit": "layers.1"})
    'b 1'
    >>> label({"kind": "collectives", "what": "all_gather", "unit": "layers.1"})
    '1'
    """
    unit = span["unit"].removeprefix("layers.").removeprefix(NO_UNIT)
    letter = span["what"][:1] if span["kind"] == "computation" else ""
    return f"{letter} {unit}".strip() if span["kind"] in ("computation", "collectives") else ""


def link_values(row: RowDocument) -> PictureValues:
    """The messages of a row, from sender to receiver."""
    return [
        {"link": number, "source": row.spans[left]["rank"], "to": row.spans[came]["rank"],
         "out": row.spans[left]["lane"], "in": row.spans[came]["lane"],
         "begin_ns": row.spans[left]["begin_ns"], "end_ns": row.spans[came]["end_ns"]}
        for number, (left, came) in enumerate(row.links)
    ]
