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
from tests.walks import walks

ROOT = Path(zerosim.__file__).parent
GROUND = {"allocation", "comm", "errors", "files", "sharding", "words"}
MAY_IMPORT = {
    "allocation": set(),
    "errors": set(),
    "words": set(),
    "comm": {"errors"},
    "files": {"errors"},
    "sharding": {"comm"},
    "autograd": GROUND,
    "payloads": GROUND,
    "parts": GROUND,
    "shipped": GROUND,
    "numerics": GROUND | {"parts"},
    "worlds": GROUND,
    "models": GROUND | {"autograd", "parts"},
    "collectives": GROUND | {"numerics", "parts"},
    "optim": GROUND | {"models", "numerics", "parts"},
    "reference": GROUND | {"autograd", "models", "numerics", "optim"},
    "places": GROUND | {"models", "numerics"},
    "stages": GROUND | {"autograd", "collectives", "models", "numerics", "optim", "parts"},
    "extend": GROUND | {"autograd", "collectives", "models", "numerics", "optim", "stages"},
    "scenario": GROUND | {"autograd", "collectives", "models", "numerics", "optim", "parts", "shipped", "stages"},
    "data": GROUND | {"models", "parts", "scenario"},
    "instruments": GROUND | {"scenario", "worlds"},
    "teach.proofs": GROUND | {"collectives", "instruments", "numerics", "parts", "payloads", "scenario", "worlds"},
    "training": GROUND | {"autograd", "collectives", "data", "instruments", "models", "numerics", "optim",
                          "payloads", "places", "reference", "scenario", "stages", "worlds"},
    "testing": GROUND | {"collectives", "instruments", "numerics", "payloads", "teach.proofs", "worlds"},
    "checkpoint": GROUND | {"models", "numerics", "scenario", "stages", "training"},
    "figures": GROUND | {"autograd", "collectives", "instruments", "models", "numerics", "optim", "payloads",
                         "scenario", "stages", "training"},
    "verdict": GROUND | {"figures", "instruments", "models", "payloads", "reference", "scenario", "stages",
                         "training", "worlds"},
    "show": GROUND | {"autograd", "collectives", "figures", "instruments", "numerics", "optim",
                      "payloads", "scenario", "stages", "teach.proofs", "training", "verdict"},
    "plan": GROUND | {"autograd", "collectives", "data", "figures", "instruments", "models", "numerics", "optim",
                      "parts", "payloads", "scenario", "show", "stages", "training", "worlds"},
    "torch": GROUND | {"collectives", "instruments", "scenario", "show", "worlds"},
    "commands.benches": GROUND | {"collectives", "data", "figures", "instruments", "models", "optim", "plan",
                                  "scenario", "show", "stages", "teach.proofs", "training", "worlds"},
    "teach.grading": GROUND | {"collectives", "data", "figures", "instruments", "models", "numerics",
                               "optim", "parts", "payloads", "plan", "scenario", "show", "stages", "teach.proofs",
                               "testing", "training", "verdict", "worlds"},
    "jobs": GROUND | {"autograd", "checkpoint", "collectives", "data", "parts", "scenario", "show", "stages",
                      "teach.grading", "teach.proofs", "training", "verdict", "worlds"},
    "show.notebook": GROUND | {"collectives", "jobs", "parts", "scenario", "show", "stages", "teach.proofs", "training",
                               "verdict", "worlds"},
    "teach": GROUND | {"collectives", "jobs", "parts", "plan", "shipped", "show", "teach.grading", "teach.proofs"},
    "commands": GROUND | {"autograd", "checkpoint", "collectives", "commands.benches", "figures", "instruments",
                          "jobs", "models", "optim", "parts", "plan", "scenario", "shipped", "show",
                          "stages", "teach", "teach.grading", "teach.proofs", "torch", "training", "verdict", "worlds"},
    "cli": GROUND | {"commands", "worlds"},
    "__main__": {"cli"},
}
"""What each folder, and each loose file, may import of the house."""


ROOMS_WITHIN = {"show.notebook", "teach.grading", "teach.proofs", "commands.benches"}
"""Folders within a wing that have permissions of their own."""
HEADS = {ROOT / wing / "__init__.py" for wing in ("show", "plan", "teach")}
"""The pages at the heads of wings: functions of `zerosim`, which import the rest when they are called."""


def room(name: str) -> str:
    """The folder of a dotted name below `zerosim`."""
    first, *rest = name.split(".")
    within = f"{first}.{rest[0]}" if rest else first
    return within if within in ROOMS_WITHIN else first


def room_of(path: Path) -> str:
    return room(".".join(path.relative_to(ROOT).with_suffix("").parts))


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
    path for path in ROOT.rglob("*.py")
    if path not in {ROOT / "__init__.py", *HEADS} and (path.parent / "__init__.py").exists())


def faults(path: Path, names: list[str]) -> list[str]:
    """The imports among `names` that `path` may not have."""
    mine = room_of(path)
    rooms = [room(name.removeprefix("zerosim.")) for name in names if name.startswith("zerosim.")]
    return [other for other in rooms if other not in {mine, *MAY_IMPORT[mine]}]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_folder_imports_what_it_may(path):
    assert faults(path, imports(path)) == []


def test_what_may_not_be_imported_is_seen():
    assert faults(ROOT / "collectives" / "ring.py", ["zerosim.worlds.mpi.connect"]) == ["worlds"]
    assert faults(ROOT / "worlds" / "local.py", ["zerosim.stages.STAGES"]) == ["stages"]


def test_imports_run_one_way():
    assert set(TopologicalSorter(MAY_IMPORT).static_order()) == set(MAY_IMPORT)


def test_the_machine_imports_no_wing():
    wings = {room for room in MAY_IMPORT if room.split(".")[0] in {
        "show", "teach", "plan", "torch", "testing", "commands", "jobs", "cli", "__main__"}}
    assert {room: allowed & wings for room, allowed in MAY_IMPORT.items() if room not in wings} == {
        room: set() for room in MAY_IMPORT if room not in wings}


def test_every_permission_is_used():
    used = {room: set() for room in MAY_IMPORT}
    for path in FILES:
        used[room_of(path)] |= {
            room(name.removeprefix("zerosim.")) for name in imports(path) if name.startswith("zerosim.")}
    assert {room: allowed - GROUND - used[room] for room, allowed in MAY_IMPORT.items()} == {
        room: set() for room in MAY_IMPORT}


def test_only_the_mpi_world_imports_mpi4py():
    importers = [
        str(path.relative_to(ROOT))
        for path in FILES
        if any(name.split(".")[0] == "mpi4py" for name in imports(path))
    ]
    assert importers == [
        "worlds/mpi.py", "worlds/mpi_communicator.py", "worlds/mpi_start.py",
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


def test_a_file_is_a_short_walk_from_its_run_and_a_measurement_from_its_verdict():
    (stays, returns), (stays_to_the_verdict, returns_to_the_verdict) = walks("compare")
    assert stays <= 52
    assert returns <= 24
    assert stays_to_the_verdict <= 40
    assert returns_to_the_verdict <= 23


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
