"""A picture of bandwidth over the length of a vector, as in NCCL's and OSU's benchmarks."""

from collections.abc import Sequence

from zerosim.bench.collectives import OWN, TimedCollective
from zerosim.report.page.vega import Spec

WIDTH, HEIGHT = 260, 200
UNITS = ("B", "KiB", "MiB", "GiB")


def bandwidth_picture(found: Sequence[TimedCollective], library: str) -> Spec:
    """A chart for each collective, a line for each algorithm and library: GB/s of the bus over bytes.

    >>> each = TimedCollective("all_reduce", "ring", 2, 1 << 20, [1e-3], [1e-3])
    >>> bandwidth_picture([each], "MPICH")["data"]["values"][0]["GB/s"]
    1.048576
    """
    values = [
        {"collective": each.collective, "length": length(each.vector_bytes),
         "algorithm": library if each.algorithm == OWN else each.algorithm,
         "GB/s": each.document()["bus_bandwidth"] / 1e9}
        for each in found
    ]
    algorithms = list(dict.fromkeys(value["algorithm"] for value in values))
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "title": f"Bus bandwidth on {found[0].ranks} ranks of one host",
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
