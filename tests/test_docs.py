"""Every example in the documentation runs, and every file it points to is there."""

import ast
import colorsys
import doctest
import re
from pathlib import Path

import pytest
from zerosim.show.activities import ACTIVITIES
from zerosim.show.activities import WORDS as LEGEND

from tests.pages import printed
from zerosim.scenario import load
from zerosim.scenario.data import load_dataset
from zerosim.show.page.pictures import KIND_COLOURS
from zerosim.show.step import KIND_WORDS
from zerosim.stages.replica import Replica
from zerosim.training.experiment import prepare
from zerosim.training.program import Silent
from zerosim.verdict.judged_run import run_locally

ROOT = Path(__file__).parents[1]
DECISIONS = [ROOT / "docs/decisions.md"]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("scenarios/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run(page):
    failed, _ = doctest.testfile(str(page), module_relative=False)
    assert failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    assert [t for t in targets if "://" not in t and not (page.parent / t).exists()] == []


def paths_nowhere(text):
    """The paths in backticks that are neither of the package nor of the project; those with NAME are yet to be made."""
    paths = [path for path in re.findall(r"`([^`\s]+(?:/|\.\w+))`", text) if "/" in path and "NAME" not in path]
    return [path for path in paths if not ((ROOT / path).exists() or (ROOT / "zerosim" / path).exists())]


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", *DECISIONS], ids=lambda page: page.name)
def test_paths_that_are_named_exist(page):
    assert paths_nowhere(page.read_text()) == []


def test_a_path_that_leads_nowhere_is_seen():
    assert paths_nowhere("`stages/NAME.py`, `stages/ddp.py`, `stages/ddt.py`, `docs/design/`") == ["stages/ddt.py"]


def test_contributing_has_every_make_target():
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    told = re.findall(r"^\| `make ([\w-]+)` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert sorted(told) == sorted(phony.split())


def without_peaks(lines):
    """Under MPI they have copies of messages on their way, so they are not the same each time."""
    return [re.sub(r"(━ +)[\d.]+$", r"\1…", line) for line in lines]


def test_the_readme_shows_what_the_first_command_shows():
    scenario = load(ROOT / "scenarios" / "compare.toml")
    lines = printed(run_locally(prepare(scenario, load_dataset(scenario)), Silent()), 80)
    (block,) = re.findall(r"^```\n4 ranks, .*\n64-.*, adam\n([^`]*)```", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert without_peaks(block.splitlines()) == without_peaks(lines)


def test_the_readme_has_at_most_90_lines():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90


NOTATION = [
    ([word.strip() for word in words.split(",")], re.findall(r"`([^`]+)`", places))
    for words, places in re.findall(
        r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$", (ROOT / "docs/notation.md").read_text(), re.MULTILINE)
    if words != "word"
]


def texts_at(place):
    """What is written in a file or a folder of the package, or else of the project."""
    (path,) = [path for path in (ROOT / "zerosim" / place, ROOT / place) if path.exists()]
    return " ".join(file.read_text() for file in ([path] if path.is_file() else sorted(path.glob("*.py")))).lower()


def missing(words, places):
    """Those of `words` that nothing at `places` mentions."""
    written = " ".join(map(texts_at, places))
    return [word for word in words if not re.search(rf"\b{word.replace(' ', '[ _]?')}", written)]


@pytest.mark.parametrize(("words", "places"), NOTATION, ids=lambda value: value[0])
def test_words_are_where_the_notation_says(words, places):
    assert missing(words, places) == []


def test_a_word_that_is_elsewhere_is_missed():
    assert missing(["rank", "unit"], ["comm.py"]) == ["unit"]


def code_nowhere(table):
    """Names in the second column of a table that neither `Replica` nor a file beside them defines."""
    nowhere = []
    for here in re.findall(r"^\| [^|]+ \| ([^|]+) \|", table, re.MULTILINE):
        files = [ROOT / "docs" / path for path in re.findall(r"\]\(([^)]+)\)", here)]
        written = "".join(file.read_text() for file in files if file.exists())
        for name in re.findall(r"`([A-Za-z_][\w.]*)`", re.sub(r"\[[^]]*\]\([^)]*\)", "", here)):
            owner, _, verb = name.rpartition(".")
            defined = all(re.search(rf"^ *(def|class) {part}\b", written, re.MULTILINE) for part in name.split("."))
            nowhere += [] if (hasattr(Replica, verb) and owner == "Replica") or defined else [name]
        nowhere += [file.name for file in files if not file.exists()]
    return nowhere


def test_code_beside_that_of_other_libraries_exists():
    page = (ROOT / "docs" / "their_code.md").read_text()
    assert len(re.findall(r"^\| `", page, re.MULTILINE)) > 30
    assert code_nowhere(page) == []


def test_code_that_is_invented_is_seen():
    row = "| `theirs` | {} in [`its file`](../zerosim/stages/{}) | |"
    assert code_nowhere(row.format("`Replica.gather`, `Filled.fill`, `Prefetched`", "gathering.py")) == []
    assert code_nowhere(row.format("`Replica.collect`, `filled`", "gathering.py")) == ["Replica.collect", "filled"]
    assert code_nowhere(row.format("`Replica.gather`", "gather.py")) == ["gather.py"]


def test_every_folder_is_in_the_architecture():
    listed = re.findall(r"^\| `(\w+)/` \|", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(path.parent.name for path in ROOT.glob("zerosim/*/__init__.py"))


def test_every_scenario_is_listed():
    listed = (ROOT / "scenarios" / "README.md").read_text()
    assert [p.name for p in ROOT.glob("scenarios/*.toml") if p.name not in listed] == []


def fragments(text):
    """The first lines of docstrings, those of fields among them, that need a neighbour to be understood."""
    values = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr)]
    words = [each.value.strip() for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    first = [each.partition("\n")[0] for each in words]
    return [line for line in first if re.match(r"(Of|As|That|Those|The same|With|Within|By|From)\b", line)]


def test_docstrings_can_be_read_alone():
    files = sorted((ROOT / "zerosim").rglob("*.py"))
    assert [f"{file.relative_to(ROOT)}: {line}" for file in files for line in fragments(file.read_text())] == []


def test_a_docstring_that_leans_on_its_neighbour_is_seen():
    text = 'def f():\n    """Of one layer."""\ndef g():\n    """The bytes of a layer."""'
    assert fragments(text) == ["Of one layer."]
    assert fragments('class C:\n    x: int\n    """As x."""\n    y: int\n    """The y."""') == ["As x."]


HUES = [(33, "orange"), (60, "yellow"), (90, "olive"), (170, "green"), (195, "teal"), (230, "blue"), (265, "indigo"),
        (310, "purple"), (345, "crimson"), (360, "red")]
"""The word for each hue of a colour, up to so many degrees."""
COLOUR_WORDS = {word for _, word in HUES} | {"grey", "gray", "brown", "pink", "magenta", "cyan", "violet", "turquoise"}


def colour_word(colour):
    hue, light, full = colorsys.rgb_to_hls(*(int(colour[at:at + 2], 16) / 255 for at in (1, 3, 5)))
    word = next(word for degrees, word in HUES if 360 * hue <= degrees)
    shade = {"orange": "brown" if light < 0.45 else "orange", "crimson": "pink" if light > 0.7 else "crimson"}
    return "grey" if full < 0.15 else shade.get(word, word)


PALETTE = {
    noun: colour_word(colour)
    for name, colour in [*ACTIVITIES.items(), *zip(KIND_WORDS.values(), KIND_COLOURS, strict=True)]
    for noun in LEGEND.get(name, name).split(", ")
}
"""The colour of each activity and kind of memory in pictures, in a word."""


def wrong_colours(text):
    """Colour words outside code that are neither in parentheses after their noun of the pictures nor right for it."""
    prose = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
    found = []
    for colour in re.finditer(rf"\b({'|'.join(COLOUR_WORDS)})\b", prose, re.IGNORECASE):
        noun = re.search(rf".*\b({'|'.join(PALETTE)})s?\b[^().]*\([^().]*$", prose[:colour.start()], re.I | re.S)
        if noun is None or PALETTE[noun[1].lower()] != colour[0].lower():
            found.append((noun and noun[1], colour[0]))
    return found


@pytest.mark.parametrize("page", [each for each in PAGES if each not in DECISIONS], ids=lambda page: page.name)
def test_colours_in_words_are_those_of_the_pictures(page):
    assert wrong_colours(page.read_text()) == []


def test_a_wrong_colour_is_seen():
    assert wrong_colours("Forward (light blue), an all-gather (green), the wait `red`. Buffers (olive)") == []
    planted = "Weights (blue) and gradients (orange,\nbelow). All-gathers (crimson). The orange area. A (blue) box."
    assert wrong_colours(planted) == [
        ("Weights", "blue"), ("gradients", "orange"), ("All-gather", "crimson"), (None, "orange"), (None, "blue")]
    assert len(set(PALETTE.values())) == len({*ACTIVITIES.values(), *KIND_COLOURS}) - 1
