"""The house: examples in docstrings run, `import zerosim` starts nothing, the budget and the layers can fail.

`make lint` holds the directions of imports (import-linter reads them in setup.cfg) and the budget of lines.
"""

import doctest
import importlib
import pkgutil
import subprocess
import sys
import warnings

import pytest

import zerosim
from tests.house import budget

MODULES = [module.name for module in pkgutil.walk_packages(zerosim.__path__, "zerosim.")
           if module.name != "zerosim.__main__"]


@pytest.mark.parametrize("name", ["zerosim", *MODULES])
def test_examples_in_docstrings_run(name):
    if name.startswith("zerosim.torch"):
        pytest.importorskip("torch", reason="the examples of zerosim.torch run where PyTorch is installed")
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
    if name == "zerosim.worlds.mpi":
        pytest.skip("run by test_mpi_world, in a process that may start MPI")
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_importing_zerosim_starts_no_mpi():
    code = "import sys, zerosim; sys.exit('mpi4py.MPI' in sys.modules or 'rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_folder_above_its_budget_is_named(tmp_path):
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "ring.py").write_text("step = 1\n" * 11)
    (tmp_path / "loose.py").write_text("step = 1\n")
    limits = {"core": 10, ".": 1, "": 100}
    assert budget.lines_by_folder(tmp_path) == {"core": 11, ".": 1}
    assert budget.excesses("zerosim", {"core": 11, ".": 1}, limits) == ["zerosim/core has 11 lines, its budget 10"]
    unlisted = {"core": 10, ".": 1, "new": 5}
    assert budget.excesses("zerosim", unlisted, limits) == ["zerosim/new has 5 lines and no budget"]
    assert budget.excesses("zerosim", {"core": 10, ".": 1}, limits | {"": 5}) == ["zerosim has 11 lines, its budget 5"]
