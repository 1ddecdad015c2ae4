"""The house: a folder imports what it may, algorithms import no transport, docstrings' examples run."""

import ast
import doctest
import importlib
import pkgutil
import subprocess
import sys
import warnings
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import zerosim

ROOT = Path(zerosim.__file__).parent
GROUND = {"allocation", "comm", "errors", "files", "sharding", "words"}
MAY_IMPORT = {
    "errors": set(), "allocation": set(), "comm": {"errors"}, "files": {"errors"}, "sharding": {"comm"},
    "words": set(),
    "payloads": GROUND,
    "parts": GROUND,
    "numerics": GROUND,
    "collectives": GROUND | {"numerics", "parts"},
    "autograd": GROUND,
    "models": GROUND | {"autograd", "parts"},
    "optim": GROUND | {"models", "numerics", "parts"},
    "worlds": GROUND,
    "instruments": GROUND | {"scenario", "worlds"},
    "course": GROUND,
    "scenario": GROUND | {"autograd", "collectives", "course", "models", "numerics", "optim", "parts", "stages"},
    "data": GROUND | {"models", "parts", "scenario"},
    "stages": GROUND | {"autograd", "collectives", "models", "numerics", "optim", "parts"},
    "reference": {"allocation", "sharding", "autograd", "models", "numerics", "optim"},
    "proofs": GROUND | {"collectives", "instruments", "numerics", "parts", "payloads", "worlds"},
    "testing": GROUND | {"collectives", "instruments", "numerics", "payloads", "proofs", "worlds"},
    "training": GROUND | {"autograd", "collectives", "data", "instruments", "models", "numerics", "optim", "reference",
                          "scenario", "stages", "worlds"},
    "checkpoint": GROUND | {"models", "numerics", "parts", "scenario", "stages", "training", "worlds"},
    "formulas": GROUND | {"autograd", "collectives", "instruments", "models", "numerics", "optim", "payloads",
                          "scenario", "stages", "training"},
    "planner": GROUND | {"autograd", "collectives", "data", "formulas", "instruments", "models", "numerics", "optim",
                         "payloads", "scenario", "stages", "training", "worlds"},
    "verdict": GROUND | {"collectives", "formulas", "instruments", "models", "payloads", "proofs", "reference",
                         "scenario", "stages", "training", "worlds"},
    "bench": GROUND | {"checkpoint", "collectives", "data", "instruments", "models", "numerics", "optim", "payloads",
                       "planner", "proofs", "scenario", "stages", "testing", "training", "worlds"},
    "report": GROUND | {"bench", "checkpoint", "collectives", "formulas", "instruments", "numerics", "optim",
                        "payloads", "planner", "proofs", "scenario", "stages", "training", "verdict"},
    "grading": GROUND | {"autograd", "collectives", "data", "instruments", "models", "numerics", "optim", "parts",
                         "payloads", "planner", "proofs", "report", "scenario", "stages", "testing", "training",
                         "verdict", "worlds"},
    "torch": GROUND | {"collectives", "instruments", "report", "scenario", "worlds"},
    "jobs": GROUND | {"checkpoint", "collectives", "data", "grading", "parts", "proofs", "report", "scenario",
                      "stages", "training", "verdict", "worlds"},
    "commands": GROUND | {"autograd", "bench", "checkpoint", "collectives", "course", "formulas", "grading",
                          "instruments", "jobs", "models", "optim", "parts", "planner", "proofs", "report", "scenario",
                          "stages", "torch", "training", "verdict", "worlds"},
    "notebook": GROUND | {"autograd", "collectives", "grading", "jobs", "models", "optim", "parts", "planner",
                          "proofs", "report", "scenario", "stages", "training", "verdict", "worlds"},
    "cli": GROUND | {"commands", "worlds"},
    "extend": {"autograd", "collectives", "comm", "models", "optim", "stages"},
    "__main__": {"cli"},
}
"""What each folder, and each loose file, may import of the house."""


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


FILES = sorted(
    path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py" and (path.parent / "__init__.py").exists())


def faults(path: Path, names: list[str]) -> list[str]:
    """The imports among `names` that `path` may not have."""
    room = room_of(path)
    rooms = [name.split(".")[1] for name in names if name.startswith("zerosim.")]
    return [other for other in rooms if other not in {room, *MAY_IMPORT[room]}]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_folder_imports_what_it_may(path):
    assert faults(path, imports(path)) == []


def test_what_may_not_be_imported_is_seen():
    assert faults(ROOT / "collectives" / "ring.py", ["zerosim.worlds.mpi.connect"]) == ["worlds"]
    assert faults(ROOT / "worlds" / "local.py", ["zerosim.stages.STAGES"]) == ["stages"]


def test_imports_run_one_way():
    assert set(TopologicalSorter(MAY_IMPORT).static_order()) == set(MAY_IMPORT)


def test_every_permission_is_used():
    used = {room: set() for room in MAY_IMPORT}
    for path in FILES:
        used[room_of(path)] |= {name.split(".")[1] for name in imports(path) if name.startswith("zerosim.")}
    assert {room: allowed - GROUND - used[room] for room, allowed in MAY_IMPORT.items()} == {
        room: set() for room in MAY_IMPORT}


def test_only_the_mpi_world_imports_mpi4py():
    importers = [
        str(path.relative_to(ROOT))
        for path in FILES
        if any(name.split(".")[0] == "mpi4py" for name in imports(path))
    ]
    assert importers == [
        "worlds/mpi.py", "worlds/mpi_communicator.py", "worlds/mpi_mail.py", "worlds/mpi_messages.py",
        "worlds/mpi_shared.py", "worlds/mpi_start.py",
    ]


def test_only_one_folder_imports_torch():
    importers = {room_of(path) for path in FILES for name in imports(path) if name.split(".")[0] == "torch"}
    assert importers == {"torch", "commands"}  # the command asks whether it is there


def test_the_reference_shares_no_collective_stage_or_world():
    names = {name.split(".")[1] for name in imports(ROOT / "reference.py") if "zerosim" in name}
    assert not names & {"collectives", "stages", "worlds", "comm", "instruments"}


def test_importing_zerosim_starts_no_mpi():
    code = "import sys, zerosim; sys.exit('mpi4py.MPI' in sys.modules or 'rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


MODULES = [
    module.name
    for module in pkgutil.walk_packages(zerosim.__path__, "zerosim.")
    if module.name != "zerosim.__main__"
]


@pytest.mark.parametrize("name", ["zerosim", *MODULES])
def test_examples_in_docstrings_run(name):
    if name.startswith("zerosim.torch"):
        pytest.importorskip("torch", reason="the examples of zerosim.torch run where PyTorch is installed")
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
    if name == "zerosim.worlds.mpi":
        pytest.skip("run by test_mpi_world, in a process that may start MPI")
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0
