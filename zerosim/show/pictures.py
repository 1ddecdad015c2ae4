"""The pictures of runs and plans, as specifications for Vega-Lite with their data inside; times in ms.

Zooming, panning and the highlight of a message are declared here: the same specification is a picture for a file and an
interactive one on a page. A field of the data whose name begins with _ is for drawing only; `numbers` has all others.
Only this module imports vl-convert, which draws without a browser and without a network.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import isfinite
from typing import Any

from zerosim.core.allocation import MODEL_STATES
from zerosim.core.errors import UsageError
from zerosim.core.words import by_key, plural, printable
from zerosim.observe.ledger import MEMORY_KINDS
from zerosim.observe.trace import Span
from zerosim.show.columns import KIND_NAMES
from zerosim.show.document import RowDocument
from zerosim.show.trace_events import message_ends, thread_of

Spec = dict[str, Any]
"""A specification as Vega-Lite reads it: https://vega.github.io/vega-lite/docs/."""

DRAWN_RANKS = 8
"""The ranks of a run whose spans are drawn, from rank 0 on."""
ACTIVITIES = {
    "forward": "#8ec1ee", "backward": "#2f6fb5", "recompute": "#5a54c4", "update": "#9b59b6",
    "gather": "#1f9e73", "reduce": "#e0662f", "other": "#4fb3b3", "wait": "#a9b0b8",
}
"""The colour of each activity; distinguishable without red-green vision."""
KINDS = dict(zip(KIND_NAMES.values(), ("#d9b53b", "#b0305c", "#8a6a52", "#e6a5c3", "#8c9a4b"), strict=True))
BY_NAME = {
    "loss": "forward", "all_gather": "gather", "broadcast": "gather", "scatter": "gather", "reduce_scatter": "reduce",
    "all_reduce": "reduce", "gather_norms": "reduce",
}
LANES = {"computation": "computes", "waiting": "computes", "communication out": "sends", "communication in": "receives",
         "collectives": "communicates"}
PICKED, DEVICE, DASHED = "#d0006f", "#2f7fd0", "; dashed: a device"
CONFIG: Spec = {
    "background": None, "font": "system-ui, sans-serif", "view": {"stroke": None},
    "legend": {"orient": "top", "title": None, "columns": {"expr": "containerSize()[0] < 600 ? 2 : 4"}},
    "range": {"category": ["#45596b", "#8a9a5b", "#b08d00", "#7f7f7f", "#3b3f45", "#a9b7c4"]},
    "axis": {"gridColor": "#8883", "domainColor": "#888", "tickColor": "#888", "labelLimit": 260}}
WIDE: Spec = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
NAMES: Spec = {"minExtent": 165}
"""Room for the names of lanes, so that pictures of one step are aligned."""
BYTES: Spec = {"field": "bytes", "type": "quantitative", "stack": "zero", "axis": {"format": "~s"}}
ZOOM: Spec = {"name": "time", "bind": "scales", "select": {
    "type": "interval", "encodings": ["x"], "zoom": "wheel![event.ctrlKey || event.metaKey]"}}
"""Dragging pans, and the wheel zooms with Ctrl."""


@dataclass(frozen=True)
class Axis:
    """The axis of the pictures of a step, on which all rows end alike: milliseconds or, where these mean little,
    the order of events.
    """

    rows: Sequence[RowDocument]
    ordered: bool = False

    @cached_property
    def until(self) -> float:
        """The end of the longest step."""
        return max((max(self.places(row).values()) for row in self.rows), default=0) + self.ordered

    @property
    def field(self) -> str:
        return "event" if self.ordered else "ms"

    @property
    def spec(self) -> Spec:
        return {"field": self.field, "type": "quantitative", "scale": {"domain": [0, self.until], "nice": False},
                "title": "events in order" if self.ordered else "ms since the step began"}

    def places(self, row: RowDocument) -> dict[int, float]:
        """The place of each time, in nanoseconds since the row's step began, at which something begins or ends on the
        drawn ranks, or memory changes."""
        times = {at["ns"] for at in row.curve} | {row.step_ns} | {
            ns - row.first_ns for step in row.traced if step.rank < DRAWN_RANKS for span in step.spans
            for _, *both in parts(span) for ns in both}
        return {ns: float(number) if self.ordered else ns / 1e6 for number, ns in enumerate(sorted(times))}


