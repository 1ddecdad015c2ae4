"""Outcomes and pages of them, for tests: of small runs in the local world, with a trace of the last step."""

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

from msgspec import structs
from rich.console import Console

from tests.training import labelled, scenario
from zerosim.commands.cli import main
from zerosim.scenario import Scenario
from zerosim.show.document import RunDocument, document
from zerosim.show.table import show_run
from zerosim.stages import adding
from zerosim.training.experiment import prepare
from zerosim.verdict.judged_run import run_locally

HOSTILE = '</script><script>alert(1)</script>&amp;<img src=x onerror=alert(2)>\x1b[31m\x00"\'\u202e{{ 7 * 7 }}'


def outcome(built: Scenario | None = None, *, traced: bool = True, **changes) -> RunDocument:
    """The document of a run."""
    built = built or scenario(**changes)
    steps = built.train.steps
    done = run_locally(prepare(built, labelled(), traced=range(steps, steps + 1) if traced else range(0)))
    return document(done, {"kind": "local", "ranks": built.world.ranks, "library": "threads"}, "zerosim run mine.toml")


def read(done, **world) -> RunDocument:
    """The document of an outcome."""
    ranks = done.scenario.world.ranks
    return document(done, {"kind": "local", "ranks": ranks, "library": "threads"} | world)


def printed(done, width=200, kind="local", **how):
    """The lines that a file of so many columns gets, without spaces at their ends; of an outcome or its document."""
    run = done if isinstance(done, RunDocument) else read(done, kind=kind)
    file = io.StringIO()
    show_run(Console(file=file, width=width, emoji=False), run, **how)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def refused(capsys, *arguments):
    """The one line with which a command is refused, before it prints anything else."""
    assert main([*map(str, arguments)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return line


def added_otherwise(monkeypatch, **changes):
    """The document of a run in which the ranks add in a different order than is declared."""
    monkeypatch.setitem(adding.ADDITIONS, "ring", adding.ADDITIONS["rank"])
    return outcome(**changes)


def hostile():
    """The document of a run, traced, whose every string that a user may choose is hostile."""
    run = outcome(scenario(stages=("zero3",)))
    row, others = run.rows[0], {"title": HOSTILE, "command": HOSTILE, "verdict": HOSTILE, "passed": False}
    steps = [replace(step, spans=[structs.replace(span, unit=HOSTILE) for span in step.spans])
             for step in row.trace.steps]
    row = replace(row, name=HOSTILE, trace=replace(row.trace, steps=steps), sample=HOSTILE)
    return replace(run, rows=[row], failures=[{"name": HOSTILE, "what": HOSTILE}],
                   scenario=run.scenario | {"caption": HOSTILE}, **others)


class Seen(HTMLParser):
    """The elements of a page, the words outside of scripts, what it would load, and its pictures by description."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.words, self.loads, self.pictures, self.given = [], [], [], [], {}, []
        self.films = []
        self.policy, self._code = "", False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        self.given.append(given)
        self.policy += given["content"] if given.get("http-equiv") == "Content-Security-Policy" else ""
        self.ids += [given["id"]] if tag == "section" else []
        self.loads += [given[key] for key in ("src", "href") if not given.get(key, "#").startswith("#")]
        if "data-picture" in given:
            self.pictures[given["aria-label"]] = json.loads(given["data-picture"])
        if "data-film" in given:
            self.films.append(json.loads(given["data-film"]))
        self._code = tag in ("script", "style")

    def handle_endtag(self, tag):
        self._code = False

    def handle_data(self, data):
        self.words += [] if self._code else [data]

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def values(spec):
    """The data of a picture, those of its layers and views one after the other."""
    inner = [value for part in (*spec.get("layer", []), *spec.get("vconcat", [])) for value in values(part)]
    return [*spec.get("data", {"values": []})["values"], *inner]


def documented(page):
    """By heading, the keys that head the rows and items below it; `.b` continues the key before it."""
    keys, heading, section = {}, "", ""
    for line in page.read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith(("| `", "- `")):
            first = re.match(r"[|-] ((`[^`]+`(, )?)+)", line)[1]
            for word in first.replace("`", "").split(","):
                key = word.strip()
                section = section if key.startswith(".") else key.rpartition(".")[0]
                keys.setdefault(heading, set()).add(section + key if key.startswith(".") else key)
    return keys
