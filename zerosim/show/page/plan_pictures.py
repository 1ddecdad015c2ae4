"""The pictures of plans only: memory at the peak with the device's limit, and speed by ranks."""

from collections.abc import Sequence
from typing import Any

from zerosim.instruments.memory import MEMORY_KINDS
from zerosim.show.page.pictures import (
    CONFIG,
    DEVICE,
    KIND_COLOURS,
    ROW_COLOURS,
    VEGA_LITE,
    PictureValues,
    bars,
    colour,
)
from zerosim.show.page.vega import Spec
from zerosim.show.run_document import KIND_NAMES, RowDocument


def peaks(rows: Sequence[RowDocument], device_bytes: int) -> Spec:
    """The memory of a rank of each row at the peak, by kind, and a line at the memory of the device."""
    drawn = bars("held at the peak", "kind", list(KIND_NAMES.values()), KIND_COLOURS,
                 [row.name for row in rows])
    return beside_device(drawn, "x", device_bytes)


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


def with_device(specs: dict[str, Spec], device_bytes: int) -> dict[str, Spec]:
    """The specifications with a line at the memory of the device in every picture of memory."""
    axes = {"memory": "y", "kept": "x"}
    return {name: beside_device(spec, axes[name], device_bytes) if name in axes else spec
            for name, spec in specs.items()}


def peak_values(rows: Sequence[RowDocument]) -> PictureValues:
    """The memory of each row and kind at the peak of the step."""
    return [
        {"row": row.name, "kind": KIND_NAMES[kind], "place": place, "bytes": fullest.get(kind, 0)}
        for row in rows for fullest in [max(row.curve, key=held)] for place, kind in enumerate(MEMORY_KINDS)
    ]


def held(at: dict[str, Any]) -> int:
    """The bytes of all kinds at one time of a curve."""
    return sum(at.get(kind, 0) for kind in MEMORY_KINDS)


def scaling(values: PictureValues) -> Spec:
    """Speed by the number of ranks, a line for each row; data `scaling`."""
    names = list(dict.fromkeys(value["row"] for value in values))
    return {
        "$schema": VEGA_LITE,
        "data": {"name": "scaling"},
        "width": "container",
        "height": 240,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": CONFIG,
        "mark": {"type": "line", "strokeWidth": 2, "point": {"size": 40}},
        "encoding": {
            "x": {"field": "ranks", "type": "quantitative", "scale": {"type": "log", "base": 2, "nice": False},
                  "axis": {"title": "ranks", "format": ",d", "values": sorted({value["ranks"] for value in values}),
                           "grid": False}},
            "y": {"field": "speed", "type": "quantitative", "scale": {"zero": True},
                  "axis": {"title": "a second on each device", "format": "~s", "tickCount": 5}},
            "color": {"field": "row", **colour(names, ROW_COLOURS, None)},
            "shape": {"field": "row", "type": "nominal", "scale": {"domain": names}, "title": None},
            "tooltip": [{"field": "row"}, {"field": "ranks", "format": ","}, {"field": "speed", "format": ",.4~g"}],
        },
    }


def scaling_values(speeds: Sequence[tuple[str, int, float]]) -> PictureValues:
    """The speed of a device for each row and number of ranks."""
    return [{"row": row, "ranks": ranks, "speed": speed} for row, ranks, speed in speeds]