def activity(what: str) -> str:
    """The activity of a span by its name, which may begin with a direction; `other` for a user's own names.

    >>> activity("loss"), activity("broadcast"), activity("tensor_all_reduce"), activity("compress")
    ('forward', 'gather', 'reduce', 'other')
    """
    names = [BY_NAME.get(name, name) for name in (what, what.partition("_")[2])]
    return next((name for name in names if name in ACTIVITIES), "other")


def colour(field: str, colours: Mapping[str, str]) -> Spec:
    return {"field": field, "type": "nominal", "scale": {"domain": list(colours), "range": list(colours.values())}}


KIND = colour("kind", KINDS)


def layer(values: Sequence[Spec], mark: Any = None, **encoding: Spec) -> Spec:
    """Marks for these values, which show their fields to who points at them."""
    shown = [{"field": key, "type": "nominal"} for key in (values[0] if values else {}) if not key.startswith("_")]
    return {"data": {"values": values}, "encoding": encoding | {"tooltip": shown}} | ({"mark": mark} if mark else {})


def bars(title: str, values: Sequence[Spec], parts: Spec, device_bytes: int = 0) -> Spec:
    """A bar of bytes for each row, in parts."""
    return {**WIDE, "height": 26 * len({value["row"] for value in values}), "layer": [
        layer(values, "bar", y={"field": "row", "type": "nominal", "sort": None, "title": None},
              x=BYTES | {"title": f"bytes {title}{DASHED * bool(device_bytes)}"}, color=parts,
              order={"field": "_place"}),
        *device_line("x", device_bytes)]}


def kept(rows: Sequence[RowDocument], device_bytes: int = 0, *, peak: bool = False) -> Spec:
    """The memory that a rank of each row keeps between steps, by kind: the picture of the ZeRO paper's Figure 1; or
    that at the `peak`.
    """
    held = {row.name: max(row.curve, key=lambda at: sum(at.get(kind, 0) for kind in MEMORY_KINDS)) if peak else
            row.fullest.resting_bytes for row in rows}
    kinds = MEMORY_KINDS if peak else MODEL_STATES
    return bars("held at the peak" if peak else "kept by a rank between steps", [
        {"row": name, "kind": KIND_NAMES[kind], "bytes": of.get(kind, 0), "_place": place}
        for name, of in held.items() for place, kind in enumerate(kinds)],
        KIND | {"legend": {"values": [KIND_NAMES[kind] for kind in kinds]}}, device_bytes)


def sent(rows: Sequence[RowDocument]) -> Spec:
    """The bytes that a rank of each row sends in a step, by collective."""
    names = dict.fromkeys(name for row in rows for rank in row.traffic for name in rank.by_collective)
    return bars("sent by a rank in a step", [
        {"row": row.name, "collective": name, "bytes": sum(row.per_step("sent_bytes", name)) / row.ranks,
         "_place": place} for row in rows for place, name in enumerate(names)],
        {**colour("collective", shades(names)), "sort": None})


def shades(names: Collection[str]) -> dict[str, str]:
    """The colours of collectives: that of its activity, paler for the second of one activity.

    >>> shades(["all_gather", "reduce_scatter", "gather_norms"])
    {'all_gather': '#1f9e73', 'reduce_scatter': '#e0662f', 'gather_norms': '#e0662f88'}
    """
    doing = [*map(activity, names)]
    return {name: ACTIVITIES[what] + ("", "88", "44")[min(doing[:number].count(what), 2)]
            for number, (name, what) in enumerate(zip(names, doing, strict=True))}


def device_line(axis: str, device_bytes: int) -> list[Spec]:
    """The layer with a line at the memory of the device, if there is one."""
    line = {"data": {"values": [{}]}, "encoding": {axis: {"datum": device_bytes}},
            "mark": {"type": "rule", "stroke": DEVICE, "strokeWidth": 2, "strokeDash": [6, 3]}}
    return [line] if device_bytes else []


