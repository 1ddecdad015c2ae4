"""The notebooks, run: each cell's code, and what it shows, in the form in which notebooks keep it.

    python -m tests.notebooks    runs every notebook and saves what its cells show

Cells are plain Python and are run as such, in this process and in an empty folder, since a notebook must run anywhere.
"""

import ast
import io
import json
import re
from collections import Counter
from contextlib import chdir, redirect_stdout
from pathlib import Path
from pprint import pformat
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted(ROOT.glob("docs/notebooks/*.ipynb"))
TIMED = "ms since the step began"
"""What stands in every picture of time."""
DIGEST = re.compile(r"\b[0-9a-f]{12}\.\.\.")
AS_LONG_AS_IT_TAKES = {"waits_marks", "labels_marks"}
"""Marks of a picture of time whose number depends on how long things took."""


def read(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))


def written(notebook):
    """The text of its file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def run(notebook):
    """The same notebook with what its cells show now, run in an empty folder; a cell that raises ends it."""
    names, cells, count = {"__name__": "__main__"}, [], 0
    with TemporaryDirectory() as empty, chdir(empty):
        for cell in notebook["cells"]:
            if cell["cell_type"] != "code":
                cells.append(cell)
                continue
            count += 1
            cells.append(cell | {"execution_count": count, "outputs": outputs("".join(cell["source"]), names, count)})
    return notebook | {"cells": cells}


def outputs(source, names, count):
    """What a cell prints and, if its last line is an expression, the forms of its value."""
    *body, last = ast.parse(source).body
    shown = isinstance(last, ast.Expr)
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(ast.Module(body if shown else [*body, last], []), f"cell {count}", "exec"), names)
        value = eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), names) if shown else None
    found = []
    if printed.getvalue():
        found.append({"name": "stdout", "output_type": "stream", "text": lines(printed.getvalue())})
    if value is not None:
        found.append({"data": {form: lines(words) for form, words in forms(value).items()},
                      "execution_count": count, "metadata": {}, "output_type": "execute_result"})
    return found


def forms(value):
    """By MIME type, as a front end asks for them."""
    if hasattr(value, "_repr_mimebundle_"):
        return value._repr_mimebundle_()
    return {"text/plain": pformat(value, sort_dicts=False)}


def lines(words):
    """A text as notebooks keep it."""
    return words.splitlines(keepends=True)


def faults(path):
    """In words, which cells do not show what is saved, times aside; and what they show that could not be drawn."""
    saved = read(path)
    now = run(saved)
    found = []
    for number, (before, after) in enumerate(zip(saved["cells"], now["cells"], strict=True), 1):
        if before["cell_type"] != "code":
            continue
        if [untimed(each) for each in before["outputs"]] != [untimed(each) for each in after["outputs"]]:
            found.append(f"cell {number} shows something else than is saved")
        found += [f"cell {number}: {fault}" for each in after["outputs"] for fault in unfit(each)]
    return found


def untimed(output):
    """An output, its pictures of time by what they show and not when, and without the bits of one machine's BLAS."""
    data = {form: "".join(text) for form, text in output.get("data", {}).items()}
    return output | {
        "text": DIGEST.sub("...", "".join(output.get("text", ""))),
        "data": {form: marks(text) if form == "image/svg+xml" and TIMED in text else DIGEST.sub("...", text)
                 for form, text in data.items()},
    }


def marks(svg):
    """How many marks of which colour there are in each layer of a picture of time."""
    found = Counter()
    for group in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}g"):
        *_, layer = group.get("class", "").split() or [""]
        if "role-mark" in group.get("class", "") and layer not in AS_LONG_AS_IT_TAKES:
            found.update((layer, mark.get("fill")) for mark in group)
    return found


def unfit(output):
    """What is wrong with the forms of an output: SVG that is none, or anything that would be fetched."""
    data = {form: "".join(text) for form, text in output.get("data", {}).items()}
    if "image/svg+xml" in data:
        try:
            drawn = ElementTree.fromstring(data["image/svg+xml"])
        except ElementTree.ParseError as error:
            yield f"no SVG: {error}"
        else:
            if not [each for each in drawn.iter() if each.tag.rpartition("}")[2] in ("path", "rect")]:
                yield "an empty picture"
    for form in ("image/svg+xml", "text/html"):
        if re.search(r"""(src|href)\s*=\s*["']?(https?:)?//|@import|url\(["']?https?:""", data.get(form, "")):
            yield f"{form} fetches something"


if __name__ == "__main__":
    for path in NOTEBOOKS:
        path.write_text(written(run(read(path))), encoding="utf-8")
