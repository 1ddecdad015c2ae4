"""The house: imports run only upward, algorithms import no transport, docstrings' examples run."""

import ast
import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import zerosim

ROOT = Path(zerosim.__file__).parent
FLOORS = [
    ["errors"],
    ["allocation", "sharding"],
    ["comm", "fixed_point", "extent"],
    ["orders", "terms"],
    ["collectives"],
    ["autograd", "precision", "scaling"],
    ["model", "optim"],
    ["updating"],
    ["stages"],
    ["reference", "fingerprints"],
    ["worlds"],
    ["instruments"],
    ["subject"],
    ["proof"],
    ["testing"],
    ["scenario", "data"],
    ["recipe"],
    ["verdict", "plan", "bring_home"],
    ["outcome"],
    ["run", "carry"],
    ["bench"],
    ["report"],
    ["grading"],
    ["commands"],
    ["cli"],
    ["__main__"],
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def faults(path: Path, names: list[str]) -> list[str]:
    """The imports among `names` that do not run upward from `path`."""
    room = room_of(path)
    rooms = [name.split(".")[1] for name in names if name.startswith("zerosim.")]
    return [
        other for other in rooms if other != room and FLOOR_OF[other] >= FLOOR_OF[room]
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_only_upward(path):
    assert faults(path, imports(path)) == []


def test_a_downward_import_is_seen():
    assert faults(ROOT / "collectives" / "ring.py", ["zerosim.worlds.mpi.connect"]) == ["worlds"]


def test_only_one_module_imports_mpi4py():
    importers = [
        str(path.relative_to(ROOT))
        for path in FILES
        if any(name.split(".")[0] == "mpi4py" for name in imports(path))
    ]
    assert importers == ["worlds/mpi.py"]


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
    if name == "zerosim.worlds.mpi":
        pytest.skip("run by test_mpi_world, in a process that may start MPI")
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0
