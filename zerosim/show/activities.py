"""The activities of a step, their colours and textures: the same in every lane, page and picture.

A hue is an activity. Layers are distinguished by number and by shade: every other one is paler. Memory has other hues.
A texture distinguishes activities without colour, as an SVG pattern over it. It has the name of its activity; a mark
uses it by the fill `url(#texture-backward)`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zerosim.instruments.trace import OFFLOAD

ACTIVITIES = {
    "forward": "#8ec1ee", "backward": "#2f6fb5", "recompute": "#5a54c4", "update": "#9b59b6",
    "gather": "#1f9e73", "reduce": "#e0662f", "other": "#4fb3b3", "wait": "#9aa3ad",
}
"""The colour of each activity; distinguishable without red-green vision."""

BAND = (0.145, 0.275)
"""The luminances whose contrast is at least 3, both to the white and to the dark ground of a page."""


def edge(colour: str) -> str:
    """A colour, made darker or paler until it is in the band: the outline that shows a mark on any ground.

    >>> edge("#8ec1ee"), edge("#6b4f3a"), edge("#1f9e73")
    ('#6c93b6', '#7b6659', '#1f9e73')
    """
    numbers = [int(colour[at:at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in numbers]
    light = sum(share * each for share, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    low, high = BAND
    if light > high:
        linear = [each * high / light for each in linear]
    elif light < low:
        linear = [each + (1 - each) * (low - light) / (1 - light) for each in linear]
    else:
        return colour
    return "#" + "".join(f"{round(255 * (1.055 * each ** (1 / 2.4) - 0.055)):02x}" for each in linear)


WORDS = {"gather": "all-gather, broadcast", "reduce": "reduce-scatter, all-reduce", "wait": "waiting"}
"""The legend's words for an activity, if its name is not enough."""

BY_NAME = {
    "forward": "forward", "loss": "forward", "backward": "backward", "recompute": "recompute", "update": "update",
    "all_gather": "gather", "broadcast": "gather", "gather": "gather", "scatter": "gather",
    "reduce_scatter": "reduce", "all_reduce": "reduce", "reduce": "reduce", "gather_norms": "reduce", "wait": "wait",
}


def activity(what: str) -> str:
    """The activity of a span by its name, which may begin with a direction; `other` for a user's own names.

    >>> activity("loss"), activity("broadcast"), activity("tensor_all_reduce"), activity("compress")
    ('forward', 'gather', 'reduce', 'other')
    """
    return BY_NAME.get(what) or BY_NAME.get(what.partition("_")[2], "other")


def legend_words(spans: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The words of a legend for each activity, where they are more than its name.

    Copies between memory tiers share the hue of names of the user's own, so that there are eight hues; the entry names
    what there is.

    >>> spans = [{"kind": "offload", "what": "gradients, device to host"}, {"kind": "computation", "what": "forward"}]
    >>> legend_words(spans)["other"], legend_words([*spans, {"kind": "collectives", "what": "compress"}])["other"]
    ('offload', 'offload, other')
    """
    found = {OFFLOAD if span["kind"] == OFFLOAD else "other" for span in spans if activity(span["what"]) == "other"}
    return {**WORDS, "other": ", ".join(sorted(found))} if found else WORDS


def in_order(found: Iterable[str]) -> list[str]:
    """Activities once each, in the order of legends."""
    there = set(found)
    return [name for name in ACTIVITIES if name in there]


def is_paler(unit: str, units: Sequence[str]) -> bool:
    """Whether a layer is drawn in the paler shade: every other one.

    >>> [is_paler(unit, ["layers.0", "layers.1", "layers.2"]) for unit in ("layers.0", "layers.1", "elsewhere")]
    [False, True, False]
    """
    return unit in units and units.index(unit) % 2 == 1


TEXTURES = {
    "backward": '<path d="M-1 7L7 -1M-1 1L1 -1M5 7L7 5"/>',
    "recompute": '<path d="M1.5 0V6M4.5 0V6"/>',
    "update": '<path d="M0 0L6 6M0 6L6 0"/>',
    "reduce": '<path d="M0 1.5H6M0 4.5H6"/>',
    "other": '<path d="M3 1.5V4.5"/>',
}
"""The strokes in a square of 6 by 6. Forward, the gathers and waiting have none: one light, one dark, one pale."""

WAITING = 0.35
"""The opacity of waiting."""
PALER = 0.62
"""The opacity of every other layer."""

HALO = ".labels_marks text{paint-order:stroke;stroke:#fff;stroke-opacity:.75;stroke-width:2.5px;fill:#111}"
"""The style that keeps words legible on a texture."""


def definitions() -> str:
    patterns = "".join(
        f'<pattern id="texture-{name}" width="6" height="6" patternUnits="userSpaceOnUse">'
        f'<g class="texture" fill="none" stroke="#000" stroke-opacity="0.55" stroke-width="1.1">{strokes}</g></pattern>'
        for name, strokes in TEXTURES.items()
    )
    return f"<defs><style>{HALO}</style>{patterns}</defs>"


def with_textures(svg: str) -> str:
    """An SVG with the definitions in it.

    >>> with_textures("<svg><g/></svg>").startswith("<svg><defs><style>")
    True
    """
    end = svg.index(">") + 1
    return svg[:end] + definitions() + svg[end:]


def swatch(activity: str) -> str:
    """A patch with the colour and the texture of an activity, for a legend."""
    over = f'<rect width="22" height="14" fill="url(#texture-{activity})"/>' if activity in TEXTURES else ""
    share = WAITING if activity == "wait" else 1
    ground = f'<rect width="22" height="14" fill="{ACTIVITIES[activity]}" fill-opacity="{share}"/>'
    return f'<svg class="swatch" width="22" height="14" aria-hidden="true">{ground}{over}</svg>'
