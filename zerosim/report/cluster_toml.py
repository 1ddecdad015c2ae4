"""A [cluster] section as a scenario's TOML."""

from dataclasses import asdict
from typing import Any

from zerosim.scenario.machine import ClusterKeys


def cluster_toml(cluster: ClusterKeys) -> str:
    """The keys of a cluster whose device and inner link are written out.

    >>> from zerosim.scenario.machine import DeviceKeys, LinkKeys
    >>> measured = ClusterKeys(DeviceKeys(1e12, 1e11, 8e9), 8, LinkKeys(5, 10))
    >>> print(cluster_toml(measured).partition("[cluster.device]")[0])
    [cluster]
    devices_per_host = 8
    collectives = "pipelined"
    kernels = "written"
    <BLANKLINE>
    [cluster.inside]
    latency_us = 5
    gigabytes_per_second = 10
    <BLANKLINE>
    <BLANKLINE>
    """
    found = asdict(cluster)
    tables = {"cluster": {key: found[key] for key in ("devices_per_host", "collectives", "kernels")}}
    functions = found["device"].pop("functions")
    tables |= {"cluster.inside": found["inside"], "cluster.device": found["device"],
               "cluster.device.functions": functions}
    return "\n".join(f"[{name}]\n" + "".join(map(line, keys.items())) for name, keys in tables.items())


def line(item: tuple[str, Any]) -> str:
    """
    >>> line(("bandwidths", (1.5, 2e10)))
    'bandwidths = [1.5, 2e+10]\\n'
    """
    key, value = item
    words = f"[{', '.join(map(digits, value))}]" if isinstance(value, tuple | list) else digits(value)
    return f"{key} = {words}\n"


def digits(value: Any) -> str:
    """A number with four digits, or words in quotes."""
    return f'"{value}"' if isinstance(value, str) else f"{value:.4g}"