def losses(rows: Sequence[RowDocument]) -> Spec:
    """The loss of every step, a line for each row or for rows that have the same, and the first differing steps."""
    curves = by_key((str(row.losses), row) for row in rows)
    values = [{"row": ", ".join(row.name for row in alike), "step": step, "loss": loss} for alike in curves.values()
              for step, loss in enumerate(alike[0].losses, 1) if isfinite(loss)]
    apart = [{"row": row.name, "step": row.first_divergence.step} for row in rows if row.first_divergence]
    x = {"field": "step", "type": "quantitative", "axis": {"tickMinStep": 1}}
    return {**WIDE, "height": 240, "layer": [
        layer(values, {"type": "line", "point": True}, x=x, color={"field": "row", "type": "nominal"},
              y={"field": "loss", "type": "quantitative", "scale": {"zero": False}}),
        *[layer(apart, {"type": "rule", "stroke": PICKED, "strokeDash": [5, 3]}, x=x)] * bool(apart)]}


def partners(row: RowDocument) -> Spec:
    """The bytes between every two ranks in the traced step."""
    pairs: Counter[tuple[int, int | None]] = Counter()
    for step in row.traced:
        for span in step.spans:
            pairs[span.rank, span.peer] += span.bytes * (span.lane == "communication out")
    values = [{"from rank": rank, "to rank": peer, "bytes": count} for (rank, peer), count in pairs.items() if count]
    return {"title": row.name, "width": {"step": 40}, "height": {"step": 40}, "layer": [
        {"mark": "rect", "encoding": {"opacity": {
            "field": "bytes", "type": "quantitative", "legend": None, "scale": {"domainMin": 0}}}},
        {"mark": "text", "encoding": {"text": {"field": "bytes", "format": ".3~s"}}}], **layer(
        values, x={"field": "to rank", "type": "ordinal", "axis": {"orient": "top", "labelAngle": 0}},
        y={"field": "from rank", "type": "ordinal"})}


def lane(span: Span) -> str:
    """The lane in which a span is drawn; copies beside the step, and other threads, have lanes of their own."""
    if span.lane == "offload":
        return "offloads" if span.channel > 1 else "computes"
    return f"{LANES[span.lane]}{' beside' * (span.channel > 1)}"


def timeline(row: RowDocument, along: Axis) -> Spec:
    """A step: for each of the drawn ranks what it computes, sends and receives; its collectives if no messages
    are known.

    Pointing at a message shows both of its ends.
    """
    spans = [span for step in row.traced if step.rank < DRAWN_RANKS for span in step.spans]
    if any(span.lane == "communication out" for span in spans):
        spans = [span for span in spans if span.lane != "collectives"]
    spans.sort(key=lambda span: (span.rank, thread_of(span.lane, span.channel), span.begin_ns))
    ends = {end: number for number, both in enumerate(message_ends(
        (span.lane, span.rank, span.peer, span.channel) for span in spans)) for end in both}
    place = along.places(row)
    values = [{
        "lane": f"rank {span.rank} {lane(span)}", "activity": doing, "what": span.what, "unit": span.unit,
        along.field: place[begin - row.first_ns], "until": place[end - row.first_ns], "bytes": span.bytes,
        "peer": span.peer, "_message": ends.get(number, -1 - number)}
        for number, span in enumerate(spans) for doing, begin, end in parts(span)]
    done = {value["activity"] for value in values}
    return {
        **WIDE, "title": titled(row), "height": 16 * len({value["lane"] for value in values}),
        "params": [ZOOM, {"name": "pointed", "select": {
            "type": "point", "fields": ["_message"], "on": "pointerover", "clear": "pointerout"}}],
        **layer(values, {"type": "bar", "clip": True, "strokeWidth": 2}, x=along.spec, x2={"field": "until"},
                y={"field": "lane", "type": "nominal", "sort": None, "title": None, "axis": NAMES},
                color=colour("activity", {name: hue for name, hue in ACTIVITIES.items() if name in done}),
                stroke={"condition": {"param": "pointed", "empty": False, "value": PICKED}, "value": None})}


def titled(row: RowDocument) -> Spec:
    about = f"{plural(len(row.hosts), 'rank')}, {row.model['title']}, {row.model['parameters']:,} parameters"
    return {"text": [row.name, about], "anchor": "start", "offset": 6}


def parts(span: Span) -> Iterator[tuple[str, int, int]]:
    """The wait of a span, if it waits, and the rest."""
    came = span.begin_ns + span.waited_ns
    if span.waited_ns:
        yield "wait", span.begin_ns, came
    yield activity(span.what), came, span.end_ns


