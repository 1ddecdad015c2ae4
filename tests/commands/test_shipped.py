"""What comes with the package: found by name, listed, and no command needs MPI or an extra to say what it lacks."""

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.links import dead_links
from zerosim.commands.cli import main
from zerosim.core.errors import UsageError
from zerosim.core.words import plural
from zerosim.scenario import load, shipped

ROOT = Path(__file__).parents[2]


def test_every_scenario_has_a_name_of_its_own():
    """Examples of parts of one's own are folders, which are run by their path."""
    files = [path for path in ROOT.glob("scenarios/**/*.toml") if "examples" not in path.parts]
    assert sorted(path.read_bytes() for path in shipped.scenarios().values()) == sorted(map(Path.read_bytes, files))


def test_scenarios_are_listed_with_their_titles(capsys):
    assert main(["scenarios"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    for name, path in shipped.scenarios().items():
        scenario = load(path)
        assert scenario.title
        assert f"{name}, {plural(scenario.world.ranks, 'rank')} {scenario.title}" in words


def test_a_scenario_runs_by_name_anywhere_but_a_file_goes_before_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "reduce_scatter_slides"]) == 0
    (tmp_path / "zero3").mkdir()
    assert shipped.scenario_file("zero3").endswith("/zero3.toml"), "a folder is no scenario"
    (tmp_path / "zero1").write_text("titel = 1\n")
    assert main(["run", "zero1"]) == 2
    assert capsys.readouterr().err.startswith("zero1:1:1: unknown key 'titel'")


