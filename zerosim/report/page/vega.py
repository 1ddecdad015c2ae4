"""Vega-Lite specifications made into SVG and PNG, and the script that draws them; the only import of vl-convert.

vl-convert brings the scripts with it, and runs them without a browser and without a network.
"""

from functools import cache
from typing import Any

from zerosim.errors import UsageError
from zerosim.report.page.markup import printable
from zerosim.report.page.textures import with_textures

Spec = dict[str, Any]
"""A specification as Vega-Lite reads it: https://vega.github.io/vega-lite/docs/."""


def converter() -> Any:
    """The module vl_convert; `UsageError` with the command that installs it where it is missing."""
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
    """What Vega draws of a Vega-Lite specification: compiled here once, and not for each row while a page opens."""
    found: Spec = converter().vegalite_to_vega(spec)
    return found


def svg(spec: Spec) -> str:
    """The picture of a Vega-Lite specification that has its data in it."""
    return with_textures(converter().vegalite_to_svg(drawable(spec)))


def drawable(spec: Any) -> Any:
    """The same with no character that cannot be drawn: of a NUL the converter dies, and Python with it."""
    if isinstance(spec, dict):
        return {key: drawable(each) for key, each in spec.items()}
    if isinstance(spec, list):
        return [drawable(each) for each in spec]
    return printable(spec) if isinstance(spec, str) else spec


def png(spec: Spec, scale: float = 2.0) -> bytes:
    """The same in pixels, `scale` to a unit of length of the specification."""
    found: bytes = converter().svg_to_png(svg(spec), scale=scale)
    return found