def memory(row: RowDocument, along: Axis, device_bytes: int = 0) -> Spec:
    """The memory of the fullest rank in a step, stacked by kind."""
    curve = [*row.curve, *({**at, "ns": row.step_ns} for at in row.curve[-1:] if at["ns"] < row.step_ns)]
    place_of = along.places(row)
    values = [{along.field: place_of[at["ns"]], "kind": KIND_NAMES[kind], "bytes": at.get(kind, 0), "_place": place}
              for at in curve for place, kind in enumerate(MEMORY_KINDS)]
    title = "bytes" + DASHED * bool(device_bytes)
    return {**WIDE, "height": 130, "layer": [
        {"params": [ZOOM], **layer(
            values, {"type": "area", "interpolate": "step-after", "clip": True}, x=along.spec, color=KIND,
            y=BYTES | {"axis": NAMES | {"format": "~s"}, "title": title}, order={"field": "_place"})},
        *device_line("y", device_bytes)]}


def files(rows: Sequence[RowDocument], device_bytes: int = 0) -> dict[str, Spec]:
    """Every picture with data, by the name of its file; rows are numbered from 1."""
    specs = {"kept": kept(rows, device_bytes), "sent": sent(rows), "losses": losses(rows)}
    along = Axis(rows)
    for number, row in enumerate(rows, 1):
        specs[f"memory-{number}"] = memory(row, along, device_bytes) | {"title": titled(row)}
        if row.traced:
            specs[f"step-{number}"] = {
                "vconcat": [timeline(row, along), memory(row, along, device_bytes)],
                "resolve": {"scale": {"color": "independent", "stroke": "independent"}}}
        if row.traced and row.ranks > 1:
            specs[f"partners-{number}"] = partners(row)
    return {name: spec for name, spec in specs.items() if numbers(spec)}


def numbers(spec: Spec) -> list[dict[str, Any]]:
    """The data of a picture as tables, each a dict of `heads` and `rows`: one for each view and layer."""
    values = spec.get("data", {"values": []})["values"]
    heads = [key for key in values[0] if not key.startswith("_")] if values else []
    rows = [["" if value[key] is None else value[key] for key in heads] for value in values]
    return [*[{"heads": heads, "rows": rows}] * bool(heads), *(
        table for among in ("layer", "vconcat", "concat") for view in spec.get(among, []) for table in numbers(view))]


def converter() -> Any:
    """The module vl_convert; `UsageError` with the command that installs it if it, or Jinja2, is missing."""
    try:
        import jinja2  # noqa: F401, PLC0415 - of the pages
        import vl_convert  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(f"pages and pictures need {error.name}, which is not installed: pip install jinja2 "
                         "vl-convert-python, or zerosim with its extra [report]") from error
    return vl_convert


@cache
def script() -> str:
    """The scripts of Vega-Lite, which set `vegaEmbed`."""
    return f"(() => {{{converter().javascript_bundle('window.vegaEmbed = vegaEmbed;')}}})();"


def drawable(spec: Any, width: int = 0) -> Any:
    """A specification without characters that cannot be drawn (a NUL kills the converter, and Python with it); with a
    width in pixels, pictures as wide as their container are that wide.
    """
    if isinstance(spec, dict):
        whole = {key: drawable(value, width) for key, value in spec.items()}
        return whole | {"width": width} if width and whole.get("width") == "container" else whole
    if isinstance(spec, list):
        return [drawable(item, width) for item in spec]
    return printable(spec) if isinstance(spec, str) else spec


def interactive(spec: Spec) -> Spec:
    return {"$schema": "https://vega.github.io/schema/vega-lite/v6.json", "config": CONFIG, **drawable(spec)}


def svg(spec: Spec) -> str:
    """The picture as a file, on white; the names of its clips count from 0, whatever was drawn before."""
    whole = drawable(interactive(spec), width=860) | {"background": "white", "config": CONFIG | {"aria": False}}
    picture: str = converter().vegalite_to_svg(whole)
    names: dict[str, str] = {}
    clip = re.compile(r'(?<=id="clip)\d+|(?<=url\(#clip)\d+')
    return clip.sub(lambda number: names.setdefault(number[0], str(len(names))), picture)


def pixels(picture: str) -> bytes:
    """An SVG as a PNG."""
    image: bytes = converter().svg_to_png(picture, scale=2.0)
    return image
