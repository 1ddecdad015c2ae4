"""A picture of the error of quantised sums over hops: a chart for each wire format, a line for each reduce-scatter."""

from collections.abc import Sequence

from zerosim.bench.wires import QuantisedSum
from zerosim.report.page.pictures import CONFIG, FONT, ROW_COLOURS, VEGA_LITE, colour
from zerosim.report.page.vega import Spec

WIDTH, HEIGHT = 142, 105
"""The pixels of a chart: two of them side by side are legible on 400."""

NAMES = {"ring": "ring", "two_hop": "two hops"}


def answer(found: Sequence[QuantisedSum]) -> str:
    """The result in a sentence: for the most ranks, the format where the two sums differ most.

    >>> answer([QuantisedSum("ring", "int4", 4, 3, 0.12), QuantisedSum("two_hop", "int4", 4, 2, 0.1)])
    "After 3 hops int4's error is 1.2 times that of two hops"
    """
    last = {(each.format, each.algorithm): each for each in found if each.ranks == max(each.ranks for each in found)}
    ratios = {code: last[code, "ring"].error / last[code, "two_hop"].error for code, _ in last}
    worst = max(ratios, key=lambda code: ratios[code])
    return f"After {last[worst, 'ring'].hops} hops {worst}'s error is {ratios[worst]:.1f} times that of two hops"


def wire_picture(found: Sequence[QuantisedSum]) -> Spec:
    """The relative error over the number of hops of the ring on as many ranks."""
    along = {each.ranks: each.hops for each in found if each.algorithm == "ring"}
    names = list(NAMES.values())
    values = [{"format": each.format, "sum": NAMES[each.algorithm], "hops": along[each.ranks], "error": each.error}
              for each in found]
    return {
        "$schema": VEGA_LITE,
        "background": "white",
        "config": CONFIG,
        "title": {"text": answer(found), "anchor": "start", "font": FONT, "fontSize": 13},
        "data": {"values": values},
        "facet": {"field": "format", "title": None, "sort": list(dict.fromkeys(each.format for each in found)),
                  "header": {"labelFontSize": 12, "labelFontWeight": "bold", "labelPadding": 4}},
        "columns": 2,
        "spacing": {"row": 14, "column": 18},
        "spec": {
            "width": WIDTH, "height": HEIGHT,
            "mark": {"type": "line", "strokeWidth": 2, "point": {"size": 30}},
            "encoding": {
                "x": {"field": "hops", "type": "quantitative",
                      "axis": {"title": "hops in the ring (ranks − 1)", "values": sorted(along.values())[-3:],
                               "grid": False}},
                "y": {"field": "error", "type": "quantitative",
                      "axis": {"title": "relative error", "format": "~%", "tickCount": 4}},
                "color": {"field": "sum", **colour(names, ROW_COLOURS, None)},
                "shape": {"field": "sum", "type": "nominal", "scale": {"domain": names}, "title": None},
            },
        },
        "resolve": {"scale": {"y": "independent"}},
    }
