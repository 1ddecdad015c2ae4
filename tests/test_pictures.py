"""Every picture of the repository is what its command makes, and someone sees it."""

import json
import re
import shlex
import shutil
from itertools import pairwise

import pytest

from tests import pictures
from tests.pictures import ROOT, TABLES, faults, records
from zerosim.proofs import pages
from zerosim.scenario import load, resolved
from zerosim.show import run
from zerosim.show.notebook import compared
from zerosim.show.run_document import runs_of


def test_every_picture_is_what_its_command_makes(tmp_path):
    assert faults(tmp_path) == []


def test_every_picture_is_shown_somewhere():
    documents = [ROOT / "README.md", *ROOT.glob("docs/lessons/*.md")]
    shown = {str((page.parent / target).resolve().relative_to(ROOT))
             for page in documents for target in re.findall(r"!\[[^]]+\]\(([^)]+)\)", page.read_text())}
    assert shown == set(pictures.pictures())


def test_pictures_bring_their_own_ground_or_are_of_middle_tone():
    for name in pictures.pictures():
        text = (ROOT / name).read_text()
        assert re.search(r'<rect width="\d+" height="\d+" fill="white"/>', text) or "text{font:12px" in text, name


SIZE = re.compile(r"font(?:-size)?[:=]\"?([\d.]+)")


def illegible(text):
    """The sizes of text in a picture that are below 16 pixels on a projector, on the page of a lesson."""
    zoom = float(re.search(r"\.projector { zoom: ([\d.]+) }", pages.STYLE)[1])
    assert SIZE.search(text)
    return [size for size in map(float, SIZE.findall(text)) if zoom * size < 16]


def test_a_projected_picture_can_be_read_from_the_last_row():
    assert [name for name in pictures.pictures() if illegible((ROOT / name).read_text())] == []
    assert illegible('<text font-size="9px">a</text><style>text{font:7.5px serif}</style>') == [7.5]


@pytest.fixture
def copied(tmp_path):
    """A repository with two pictures, both as they should be."""
    folder = tmp_path / "copy" / "docs" / "pictures"
    folder.mkdir(parents=True)
    kept = ("ring_all_reduce.svg", "kept.svg")
    lines = (ROOT / TABLES).read_text().splitlines()
    of_these = [line for line in lines if line.startswith(tuple(f"| [{name}]" for name in kept))]
    (folder / "README.md").write_text("\n".join(of_these))
    for name in (*kept, "compare.json"):
        shutil.copy(ROOT / "docs" / "pictures" / name, folder)
    return tmp_path / "copy"


def test_a_picture_that_is_not_made_so_is_seen(copied, tmp_path, monkeypatch):
    assert faults(tmp_path, copied) == []
    ring = copied / "docs" / "pictures" / "ring_all_reduce.svg"
    ring.write_text(ring.read_text().replace("1+2", "2+1", 1))
    (copied / "docs" / "by_hand.png").write_bytes(b"")
    (copied / "docs" / "pictures" / "kept.svg").unlink()
    assert faults(tmp_path, copied) == [
        "docs/by_hand.png: no command makes it", "docs/pictures/ring_all_reduce.svg: is not what its command makes",
        "docs/pictures/kept.svg: is not there"]


def test_a_picture_that_is_too_large_is_seen(copied, tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "MOST_BYTES", 9_000)
    assert faults(tmp_path, copied) == ["docs/pictures/ring_all_reduce.svg: more than 9,000 bytes"]


def test_a_picture_of_another_record_is_seen(copied, tmp_path):
    record = copied / "docs" / "pictures" / "compare.json"
    found = json.loads(record.read_text())
    for rank in found["stages"][0]["memory"]:
        rank["resting_bytes"]["gradients"] -= 1_000
    record.write_text(json.dumps(found))
    assert faults(tmp_path, copied) == ["docs/pictures/kept.svg: is not what its command makes"]


def of_a_script(words):
    return words[words.index("zerosim") + 1] == "torch"


@pytest.mark.parametrize("name", [name for name, words in records().items() if of_a_script(words)])
def test_a_record_of_a_script_is_of_the_command_that_is_named(name):
    found, words = json.loads((ROOT / name).read_text()), records()[name]
    assert [word for word in words if word not in ("--json", name)] == shlex.split(found["command"])
    assert (ROOT / words[-2]).is_file()


@pytest.mark.parametrize("name", [name for name, words in records().items() if not of_a_script(words)])
def test_a_record_is_of_the_command_that_is_named(name):
    found, words = json.loads((ROOT / name).read_text()), records()[name]
    assert shlex.join(words).startswith(f"{found['command']} --")
    assert words[-2:] == ["--json", name]
    assert found["passed"]
    overrides = [value for flag, value in pairwise(words) if flag == "--set"]
    now = json.loads(json.dumps(resolved(load(ROOT / words[words.index("run") + 1], overrides))))
    assert [key for key, value in flat(found["scenario"]) if value != dict(flat(now)).get(key)] == []


def flat(value, name=""):
    """Every key and the value of it, so that a record may lack keys that came later."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not items:
        return [(name, value)]
    return [pair for key, each in items for pair in flat(each, f"{name}.{key}")]


def test_the_record_of_the_stages_is_what_they_still_do():
    name = "docs/pictures/compare.json"
    figures = ("name", "sent_bytes", "messages", "kept_bytes", "peak_bytes", "equal")
    recorded = compared(runs_of([json.loads((ROOT / name).read_text())], [name])[0])
    now = run(ROOT / "scenarios" / "compare.toml", set={"train.steps": 2, "check.test_accuracy": 0}).rows()
    assert [[row[each] for each in figures] for row in recorded] == [[row[each] for each in figures] for row in now]
