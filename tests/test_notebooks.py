"""The notebooks run, and what is saved in them is what their cells show.

They run without Jupyter: a cell is Python, compiled and run, and its last expression is asked for its forms. nbclient
with a kernel would bring thirty packages and some seconds for each notebook. Pictures of time are compared by the
marks in each layer and their colours; everything else to the byte, except digests of weights, whose bits depend on a
machine's BLAS.
"""

import copy

import pytest

from tests import notebooks
from tests.notebooks import NOTEBOOKS, faults, marks, outputs, read, unfit, untimed, written

MOST_BYTES = 120_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_shows_what_is_saved(path):
    assert faults(path) == []
    assert path.stat().st_size < MOST_BYTES


def test_they_are_in_the_form_of_notebooks():
    assert [path.stem for path in NOTEBOOKS] == [
        "1_all_reduce", "2_the_stages", "3_your_own_collective", "4_which_stage"]
    for path in NOTEBOOKS:
        found = read(path)
        assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
        assert len({cell["id"] for cell in found["cells"]}) == len(found["cells"])
        assert written(found) == path.read_text(encoding="utf-8")


def notebook(*sources):
    cell = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    cells = [cell | {"id": str(number), "source": [source]} for number, source in enumerate(sources)]
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def saved(folder, *sources):
    path = folder / "mine.ipynb"
    found = notebooks.run(notebook(*sources))
    path.write_text(written(found))
    return path, found


def test_another_output_is_seen(tmp_path):
    path, found = saved(tmp_path, "x = 2", "print(x)\nx + 1")
    assert faults(path) == []
    for cell, output, key, value in [(1, 0, "text", ["3\n"]), (1, 1, "data", {"text/plain": ["4"]})]:
        changed = copy.deepcopy(found)
        changed["cells"][cell]["outputs"][output][key] = value
        path.write_text(written(changed))
        assert faults(path) == ["cell 2 shows something else than is saved"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_anywhere(path):
    """The first cell says how to install the package, no other cell needs an extra, and none names a file."""
    first, *others = ["".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == "code"]
    with pytest.raises(SystemExit, match=r"has no zerosim; .* in a clone .*: pip install '\.(\[report\])?'$"):
        outputs(first.replace('"zerosim"', '"no_such_package"'), {}, 1)
    assert [cell for cell in others if "hypothesis" in cell or "zerosim.testing" in cell or "../" in cell] == []


def test_a_relative_path_is_not_found(tmp_path, monkeypatch):
    (tmp_path / "here.txt").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError):
        saved(tmp_path, 'open("here.txt")')


def test_a_cell_that_raises_is_no_output(tmp_path):
    with pytest.raises(ZeroDivisionError):
        saved(tmp_path, "1 / 0")


def test_cells_share_names_and_the_last_line_is_shown():
    names = {}
    assert outputs("import math\nroot = math.sqrt(4)", names, 1) == []
    (shown,) = outputs("root", names, 2)
    assert shown["data"] == {"text/plain": ["2.0"]}


DRAWN = """
class Drawn:
    def _repr_mimebundle_(self):
        return {FORM: WORDS}
Drawn()
"""


@pytest.mark.parametrize(("form", "text", "fault"), [
    ("image/svg+xml", "<svg><path>", "cell 1: no SVG: "),
    ("image/svg+xml", "<svg/>", "cell 1: an empty picture"),
    ("image/svg+xml", '<svg><path/><image href="https://a.example"/></svg>', "cell 1: image/svg+xml fetches something"),
    ("text/html", '<script src="//a.example/x.js"></script>', "cell 1: text/html fetches something"),
    ("text/html", '<img src="data:image/png;base64,">', ""),
])
def test_what_cannot_be_drawn_is_seen(tmp_path, form, text, fault):
    path, _ = saved(tmp_path, DRAWN.replace("FORM", repr(form)).replace("WORDS", repr(text)))
    assert "".join(faults(path))[:len(fault) or None] == fault


def picture_of_time():
    (found,) = [output for cell in read(NOTEBOOKS[1])["cells"] for output in cell.get("outputs", [])
                if any("collectives_marks" in line for line in output.get("data", {}).get("image/svg+xml", []))]
    return found


def changed_picture(before, after):
    found = copy.deepcopy(picture_of_time())
    svg = "".join(found["data"]["image/svg+xml"])
    assert before in svg
    found["data"]["image/svg+xml"] = [svg.replace(before, after, 1)]
    return found


def test_of_a_picture_of_time_only_times_may_differ():
    found = picture_of_time()
    assert sum(marks("".join(found["data"]["image/svg+xml"])).values()) > 100
    assert untimed(changed_picture("</text>", "9</text>")) == untimed(found)
    assert untimed(changed_picture('fill="#2f6fb5"', 'fill="#2f6fb6"')) != untimed(found)
    assert untimed(changed_picture("spans_marks", "wait_marks")) != untimed(found)


def test_digests_are_those_of_a_machine_and_the_rest_is_not():
    words = {"output_type": "stream", "text": ["SHA-256\n", "c4237abcf456...\n"]}
    assert untimed(words) == untimed(words | {"text": ["SHA-256\n", "0123456789ab...\n"]})
    assert untimed(words) != untimed(words | {"text": ["SHA-257\n", "c4237abcf456...\n"]})
    assert list(unfit(words)) == []
