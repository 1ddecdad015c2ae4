"""The pictures of runs and plans, as specifications for Vega-Lite with their data inside; bytes in kB, times in ms.

Zooming, panning and the highlight of a message are declared here: the same specification is a picture for a file and an
interactive one on a page. Only this module imports vl-convert, which draws without a browser and without a network.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from zerosim.core.errors import UsageError
from zerosim.core.words import printable
from zerosim.observe.memory import MEMORY_KINDS
from zerosim.show.run_document import KIND_NAMES, RowDocument

Spec = dict[str, Any]
"""A specification as Vega-Lite reads it: https://vega.github.io/vega-lite/docs/."""

ACTIVITIES = {
    "forward": "#8ec1ee", "backward": "#2f6fb5", "recompute": "#5a54c4", "update": "#9b59b6",
    "gather": "#1f9e73", "reduce": "#e0662f", "other": "#4fb3b3", "wait": "#c5cad0",
}
"""The colour of each activity; distinguishable without red-green vision."""
KINDS = dict(zip(KIND_NAMES.values(), ("#d9b53b", "#b0305c", "#6b4f3a", "#e6a5c3", "#8c9a4b"), strict=True))
BY_NAME = {
    "loss": "forward", "all_gather": "gather", "broadcast": "gather", "scatter": "gather", "reduce_scatter": "reduce",
    "all_reduce": "reduce", "gather_norms": "reduce",
}
LANES = ("computes", "sends", "receives", "sends beside", "receives beside", "offloads")
PICKED, DEVICE = "#d0006f", "#2f7fd0"
CONFIG: Spec = {"background": None, "font": "system-ui, sans-serif", "view": {"stroke": None},
                "legend": {"orient": "top", "title": None}}


def activity(what: str) -> str:
    """The activity of a span by its name, which may begin with a direction; `other` for a user's own names.

    >>> activity("loss"), activity("broadcast"), activity("tensor_all_reduce"), activity("compress")
    ('forward', 'gather', 'reduce', 'other')
    """
    found = [BY_NAME.get(each, each) for each in (what, what.partition("_")[2])]
    return next((each for each in found if each in ACTIVITIES), "other")


def colour(field: str, colours: Mapping[str, str]) -> Spec:
    return {"field": field, "type": "nominal", "scale": {"domain": list(colours), "range": list(colours.values())}}


def bars(title: str, field: str, values: Sequence[Spec], colours: Mapping[str, str], names: Sequence[str]) -> Spec:
    """A bar for each row, in parts by `field`."""
    return {
        "data": {"values": values}, "width": "container", "height": {"step": 26},
        "mark": {"type": "bar", "tooltip": True},
        "encoding": {
            "y": {"field": "row", "type": "nominal", "sort": list(names), "title": None},
            "x": {"field": "kB", "type": "quantitative", "title": title},
            "color": colour(field, colours), "order": {"field": "place"}}}


def by_kind(title: str, kinds: Sequence[str], rows: Sequence[tuple[str, Mapping[str, int]]]) -> Spec:
    values = [{"row": name, "kind": KIND_NAMES[kind], "place": place, "kB": held.get(kind, 0) / 1e3}
              for name, held in rows for place, kind in enumerate(kinds)]
    return bars(title, "kind", values, {KIND_NAMES[kind]: KINDS[KIND_NAMES[kind]] for kind in kinds},
                [name for name, _ in rows])


def kept(rows: Sequence[RowDocument], device_bytes: int = 0) -> Spec:
    """The memory that a rank of each row keeps between steps, by kind: the picture of the ZeRO paper's Figure 1."""
    return beside_device(by_kind("kB kept by a rank between steps", MEMORY_KINDS[:3], [
        (row.name, row.fullest["resting_bytes"]) for row in rows]), "x", device_bytes)


def peaks(rows: Sequence[RowDocument], device_bytes: int) -> Spec:
    """The memory of a rank of each row at the peak, by kind."""
    fullest = [(row.name, max(row.curve, key=lambda at: sum(at.get(kind, 0) for kind in MEMORY_KINDS))) for row in rows]
    return beside_device(by_kind("kB held at the peak", MEMORY_KINDS, fullest), "x", device_bytes)


def sent(rows: Sequence[RowDocument]) -> Spec:
    """The bytes that a rank of each row sends in a step, by collective."""
    names = list(dict.fromkeys(name for row in rows for rank in row.found["traffic"] for name in rank["by_collective"]))
    palette = ("#e0662f", "#1f9e73", "#f0a04b", "#7fcfae", "#4fb3b3", "#8f83d8", "#b9a62a", "#cf6fae")
    values = [{"row": row.name, "collective": name, "kB": sum(row.per_step("sent_bytes", name)) / row.ranks / 1e3}
              for row in rows for name in names]
    return bars("kB sent by a rank in a step", "collective", values,
                {name: palette[at % len(palette)] for at, name in enumerate(names)}, [row.name for row in rows])


