"""Every picture of the documents is what its command makes, and a document shows it."""

import re
from pathlib import Path

import pytest

from tests.documents import pictures
from tests.documents.pictures import ROOT
from tests.sampling import one_in
from zerosim.commands.report import run_in

NAMES = pictures.pictures()

@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of the run whose bytes are drawn."""
    folder = tmp_path_factory.mktemp("runs")
    pictures.make(pictures.runs()["build/pictures/compare.json"], ("build/pictures", str(folder)))
    return folder


def differs(name, runs, folder):
    """Whether a picture is not what its command makes."""
    words = [word.replace("build/pictures", str(runs)) for word in NAMES[name]]
    pictures.make(words, (f"docs/pictures/{name}", str(folder / name)))
    return (folder / name).read_bytes() != (ROOT / "docs/pictures" / name).read_bytes()


@pytest.mark.parametrize("name", one_in(3, NAMES))
def test_a_picture_is_what_its_command_makes(name, runs, tmp_path):
    assert not differs(name, runs, tmp_path)


def test_no_picture_has_measured_times():
    """Times of a run are others each time and on each machine; those of a plan are not."""
    drawn = [words for words in NAMES.values() if any(re.match("(step|memory)-", word) for word in words)]
    assert {words[1] for words in drawn} == {"plan"}


def test_a_picture_of_another_command_is_seen(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(NAMES, "ring_all_gather.svg", [
        word.replace("ring.all_gather", "bruck.all_gather") for word in NAMES["ring_all_gather.svg"]])
    assert differs("ring_all_gather.svg", runs, tmp_path)


def test_every_picture_has_a_command_and_is_shown_and_small():
    assert {path.name for path in ROOT.glob("docs/**/*.svg")} == {*NAMES}
    documents = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    shown = {Path(target).name for page in documents for target in re.findall(r"!\[[^]]+\]\(([^)]+)\)",
                                                                              page.read_text())}
    assert shown == {*NAMES}
    assert [name for name in NAMES if (ROOT / "docs/pictures" / name).stat().st_size > 90_000] == []


def test_pictures_bring_their_own_ground_or_are_of_middle_tone():
    for name in NAMES:
        text = (ROOT / "docs/pictures" / name).read_text()
        assert re.search(r'<rect width="\d+" height="\d+" fill="white"/>', text) or "text{font:12px" in text, name


def test_the_table_of_the_readme_has_the_figures_of_the_run(runs):
    """Whatever other columns it has; peaks under MPI have copies of messages, so they are not the same each time."""
    rows = {row.name: row for row in run_in(str(runs / "compare.json")).rows}
    text = (ROOT / "README.md").read_text()
    for name, row in rows.items():
        (line,) = re.findall(rf"^{name}  .*yes.*$", text, re.MULTILINE)
        kept = sum(row.fullest.resting_bytes.values())
        assert {f"{kept / 1e3:.1f}", f"{row.most('sent_bytes') / 1e3:.1f}"} <= {*line.split()}