@pytest.mark.parametrize("command", [["run", "zer3"], ["plan", "scenarios/zero3.tml"]])
def test_a_near_name_is_suggested(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(command) == 2
    assert capsys.readouterr().err.endswith("or one that zerosim scenarios lists; did you mean 'zero3'?\n")


def test_nothing_is_overwritten(tmp_path):
    source, (first, second) = tmp_path / "source", (tmp_path / "a", tmp_path / "b")
    source.write_text("text")
    second.write_text("mine")
    with pytest.raises(UsageError, match="b exists already"):
        shipped.copy_out([(source, first), (source, second)])
    assert not first.exists()
    assert second.read_text() == "mine"


WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
from zerosim.commands.cli import main
for number, words in enumerate({commands}):
    sys.argv[1:] = words
    try:
        code = main(words)
    except SystemExit as ended:
        code = ended.code
    sys.stdout.flush()
    print("-----", number, code, flush=True)
    print("-----", file=sys.stderr, flush=True)
"""

EXTRAS = ("mpi4py", "vl_convert", "jinja2", "hypothesis")
RING = "from zerosim.collectives.ring import all_gather\n"


def test_no_command_ends_in_a_traceback_where_an_extra_is_missing(tmp_path):
    (tmp_path / "ring.py").write_text(RING)
    (tmp_path / "outcome.json").write_text("{}")
    commands = {
        "run zero1 --set train.steps=1 --set check.test_accuracy=0 --json out.json --progress none": (0, ""),
        "run zero1 --report page.html": (2, "pip install jinja2 vl-convert-python"),
        "report outcome.json --html page.html": (2, "outcome.json"),
        "scenarios": (0, ""),
        "show ring.all_reduce --svg picture.svg": (0, ""),
        "show ring.all_reduce --html page.html": (2, "pip install jinja2 vl-convert-python"),
        "show --list": (0, ""),
        "prove ring.py:all_gather": (0, ""),
        "exercises here": (0, ""),
        "lessons": (0, ""),
        "check here/2_tree.py": (1, ""),
        "memory --parameters 1e9 --ranks 8": (0, ""),
        "plan zero3 --set train.steps=1": (0, ""),
        "--version": (0, ""),
        "": (2, "zerosim --help"),
    }
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PMI", "OMPI"))}
    program = WITHOUT.format(absent=EXTRAS, commands=[words.split() for words in commands])
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, text=True, capture_output=True, check=False, timeout=120,
        env=environment | {"PYTHONPATH": str(ROOT), "PATH": str(tmp_path)})
    assert "Traceback" not in done.stderr + done.stdout
    said = done.stderr.split("-----\n")
    codes = [int(line.split()[2]) for line in done.stdout.splitlines() if line.startswith("-----")]
    assert len(codes) == len(commands)
    for (words, (code, part)), ended, text in zip(commands.items(), codes, said, strict=False):
        assert (words, ended, part in text) == (words, code, True), text


@pytest.mark.parametrize("absent", [("mpi4py",), ("mpi4py.MPI",)])
def test_connecting_without_mpi_is_one_line(absent, tmp_path):
    program = WITHOUT.partition("from zerosim")[0].format(absent=absent).replace('.partition(".")[0]', "")
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport zerosim\nzerosim.connect()"], cwd=ROOT, text=True,
        capture_output=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("zerosim: mpi4py ")
    assert done.stderr.count("\n") == 1
    assert "pip install" in done.stderr


def test_every_file_of_the_package_is_installed():
    """A pattern takes along each file that is no module, and all that lessons, exercises and scenarios consist of."""
    read = configparser.ConfigParser()
    read.read(ROOT / "setup.cfg")
    taken = {path for room, names in read["options.package_data"].items() for name in re.split(r"[,\s]+", names) if name
             for path in ROOT.joinpath(*room.split(".")).glob(name)}
    house = Path(shipped.__file__).parent
    needed = [path for path in (ROOT / "zerosim").rglob("*") if path.suffix != ".py"]
    needed += [path for part in ("scenarios", "docs/lessons", "docs/exercises") for path in (house / part).rglob("*")]
    missing = {path for path in needed if path.is_file() and "__pycache__" not in path.parts} - taken
    assert missing == set()
    assert {ROOT / "zerosim/show/page.html", *shipped.lessons(), *shipped.scenarios().values()} <= taken


def test_what_an_installation_compiles_beside_the_lessons_is_not_copied(tmp_path, monkeypatch):
    (tmp_path / "docs" / "lessons" / "__pycache__").mkdir(parents=True)
    (tmp_path / "docs" / "lessons" / "broken.py").touch()
    monkeypatch.setattr(shipped, "HERE", tmp_path)
    assert list(shipped.material().values()) == [Path("lessons", "broken.py")]


def test_exercises_and_lessons_are_copied_out(tmp_path, capsys):
    mine = tmp_path / "mine"
    assert main(["exercises", str(mine)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == f"    zerosim check {mine / '1_ring.py'}"
    assert main(["run", str(mine / "scenarios" / "unsafe_sends.toml")]) == 3, "what it needs beside it was copied too"
    assert main(["exercises", str(mine)]) == 2
    assert "exists already" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["lessons", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.endswith("; name a folder that can be written to\n")
    assert main(["lessons"]) == 0
    listed = capsys.readouterr().out
    assert all(str(path) in listed for path in shipped.lessons())
    assert main(["lessons", str(tmp_path / "read")]) == 0
    for page in (tmp_path / "read").glob("lessons/*.md"):
        pictures = re.findall(r"\]\((\.\./pictures/[^)]+)\)", page.read_text())
        assert [picture for picture in pictures if not (page.parent / picture).exists()] == []


def test_every_exercise_is_listed_and_solved():
    """Its solutions are in a table of names or in a file of functions."""
    folder = ROOT / "docs" / "exercises"
    listed, solved = (folder / "README.md").read_text(), "".join(
        path.read_text() for path in (ROOT / "tests" / "proofs").glob("*.py"))
    for skeleton in sorted(folder.glob("[0-9]*.py")):
        names = re.findall(r"^def (\w+)\((?:(?!\ndef ).)*?raise NotImplementedError", skeleton.read_text(), re.M | re.S)
        assert names
        assert f"({skeleton.name})" in listed
        assert [name for name in names if not re.search(rf'"{name}": |^def {name}\(', solved, re.MULTILINE)] == []


def test_links_of_copied_pages_lead_to_copies_or_into_the_package(tmp_path, capsys):
    for command in ("lessons", "exercises"):
        assert main([command, str(tmp_path / command)]) == 0
    pages = [*tmp_path.rglob("*.md")]
    assert {page.name: dead for page in pages if (dead := dead_links(page, page.read_text()))} == {}
    lesson = (tmp_path / "lessons/lessons/2_zero.md").read_text()
    assert "](1_all_reduce.md)" in lesson
    assert re.search(r"\]\(/\S+/zerosim/stages/zero3\.py\)", lesson)
    source = shipped.HERE / "docs/README.md"
    assert shipped.relinked("[a](no.md) [`[[b]]`](use.md#x) ![c](no.svg)", source, Path("out/README.md"),
                            {"docs/use.md": Path("out/use.md")}) == "a [`[[b]]`](use.md#x) ![c](no.svg)"
