"""The notebooks, run: each cell's code, and what it shows, in the form in which notebooks keep it.

    python -m tests.documents.notebooks    runs every notebook and saves what its cells show

Cells are plain Python and are run as such, in this process and in an empty folder, since a notebook must run anywhere.
"""

import ast
import io
import json
from contextlib import chdir, redirect_stdout
from pathlib import Path
from pprint import pformat
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(ROOT.glob("docs/notebooks/*.ipynb"))


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
    """The cells that show other forms than are saved."""
    saved = read(path)
    now = run(saved)
    found = []
    for number, (before, after) in enumerate(zip(saved["cells"], now["cells"], strict=True), 1):
        kinds = [[(output["output_type"], sorted(output.get("data", {}))) for output in cell.get("outputs", [])]
                 for cell in (before, after)]
        found += [f"cell {number} shows other forms than are saved"] * (kinds[0] != kinds[1])
    return found


if __name__ == "__main__":
    for path in NOTEBOOKS:
        path.write_text(written(run(read(path))), encoding="utf-8")
