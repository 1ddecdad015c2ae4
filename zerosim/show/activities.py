"""The activities of a step and their colours: the same in every lane, page and picture.

A hue is an activity. Layers are distinguished by number and by shade: every other one is paler. Memory has other hues.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zerosim.instruments.trace import OFFLOAD

ACTIVITIES = {
    "forward": "#8ec1ee", "backward": "#2f6fb5", "recompute": "#5a54c4", "update": "#9b59b6",
    "gather": "#1f9e73", "reduce": "#e0662f", "other": "#4fb3b3", "wait": "#9aa3ad",
}
"""The colour of each activity; distinguishable without red-green vision, on white and on dark."""

WORDS = {"gather": "all-gather, broadcast", "reduce": "reduce-scatter, all-reduce", "wait": "waiting"}
"""The legend's words for an activity, if its name is not enough."""

BY_NAME = {
    "forward": "forward", "loss": "forward", "backward": "backward", "recompute": "recompute", "update": "update",
    "all_gather": "gather", "broadcast": "gather", "gather": "gather", "scatter": "gather",
    "reduce_scatter": "reduce", "all_reduce": "reduce", "reduce": "reduce", "gather_norms": "reduce", "wait": "wait",
}


def activity(what: str) -> str:
    """The activity of a span by its name; `other` for a user's own names.

    >>> activity("loss"), activity("broadcast"), activity("compress")
    ('forward', 'gather', 'other')
    """
    return BY_NAME.get(what, "other")


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
