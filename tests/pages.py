"""Outcomes and pages of them, for tests: of small runs in the local world, with a trace of the last step."""

import io

from rich.console import Console

from tests.training import labelled, scenario
from zerosim.commands.cli import main
from zerosim.scenario import Scenario
from zerosim.show.document import document
from zerosim.show.page.page import page
from zerosim.show.run_document import RunDocument, runs_of
from zerosim.show.table import show_run
from zerosim.stages import adding
from zerosim.training.experiment import prepare
from zerosim.verdict.judged_run import run_locally

HOSTILE = '</script><script>alert(1)</script>&amp;<img src=x onerror=alert(2)>\x1b[31m\x00"\'\u202e'


def outcome(built: Scenario | None = None, *, traced: bool = True, **changes):
    """The document of a run."""
    built = built or scenario(**changes)
    steps = built.train.steps
    done = run_locally(prepare(built, labelled(), traced=range(steps, steps + 1) if traced else range(0)))
    return document(done, {"kind": "local", "ranks": built.world.ranks, "library": "threads"}, "zerosim run mine.toml")


def read(done, **world):
    """An outcome as reports read it: from its document."""
    ranks = done.scenario.world.ranks
    return RunDocument(document(done, {"kind": "local", "ranks": ranks, "library": "threads"} | world))


def printed(done, width=200, kind="local", **how):
    """The lines that a file of so many columns gets."""
    file = io.StringIO()
    show_run(Console(file=file, width=width, emoji=False), read(done, kind=kind), **how)
    return file.getvalue().splitlines()


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


def page_of(*documents):
    return page(runs_of(documents, [f"{number}.json" for number in range(len(documents))]))
