"""A [cluster] section as a scenario's TOML."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from zerosim.scenario.machine import ClusterKeys


def cluster_toml(cluster: ClusterKeys) -> str:
    """The keys of a cluster whose device and inner link are tables.

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
    return written(tables)


def measured_toml(fit: Mapping[str, float], switches: Mapping[str, int]) -> str:
    """The links within a host, and the limit of short all-gathers, as measured by `bench collectives`.

    >>> print(measured_toml({"message_seconds": 5e-6, "byte_seconds": 1e-10}, {"all_gather": 65536}))
    [cluster]
    short_gather_kb = 65.54
    <BLANKLINE>
    [cluster.inside]
    latency_us = 5
    gigabytes_per_second = 10
    <BLANKLINE>
    """
    tables = {
        "cluster": {"short_gather_kb": switches["all_gather"] / 1e3} if "all_gather" in switches else {},
        "cluster.inside": {"latency_us": 1e6 * fit["message_seconds"],
                           "gigabytes_per_second": 1e-9 / max(fit["byte_seconds"], 1e-15)},
    }
    return written(tables)


def written(tables: Mapping[str, Mapping[str, Any]]) -> str:
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
    """A number with four digits, or a string in quotes."""
    return f'"{value}"' if isinstance(value, str) else f"{value:.4g}"
