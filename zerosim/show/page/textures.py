"""Patterns that distinguish activities without colour: SVG patterns over the colour of the activity.

A texture has the name of its activity; a mark uses it by the fill `url(#texture-backward)`.
"""

from zerosim.show.activities import ACTIVITIES

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
    """All textures as SVG definitions."""
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