def losses(rows: Sequence[RowDocument]) -> Spec:
    """The loss of every step, a line for each row or for rows that have the same."""
    curves: dict[tuple[float | None, ...], list[str]] = {}
    for row in rows:
        curves.setdefault(tuple(row.losses), []).append(row.name)
    values = [{"row": ", ".join(names), "step": step, "loss": loss}
              for curve, names in curves.items() for step, loss in enumerate(curve, 1) if loss is not None]
    apart = [{"row": row.name, "step": row.found["first_divergence"]["step"]} for row in rows
             if row.found["first_divergence"]]
    x = {"field": "step", "type": "quantitative"}
    return {"width": "container", "height": 240, "layer": [
        {"data": {"values": values}, "mark": {"type": "line", "point": True, "tooltip": True}, "encoding": {
            "x": x, "y": {"field": "loss", "type": "quantitative", "scale": {"zero": False}},
            "color": {"field": "row", "type": "nominal"}}},
        {"data": {"values": apart}, "mark": {"type": "rule", "stroke": PICKED, "strokeDash": [5, 3], "tooltip": True},
         "encoding": {"x": x}}]}


def partners(row: RowDocument) -> Spec:
    """The bytes between every two ranks in the traced step."""
    values = [{"from rank": span["rank"], "to rank": span["peer"], "kB": span["bytes"] / 1e3}
              for step in row.traced for span in step["spans"] if span["lane"] == "communication out"]
    return {
        "data": {"values": values}, "title": row.name, "width": {"step": 40}, "height": {"step": 40},
        "encoding": {"x": {"field": "to rank", "type": "ordinal", "axis": {"orient": "top", "labelAngle": 0}},
                     "y": {"field": "from rank", "type": "ordinal"}},
        "layer": [
            {"mark": {"type": "rect", "tooltip": True}, "encoding": {"opacity": {
                "field": "kB", "aggregate": "sum", "type": "quantitative", "legend": None, "scale": {"domainMin": 0}}}},
            {"mark": "text", "encoding": {"text": {"field": "kB", "aggregate": "sum", "format": ".3~s"}}}]}


TIME: Spec = {"type": "quantitative", "scale": {"nice": False, "zero": False}, "title": "ms since the step began"}


def timeline(row: RowDocument) -> Spec:
    """A step: for each rank what it computes, sends and receives. Pointing at a message shows both of its ends."""
    spans, ends = row.spans, {end: number for number, both in enumerate(row.links) for end in both}
    lanes = list(dict.fromkeys(f"rank {span['rank']} {LANES[span['lane']]}" for span in spans))
    values = [{
        "lane": f"rank {span['rank']} {LANES[span['lane']]}", "activity": doing, "what": span["what"],
        "unit": span["unit"], "bytes": span["bytes"], "peer": span["peer"], "message": ends.get(number, -1 - number),
        "begin": begin / 1e6, "end": end / 1e6}
        for number, span in enumerate(spans) if span["kind"] != "collectives"
        for doing, begin, end in parts(span)]
    return {
        "data": {"values": values}, "title": row.heading, "width": "container", "height": {"step": 16},
        "params": [{"name": "pointed", "select": {"type": "point", "fields": ["message"], "on": "pointerover"}}],
        "mark": {"type": "bar", "tooltip": {"content": "data"}, "clip": True, "strokeWidth": 2},
        "encoding": {
            "x": {"field": "begin", **TIME}, "x2": {"field": "end"},
            "y": {"field": "lane", "type": "nominal", "sort": lanes, "title": None},
            "color": colour("activity", {name: hue for name, hue in ACTIVITIES.items()
                                         if name in {value["activity"] for value in values}}),
            "stroke": {"condition": {"param": "pointed", "empty": False, "value": PICKED}, "value": None}}}


def parts(span: Mapping[str, Any]) -> Iterable[tuple[str, int, int]]:
    """The wait of a span, if it waits, and the rest."""
    came = span["begin_ns"] + span["waited_ns"]
    return [part for part in (("wait", span["begin_ns"], came), (activity(span["what"]), came, span["end_ns"]))
            if part[1] < part[2] or part[0] != "wait"]


