"""Sections on bits that differ: from one process, and between rows that each equal one."""

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from zerosim.show.page.markup import Markup, element, joined, section, table
from zerosim.show.run_document import RowDocument, RunDocument, element_name
from zerosim.words import plural


def divergence(rows: Sequence[RowDocument]) -> Markup:
    """The section on the first differing bits, with both orders of addition; empty if there are none."""
    found = [row for row in rows if row.found["first_divergence"]]
    return section("divergence", "Where bits first differ", *map(one_divergence, found)) if found else joined()


def row_differences(runs: Sequence[RunDocument]) -> Markup:
    """The section on rows that differ although each equals one process; empty if there are none."""
    found = [each for run in runs for each in run.document.get("differences", [])]
    return section("apart", "Both correct, but different", *map(row_difference, found)) if found else joined()


def row_difference(found: dict[str, Any]) -> Markup:
    first, other = found["first"], found["other"]
    facts = {
        "step": f"{found['step']}", "element": element_name(found, found["what"]),
        f"{first} has": f"{found['values'][0]!r}, in chunk {found['chunks'][0]}",
        f"{other} has": f"{found['values'][1]!r}, in chunk {found['chunks'][1]}",
        "distance": f"{found['ulps']:,} ULP",
        **{f"{count:,} elements differ by": f"{bin_} ULP" for bin_, count in found["histogram"].items() if count},
    }
    cause = f"{found['cause'][:1].upper()}{found['cause'][1:]}."
    mine, theirs = found["orders"]
    orders = {first: mine, other: theirs} if mine != theirs else {f"{first} and {other}": mine}
    return element(
        "article", element("h3", f"{first} and {other}"), element("p", "Each has the bits of one process. " + cause),
        table(facts.items(), class_="facts"),
        *(element("pre", f"{name}: {order}", class_="order") for name, order in orders.items()))


def one_divergence(row: RowDocument) -> Markup:
    first = row.found["first_divergence"]
    what = element_name(first, first["state"])
    facts = {
        "step": f"{first['step']}", "element": what,
        "chunk": f"{first['chunk']}, {plural(first['differing_elements'], 'element')} of it differing",
        "noticed by": f"rank {first['rank']}",
        f"{row.name} holds": f"{first['ours']!r} ({first['ours_bits']})",
        f"{row.found['compared_with']} holds": f"{first['reference']!r} ({first['reference_bits']})",
        "distance": "not comparable in ULPs" if first["ulps"] is None else f"{first['ulps']:,} ULP apart",
    }
    return element(
        "article", element("h3", row.name),
        element("p", element("strong", what), f" is the first element that differs, after step "
                f"{first['step']}.", class_="verdict failed"),
        table(facts.items(), class_="facts"), *orders(first["order_of_addition"]))


def orders(order: dict[str, str] | None) -> Iterator[Markup]:
    """Both orders in which the chunk was added, marked where they differ."""
    if order is None:
        return
    ours, reference = order["ours"], order["reference"]
    if ours == reference:
        yield element("p", "Both sides add this chunk in the same order:", class_="legend")
        yield element("pre", ours, class_="order")
        return
    for side, one, other in (("ours adds", ours, reference), ("reference adds", reference, ours)):
        yield element("p", side, class_="legend")
        yield element("pre", marked(one, other), class_="order")


def marked(ours: str, others: str) -> Markup:
    """A sum with a mark at each part that differs from the other sum's.

    >>> marked("(g0 + g1)", "(g1 + g0)")
    '(<mark>g0</mark> + <mark>g1</mark>)'
    """
    one, other = (re.findall(r"g\[?\d+\]?|.", words) for words in (ours, others))
    return joined(*(
        part if part == there else element("mark", part) for part, there in zip_longest(one, other[:len(one)])
    ))
