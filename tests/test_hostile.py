"""Mutants of every kind of file do no harm; and what would is noticed."""

import gc
import os
import random
import weakref
from unittest import mock

import pytest

from tests.hostile import attack
from tests.hostile.__main__ import main
from tests.hostile.attack import KINDS, Grounds, attacked, fault_of
from tests.hostile.mutate import LEAVES, bytes_of, document_of, lines_of
from zerosim.models.units import Task
from zerosim.scenario import Scenario
from zerosim.training.config import configured
from zerosim.verdict.shapes import expected

COUNTS = {"scenario": 80, "data": 30, "weights": 30, "checkpoint": 8, "outcome": 6}


@pytest.mark.parametrize("kind", KINDS)
def test_mutants_do_no_harm(kind, tmp_path):
    assert list(attacked(tmp_path / "grounds", kind, range(COUNTS[kind]))) == []


def test_a_seed_has_its_mutant():
    for mutate, given in ((bytes_of, b"abc" * 9), (lines_of, attack.SMALL), (document_of, {"a": [1, {"b": 2}]})):
        found = [mutate(random.Random(seed), given) for seed in range(40)]
        assert found == [mutate(random.Random(seed), given) for seed in range(40)]
        assert sum(each != given for each in found) > 30


def test_what_mutants_are_made_of_stays_as_it_is():
    before = repr(LEAVES)
    for seed in range(300):
        document_of(random.Random(seed), {"a": [1, {"b": 2}], "c": {"d": {}}})
    assert repr(LEAVES) == before


@pytest.mark.parametrize(("found", "told"), [
    ((0, ""), None), ((2, "zerosim: no\n"), None), ((3, "zerosim: no\n"), None),
    ((139, ""), "exit code 139"), ((2, ""), "not a word"), ((130, "zerosim: interrupted"), "still busy"),
    ((3, "zerosim:\nTraceback (most recent"), "more than 1 line"), ((2, "a\nb\n"), "more than 1 line"),
    ((2, "x" * 2001), "more than 1 line"), ((2, "a\x1b[2J"), "control characters"),
])
def test_a_bad_end_is_noticed(found, told):
    fault = fault_of(found)
    assert fault is None if told is None else told in fault


def planted(grounds, rng):
    (grounds.folder / "executed").touch()


def raising(grounds, rng):
    raise ValueError("planted")


def endless(grounds, rng):
    def loops(arguments):
        while True:
            pass

    with mock.patch("zerosim.commands.memory.main", loops), mock.patch.object(attack, "SECONDS", 1):
        return fault_of(grounds.attempt(["memory", "--table", "figure1"]))


@pytest.mark.parametrize(("harm", "told"), [
    (planted, "it was executed"), (raising, "ValueError: planted"), (endless, "still busy")])
def test_harm_is_noticed(harm, told, tmp_path, monkeypatch):
    monkeypatch.setitem(KINDS, "planted", harm)
    (found,) = attacked(tmp_path / "grounds", "planted", [7])
    assert (found.kind, found.seed) == ("planted", 7)
    assert told in found.what


def test_what_a_kind_is_made_from_is_whole(tmp_path):
    grounds = Grounds(tmp_path / "grounds")
    assert grounds.attempt(["run", "s.toml", "--set", "data.source=e.npz", "--progress", "none"]) == (0, "")
    assert grounds.attempt(["run", "s.toml", "--set", "model.weights=w", "--progress", "none"]) == (0, "")
    assert grounds.attempt(["run", "s.toml", "--resume", "k", "--progress", "none"]) == (0, "")


def test_faults_are_reported_with_their_seeds(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("tests.hostile.__main__.PLACE", tmp_path / "place")
    monkeypatch.setattr("tests.hostile.__main__.KINDS", {"scenario": raising})
    monkeypatch.setitem(KINDS, "scenario", raising)
    assert main(["--seed", "5", "--scenarios", "1", "--files", "0"]) == 1
    assert capsys.readouterr().out.splitlines()[0] == "scenario, seed 5: ValueError: planted"


LONG = "x" * 300


@pytest.mark.parametrize("words", [
    ["run", "s.toml", "--checkpoint", LONG], ["run", "s.toml", "--resume", f"a/{LONG}"], ["run", LONG], ["plan", LONG],
    ["run", "s.toml", "--set", f"data.source={'y/' * 2500}"], ["run", "s.toml", "--json", "y/" * 2500],
    ["checkpoint", LONG], ["exercises", LONG],
    ["torch", LONG], ["check", "s.toml"], ["prove", "naive.all_reduce", "--ranks", "400"]], ids=lambda words: words[0])
def test_names_that_no_file_can_have_are_refused_in_one_line(words, tmp_path):
    assert fault_of(Grounds(tmp_path / "grounds").attempt(words), codes=(2,)) is None


@pytest.mark.parametrize(("columns", "codes"), [("a,a,y", (0, 1)), ("y,a,y", (2,))])
def test_columns_of_one_name(columns, codes, tmp_path):
    grounds = Grounds(tmp_path / "grounds")
    (grounds.folder / "t.csv").write_text("\n".join([columns, *["0,0,0", "1,1,1"] * 4]))
    words = ["run", "s.toml", "--progress", "none", "--set", "data.source=t.csv", "--set", "data.target=y"]
    assert fault_of(grounds.attempt(words), codes=codes) is None


@pytest.mark.parametrize("columns", ["²", "9" * 5000, "-1"])
def test_a_strange_width_of_the_terminal_is_ignored(columns, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert fault_of(Grounds(tmp_path / "grounds").attempt(["scenarios"]), codes=(0,)) is None


def test_a_folder_that_may_not_be_searched_is_refused_in_one_line(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("nothing is forbidden to root")
    grounds = Grounds(tmp_path / "grounds")
    (grounds.folder / "closed").mkdir(mode=0)
    for words in (["--checkpoint", "closed/x"], ["--resume", "closed/x"], ["--set", "data.source=closed/x"]):
        assert fault_of(grounds.attempt(["run", "s.toml", *words]), codes=(2,)) is None


def test_the_graphs_of_earlier_runs_are_not_kept():
    row, *_ = Scenario().rows
    config = configured(row, Task(64, 10, "cross_entropy"))
    assert expected(config) is expected(config)
    graphs = weakref.ref(config), weakref.ref(config.model.units[0])
    del config
    gc.collect()
    assert [graph() for graph in graphs] == [None, None]
