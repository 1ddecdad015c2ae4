"""Patterns that tell apart without colour what colour does not: SVG's own, laid over the colour of a unit.

A texture is named after what it stands for; a mark has it by the fill `url(#texture-backward)`.
"""

TEXTURES = {
    "backward": '<path d="M-1 7L7 -1M-1 1L1 -1M5 7L7 5"/>',
    "recompute": '<path d="M1.5 0V6M4.5 0V6"/>',
    "update": '<path d="M0 0L6 6M0 6L6 0"/>',
    "reduce_scatter": '<path d="M0 1.5H6M0 4.5H6"/>',
    "broadcast": '<path d="M0 3H6M3 0V6"/>',
    "gather_norms": '<path d="M3 1.5V4.5"/>',
}
"""The strokes in a square of 6 by 6. Forward and all-gather are plain."""

SHADES = {"forward": 0.55, "all_gather": 0.55, "wait": 0.12}
"""How much colour a span has; the others have all of it."""

HALO = ".labels_marks text{paint-order:stroke;stroke:#fff;stroke-opacity:.75;stroke-width:2.5px;fill:#111}"
"""What keeps words legible on a texture."""


def definitions() -> str:
    """All textures, as they stand in an SVG."""
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


def swatch(what: str) -> str:
    """A patch with the texture and the shade of `what`, for a legend."""
    shade = SHADES.get(what, 1)
    over = f'<rect width="22" height="14" fill="url(#texture-{what})"/>' if what in TEXTURES else ""
    ground = f'<rect width="22" height="14" fill="#3b8fd4" fill-opacity="{shade}"/>'
    return f'<svg class="swatch" width="22" height="14" aria-hidden="true">{ground}{over}</svg>'
