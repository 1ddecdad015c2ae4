"""The notebooks run, each cell gives the forms that are saved, and nothing in them is fetched.

They run without Jupyter: a cell is Python, compiled and run, and its last expression is asked for its forms.
`make docs` saves what cells show; figures and pictures may change with the package.
"""

import copy

import pytest

from tests.documents import notebooks
from tests.documents.notebooks import NOTEBOOKS, faults, outputs, read, written
from tests.sampling import long_if, takes_long

MOST_BYTES = 160_000


@pytest.mark.parametrize("path", long_if(takes_long, NOTEBOOKS), ids=lambda path: path.name)
def test_a_notebook_runs_and_shows_the_forms_that_are_saved(path):
    assert faults(path) == []
    assert path.stat().st_size < MOST_BYTES
    assert written(read(path)) == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_anywhere(path):
    """The first cell says how to install the package, no other cell needs an extra, and none names a file."""
    first, *others = ["".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == "code"]
    with pytest.raises(SystemExit, match=r"has no zerosim; .* in a clone .*: pip install '\.(\[report\])?'$"):
        outputs(first.replace('"zerosim"', '"no_such_package"'), {}, 1)
    assert [cell for cell in others if "hypothesis" in cell or "zerosim.testing" in cell or "../" in cell] == []


def saved(folder, *sources):
    cell = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    cells = [cell | {"id": str(number), "source": [source]} for number, source in enumerate(sources)]
    found = notebooks.run({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    path = folder / "mine.ipynb"
    path.write_text(written(found))
    return path, found


def test_other_forms_and_a_missing_output_are_seen(tmp_path):
    path, found = saved(tmp_path, "x = 2", "print(x)\nx + 1")
    assert faults(path) == []
    for spoil in (lambda outputs: outputs.pop(), lambda outputs: outputs[1]["data"].update({"text/html": ["4"]})):
        changed = copy.deepcopy(found)
        spoil(changed["cells"][1]["outputs"])
        path.write_text(written(changed))
        assert faults(path) == ["cell 2 shows other forms than are saved"]


def test_a_cell_that_raises_or_reads_a_file_beside_it_is_seen(tmp_path, monkeypatch):
    with pytest.raises(ZeroDivisionError):
        saved(tmp_path, "1 / 0")
    (tmp_path / "here.txt").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError):
        saved(tmp_path, 'open("here.txt")')
