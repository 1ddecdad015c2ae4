"""A run in a few lines of HTML, for a cell of a notebook: no script, no style of its own, pictures as images."""

from base64 import b64encode

from zerosim.errors import UsageError
from zerosim.report.page.drawings import Drawings
from zerosim.report.page.markup import Markup, element, joined
from zerosim.report.page.sections import failures, rows_table
from zerosim.report.page.vega import svg
from zerosim.report.run_document import RunDocument

PICTURES = {"kept": "memory of a rank between steps, by kind",
            "sent": "bytes sent by a rank in a step, by collective"}


def excerpt(run: RunDocument) -> Markup:
    """The verdict, the table, and pictures of kept and sent bytes; a sentence if pictures cannot be drawn."""
    said = [element("p", element("strong", run.title)), element("p", str(run.document["verdict"])), failures(run)]
    if not run.rows:
        return joined(*said)
    return joined(*said, rows_table(run.rows), images(run))


def images(run: RunDocument) -> Markup:
    """Pictures as images: the styles and names of SVG inside the page would apply to all cells."""
    specs = dict(Drawings(run.rows).files())
    try:
        drawn = {about: svg(specs[name]) for name, about in PICTURES.items() if name in specs}
    except UsageError as error:
        return element("p", str(error))
    return joined(*(
        element("p", element("img", src=f"data:image/svg+xml;base64,{b64encode(each.encode()).decode()}", alt=about))
        for about, each in drawn.items()))
