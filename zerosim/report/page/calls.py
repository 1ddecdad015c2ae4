"""The collectives of a PyTorch script in its last step, and the lines that called them."""

from zerosim.report.page.markup import Markup, element
from zerosim.report.page.sections import scrolling, section
from zerosim.report.run_document import RowDocument


def calls(row: RowDocument) -> Markup:
    """A table of the calls of rank 0, in order."""
    lines = [
        element("tr", element("td", call["collective"]), element("td", call["by"]),
                element("td", f"{call['sent_bytes']:,}"), element("td", f"{call['messages']:,}"))
        for call in row.found["calls"][0]
    ]
    heads = ("collective", "called by", "bytes sent", "messages")
    return section(
        "calls", f"{row.name}: calls of collectives",
        element("p", "Rank 0 in the last step. A line of PyTorch is followed by the line of the script that called it.",
                class_="legend"),
        scrolling(element("table", element("thead", element("tr", *(
            element("th", each, scope="col") for each in heads))), element("tbody", *lines))))
