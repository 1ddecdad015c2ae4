"""docs/outcome.md, whose part on `zerosim run` is generated from the dataclasses of the document.

    python -m tests.documents.outcome    writes it anew
"""

import ast
import inspect
import re
from pathlib import Path

from zerosim.observe.trace import ClockOffset, Span
from zerosim.show import document
from zerosim.show.columns import FIGURES
from zerosim.verdict.addresses import Fragmentation
from zerosim.verdict.diagnosis import Divergence, RowDifference

PAGE = Path(__file__).parents[2] / "docs/outcome.md"
SECTIONS = {
    "# The JSON document of `zerosim run`": document.RunDocument,
    "## Each of `rows`": document.RowDocument,
    "## Each of `traffic`": document.TrafficDocument,
    "## Each of `memory`": document.MemoryDocument,
    "## `trace`": document.TraceDocument,
    "## Each of `clocks`": ClockOffset,
    "## Each of `steps`": document.StepDocument,
    "## Each of `spans`": Span,
    "## `fragmentation`": Fragmentation,
    "## `first_divergence`": Divergence,
    "## Each of `differences`": RowDifference,
    "## Each of `did_not_fit`": document.MisfitDocument,
    "## Each of `on_other_ranks`": document.OtherRanksDocument,
}
LOOKED_AT = """
## What a passed run has looked at

- **Bits**: loss, weights, gradients and optimizer state of every rank after every step.
- **Bytes sent**: collectives, lengths and numbers are stated apart from the stages' code, messages by closed forms.
  Recorded from code, alone or on shapes, are destinations, bytes received, the tape's collectives, and the messages of
  your own collective, whose sum is held to `chunks_sent`, if declared, and to the least of any algorithm.
- **Bytes kept**: by formula, in arrays of zerosim's allocator. An array that your code makes itself is in no figure;
  `zerosim check` refuses a stage that keeps one, and `check.process_memory` holds the whole process.
- **Peaks, operations, bytes to the host**: those of the shipped stage's own code on shapes, which shows no fault of
  that code. `between` and `operations_between` hold them to floors and ceilings without it: forward operations of
  dense models exactly, activations within about a factor of 2.
"""
ROWS = """
## As plain rows

In Python, `zs.run(…)` returns an outcome, whose `document` is that above. Four methods return lists of flat dicts:
`losses()` (`name`, `step`, `loss`), `spans()` (the keys of `spans` above, with `name` and `step`), `memory()` (`name`,
`step`, `rank`, `ns`, and the bytes of each kind at each change in the traced step), and `rows()`, one for each entry of
`rows`, with some of its keys, `final_loss`, `hidden`, `train_seconds`, and the figures that tables show, here with
their headings:
"""


def documented(kind: type) -> list[tuple[list[str], str]]:
    """The fields of a dataclass, its own first, with docstrings; one without shares that of the next which has one."""
    found, names = [], []
    classes = [ast.parse(inspect.getsource(each)) for each in kind.__mro__ if each.__module__.startswith("zerosim")]
    for node in (node for each in classes for node in each.body[0].body):
        if isinstance(node, ast.AnnAssign):
            names.append(node.target.id)
        elif names and isinstance(node, ast.Expr):
            found.append((names, " ".join(node.value.value.split())))
            names = []
    return found


def section(heading: str, kind: type) -> str:
    """A heading, the docstring of a dataclass, and an item for each of its fields."""
    lines = [f"- {', '.join(f'`{name}`' for name in names)}: {words}" for names, words in documented(kind)]
    return "\n".join([heading, "", inspect.getdoc(kind), "", *lines, ""])


def generated(page: str) -> str:
    """The page with its part on runs made anew; what follows it is written by hand."""
    rest = page[re.search(r"^# The JSON document of `zerosim plan`$", page, re.MULTILINE).start():]
    figures = ", ".join(f"`{figure.key}` ({figure.name})" for figure in FIGURES)
    return "\n".join(section(*each) for each in SECTIONS.items()) + f"{LOOKED_AT}{ROWS}{figures}.\n\n{rest}"


if __name__ == "__main__":
    PAGE.write_text(generated(PAGE.read_text()))
