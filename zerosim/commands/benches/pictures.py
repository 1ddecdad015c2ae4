"""Pictures of benches: bandwidth over the length of a vector, and the error of quantised sums over hops."""

from collections.abc import Sequence

from zerosim.commands.benches.collectives import OWN
from zerosim.commands.benches.samples import SampleRow
from zerosim.show.page.pictures import CONFIG, FONT, ROW_COLOURS, VEGA_LITE, colour
from zerosim.show.page.vega import Spec

WIDTH, HEIGHT = 260, 200
UNITS = ("B", "KiB", "MiB", "GiB")
HALF_WIDTH, HALF_HEIGHT = 142, 105
"""The pixels of a chart of errors: two of them side by side are legible on 400."""
NAMES = {"ring": "ring", "two_hop": "two hops"}


def bandwidth_picture(found: Sequence[SampleRow], library: str) -> Spec:
    """A chart for each collective, a line for each algorithm and library: GB/s of the bus over bytes.

    >>> each = {"collective": "all_reduce", "algorithm": "ring", "ranks": 2, "bytes": 1 << 20, "bus_bandwidth": 2e9}
    >>> bandwidth_picture([each], "MPICH")["data"]["values"][0]["GB/s"]
    2.0
    """
    values = [
        {"collective": each["collective"], "length": length(each["bytes"]),
         "algorithm": library if each["algorithm"] == OWN else each["algorithm"], "GB/s": each["bus_bandwidth"] / 1e9}
        for each in found
    ]
    algorithms = list(dict.fromkeys(value["algorithm"] for value in values))
    return {
        "$schema": VEGA_LITE,
        "title": f"Bus bandwidth on {found[0]['ranks']} ranks of one host",
        "data": {"values": values},
        "facet": {"field": "collective", "title": None, "sort": None}, "columns": 2,
        "spec": {
            "width": WIDTH, "height": HEIGHT,
            "mark": {"type": "line", "point": True},
            "encoding": {
                "x": {"field": "length", "type": "ordinal", "title": "length of the vector", "sort": None,
                      "axis": {"labelAngle": -45}},
                "y": {"field": "GB/s", "type": "quantitative", "title": "GB/s of the bus"},
                "color": {"field": "algorithm", "type": "nominal", "title": None, "scale": {"domain": algorithms},
                          "legend": {"orient": "right"}},
            },
        },
        "resolve": {"scale": {"y": "independent"}},
    }


def length(count: int) -> str:
    """A number of bytes in the largest unit that it reaches.

    >>> [length(count) for count in (252, 1024, 1 << 20, 64 << 20)]
    ['252 B', '1 KiB', '1 MiB', '64 MiB']
    """
    power = min((count.bit_length() - 1) // 10, len(UNITS) - 1)
    return f"{count / (1 << 10 * power):.4g} {UNITS[power]}"


def answer(found: Sequence[SampleRow]) -> str:
    """The result in a sentence: for the most ranks, the format where the two sums differ most.

    >>> ring = {"algorithm": "ring", "format": "int4", "ranks": 4, "hops": 3, "error": 0.12}
    >>> answer([ring, ring | {"algorithm": "two_hop", "hops": 2, "error": 0.1}])
    "After 3 hops int4's error is 1.2 times that of two hops"
    """
    most = max(each["ranks"] for each in found)
    last = {(each["format"], each["algorithm"]): each for each in found if each["ranks"] == most}
    ratios = {code: last[code, "ring"]["error"] / last[code, "two_hop"]["error"] for code, _ in last}
    worst = max(ratios, key=lambda code: ratios[code])
    return f"After {last[worst, 'ring']['hops']} hops {worst}'s error is {ratios[worst]:.1f} times that of two hops"


def wire_picture(found: Sequence[SampleRow]) -> Spec:
    """The relative error over the number of hops of the ring on as many ranks."""
    along = {each["ranks"]: each["hops"] for each in found if each["algorithm"] == "ring"}
    names = list(NAMES.values())
    values = [{"format": each["format"], "sum": NAMES[each["algorithm"]], "hops": along[each["ranks"]],
               "error": each["error"]} for each in found]
    return {
        "$schema": VEGA_LITE,
        "background": "white",
        "config": CONFIG,
        "title": {"text": answer(found), "anchor": "start", "font": FONT, "fontSize": 13},
        "data": {"values": values},
        "facet": {"field": "format", "title": None, "sort": list(dict.fromkeys(each["format"] for each in found)),
                  "header": {"labelFontSize": 12, "labelFontWeight": "bold", "labelPadding": 4}},
        "columns": 2,
        "spacing": {"row": 14, "column": 18},
        "spec": {
            "width": HALF_WIDTH, "height": HALF_HEIGHT,
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
