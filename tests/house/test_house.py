"""The house: examples in docstrings run, `import zerosim` starts nothing, the budget and the layers can fail.

`make lint` holds the directions of imports (import-linter reads them in setup.cfg) and the budget of lines.
"""

import doctest
import importlib
import pkgutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import zerosim
from tests.house import budget, quick

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
    code = ("import sys; from zerosim.worlds import launcher, mpi; launcher.launched(); "
            "sys.exit('mpi4py.MPI' in sys.modules or 'rich' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("most", "code"), [(12, 0), (11, 1)])
def test_a_package_above_its_budget_is_named(most, code, tmp_path, capsys):
    (tmp_path / "zerosim" / "core").mkdir(parents=True)
    (tmp_path / "zerosim" / "core" / "ring.py").write_text("step = 1\n" * 11)
    (tmp_path / "zerosim" / "loose.py").write_text("step = 1\n")
    (tmp_path / "setup.cfg").write_text(f"[budget]\nzerosim = {most}\n")
    assert budget.lines_by_folder(tmp_path / "zerosim") == {"core": 11, ".": 1}
    assert budget.main(tmp_path) == code
    assert ("above its budget" in capsys.readouterr().out) == bool(code)


def test_quick_runs_what_is_nearest_first():
    chosen = quick.tests_of([Path("zerosim/stages/square_sums.py"), Path("tests/plan/test_plans.py")])
    assert chosen[0] == f"{quick.EXAMPLES}[zerosim.stages.square_sums]"
    assert chosen.index("tests/stages/test_pipeline.py") < chosen.index("tests/stages/test_update.py")
    assert not [name for name in chosen if name.startswith("tests/verdict")]


@pytest.mark.parametrize(("body", "seconds", "code"), [
    ("assert False", 300, 1), ("assert", 300, 1), ("time.sleep(300)", 1, 0), ("assert True", 300, 0)])
def test_quick_notices_a_failure_and_stops(body, seconds, code, tmp_path):
    (tmp_path / "test_it.py").write_text(f"import time\n\n\ndef test_it():\n    {body}\n")
    assert quick.answer([str(tmp_path / "test_it.py")], seconds) == code
