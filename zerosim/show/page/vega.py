"""Conversion of Vega-Lite specifications into SVG and PNG, and the script that draws them; only this imports
vl-convert.

vl-convert contains the scripts, and runs them without a browser and without a network.

vl-convert is one wheel without dependencies, the scripts of Vega-Lite and Vega included (0.9 MB, once a page). A NUL
in a text kills it and Python with it, so texts are cleaned first. It contains its own fonts, so another machine makes
the same bytes; another version may not, and tests require one version.
"""

import re
from functools import cache
from typing import Any

from zerosim.errors import UsageError
from zerosim.show.activities import with_textures
from zerosim.show.page.markup import printable

Spec = dict[str, Any]
"""A specification as Vega-Lite reads it: https://vega.github.io/vega-lite/docs/."""


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
    """The scripts that draw compiled specifications; they set `window.vegaEmbed` and no other name."""
    bundle: str = converter().javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return f"(() => {{{bundle}}})();"


def compiled(spec: Spec) -> Spec:
    """The Vega specification of a Vega-Lite one: compiled here once, and not for each row while a page opens."""
    found: Spec = converter().vegalite_to_vega(spec)
    return found


def svg(spec: Spec) -> str:
    """The picture of a Vega-Lite specification with its data inside."""
    return with_textures(tidy(converter().vegalite_to_svg(drawable(spec))))


def drawable(spec: Any) -> Any:
    """A specification without characters that cannot be drawn: a NUL kills the converter, and Python with it."""
    if isinstance(spec, dict):
        return {key: drawable(each) for key, each in spec.items()}
    if isinstance(spec, list):
        return [drawable(each) for each in spec]
    return printable(spec) if isinstance(spec, str) else spec


def pixels(picture: str, scale: float = 2.0) -> bytes:
    """An SVG as a PNG, `scale` pixels for each unit of length."""
    found: bytes = converter().svg_to_png(picture, scale=scale)
    return found


UNSEEN = re.compile(
    r'<path class="foreground"[^>]*display="none"/>|<text [^>]*(?<=[^-])opacity="0"[^>]*>[^<]*</text>'
    r'| (?:pointer-events|aria-hidden|aria-roledescription|role|cursor)="[^"]*"'
    r'| (?:(?:fill-|stroke-)?opacity|stroke-width)="1"|<path class="background" d="M0,0h0v0h0Z"/>')
GEOMETRY = re.compile(r' (?:d|transform|width|height|x2?|y2?)="[^"]*"')
LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}(?:e-?\d+)?")
CLIP = re.compile(r"\bclip\d+\b")


def tidy(svg: str) -> str:
    """An SVG picture in half its bytes: without invisible elements, with hundredths of a pixel, clips counted from 0.

    The converter numbers clips from picture to picture, so two pictures of one specification would differ.

    >>> tidy('<g clip-path="url(#clip7)"><path d="M0.123456,1"/></g><clipPath id="clip7"/>')
    '<g clip-path="url(#clip0)"><path d="M0.12,1"/></g><clipPath id="clip0"/>'
    """
    clips: dict[str, str] = {}
    seen = UNSEEN.sub("", svg)
    short = GEOMETRY.sub(lambda found: LONG_NUMBER.sub(rounded, found[0]), seen)
    return CLIP.sub(lambda found: clips.setdefault(found[0], f"clip{len(clips)}"), short)


def rounded(number: re.Match[str]) -> str:
    return f"{round(float(number[0]), 2) + 0:g}" if abs(float(number[0])) < 1e4 else f"{float(number[0]):.2f}"