def memory(row: RowDocument, device_bytes: int = 0) -> Spec:
    """The memory of the fullest rank in a step, stacked by kind."""
    curve = [*row.curve, {**row.curve[-1], "ns": row.end_ns}] if row.curve else []
    values = [{"ms": at["ns"] / 1e6, "kind": KIND_NAMES[kind], "place": place, "kB": at.get(kind, 0) / 1e3}
              for at in curve for place, kind in enumerate(MEMORY_KINDS)]
    return beside_device({
        "data": {"values": values}, "width": "container", "height": 130,
        "mark": {"type": "area", "interpolate": "step-after", "clip": True, "tooltip": True},
        "encoding": {
            "x": {"field": "ms", **TIME}, "y": {"field": "kB", "type": "quantitative", "stack": "zero"},
            "color": colour("kind", KINDS), "order": {"field": "place"}}}, "y", device_bytes)


def beside_device(drawn: Spec, axis: str, device_bytes: int) -> Spec:
    """A picture of bytes with a line at the memory of the device, if there is one."""
    if not device_bytes:
        return drawn
    inner = {key: drawn[key] for key in ("data", "mark", "encoding")}
    line = {"data": {"values": [{"device memory, kB": device_bytes / 1e3}]}, "mark": {
        "type": "rule", "stroke": DEVICE, "strokeWidth": 2, "strokeDash": [6, 3], "tooltip": True},
        "encoding": {axis: {"field": "device memory, kB", "type": "quantitative", "title": None}}}
    return {key: each for key, each in drawn.items() if key not in inner} | {"layer": [inner, line]}


ZOOM: Spec = {"name": "time", "select": {"type": "interval", "encodings": ["x"]}, "bind": "scales"}


def steps(rows: Sequence[RowDocument], device_bytes: int = 0) -> Spec:
    """The traced step and the memory of each row, one below the other; they are zoomed and panned as one."""
    views = [view for row in rows for view in (row.spans and timeline(row), memory(row, device_bytes)) if view]
    views[0] |= {"params": [*views[0].get("params", []), ZOOM]}
    return {"vconcat": views, "resolve": {"scale": {"x": "shared", "color": "independent", "stroke": "independent"}}}


def files(rows: Sequence[RowDocument], device_bytes: int = 0) -> dict[str, Spec]:
    """Every picture with data, by the name of its file; rows are numbered from 1."""
    found = {"kept": kept(rows, device_bytes), "sent": sent(rows), "losses": losses(rows)}
    found = {name: spec for name, spec in found.items() if any(
        layer["data"]["values"] for layer in spec.get("layer", [spec]))}
    for number, row in enumerate(rows, 1):
        found[f"memory-{number}"] = memory(row, device_bytes) | {"title": row.heading}
        if row.spans:
            found[f"step-{number}"] = steps([row], device_bytes)
        if row.spans and row.ranks > 1:
            found[f"partners-{number}"] = partners(row)
    return found


# Drawing.


def converter() -> Any:
    """The module vl_convert; `UsageError` with the command that installs it if it is missing."""
    try:
        import vl_convert  # noqa: PLC0415
    except ImportError as error:
        raise UsageError("pictures need vl-convert, which is not installed: pip install 'vl-convert-python>=1.9', "
                         "or zerosim with its extra [report]") from error
    return vl_convert


@cache
def script() -> str:
    """The scripts of Vega-Lite, which set `vegaEmbed`."""
    bundle: str = converter().javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return f"(() => {{{bundle}}})();"


def drawable(spec: Any) -> Any:
    """A specification without characters that cannot be drawn: a NUL kills the converter, and Python with it."""
    if isinstance(spec, dict):
        return {key: drawable(each) for key, each in spec.items()}
    if isinstance(spec, list):
        return [drawable(each) for each in spec]
    return printable(spec) if isinstance(spec, str) else spec


def interactive(spec: Spec) -> Spec:
    return {"$schema": "https://vega.github.io/schema/vega-lite/v6.json", "config": CONFIG, **drawable(spec)}


def svg(spec: Spec, width: int = 860) -> str:
    """The picture as a file, on white."""
    def fixed(each: Any) -> Any:
        if isinstance(each, dict):
            whole = {key: fixed(value) for key, value in each.items()}
            return whole | {"width": width} if each.get("width") == "container" else whole
        return [fixed(value) for value in each] if isinstance(each, list) else each

    found: str = converter().vegalite_to_svg(fixed(interactive(spec)) | {"background": "white"})
    return found


def pixels(picture: str, scale: float = 2.0) -> bytes:
    """An SVG as a PNG."""
    found: bytes = converter().svg_to_png(picture, scale=scale)
    return found
