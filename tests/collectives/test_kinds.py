"""The table of kinds: whoever speaks of collectives reads it, and a row that says something wrong is found out."""

import inspect
from dataclasses import replace

import pytest

import zerosim as zs
from tests.sampling import one_in
from zerosim.collectives import ALGORITHMS, kinds
from zerosim.collectives.kinds import COLLECTIVE_KINDS, COLLECTIVES
from zerosim.commands import cli
from zerosim.proofs.proof import prove
from zerosim.proofs.subject import collective_in, named_subject
from zerosim.testing import LAWS, LawBroken, check


def first_algorithm(name):
    return next(algorithm for algorithm, row in ALGORITHMS.items() if row.collective == name)


def test_every_kind_has_an_algorithm_and_every_algorithm_a_kind():
    assert {row.collective for row in ALGORITHMS.values()} == set(COLLECTIVE_KINDS)
    assert set(COLLECTIVE_KINDS) - set(COLLECTIVES) == {"barrier"}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_takes_what_its_kind_says(name):
    row = ALGORITHMS[name]
    kind = COLLECTIVE_KINDS[row.collective]
    due = ["comm", *kind.parameters, *["root"] * kind.rooted, *["reduce"] * kind.reducing]
    assert list(inspect.signature(row.function).parameters) == due
    assert (row.order is not None) == kind.reducing


@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_kind_is_served_on_whole_arrays_by_commands_scenarios_and_laws(name, tmp_path):
    assert collective_in(f"my_{name}") == name
    assert {law.name for law in LAWS if name in law.collectives} > {"is_linear", "works_when_sends_wait"}
    mine = tmp_path / "mine.py"
    mine.write_text(f"import zerosim as zs\ndef mine(comm, *given): return zs.{name}(comm, *given)\n")
    for command in ("prove", "show"):
        for subject in ([first_algorithm(name)], [f"{mine}:mine", "--as", name]):
            assert cli.main([command, *subject, "--ranks", "4"]) == 0
    scenario = tmp_path / "scenario.toml"
    scenario.write_text(f'kind = "collective"\nvalues.lengths = [8]\n[[program]]\ncalls = ["{name}"]\n')
    assert cli.main(["run", str(scenario)]) == 0


def found_wrong(name):
    """Whether a proof or a law fails of what the table says of `name`."""
    algorithm = first_algorithm(name)
    if not all(prove(named_subject(algorithm), size).holds for size in (1, 2, 4)):
        return True
    try:
        for function in (ALGORITHMS[algorithm].function, getattr(zs, name)):
            check(function, examples=20)
    except LawBroken:
        return True
    return False


SAID = {
    "brings": (kinds.whole, kinds.own, kinds.whole_on_root, kinds.nothing),
    "leaves": (kinds.whole, kinds.own, kinds.whole_on_root, kinds.nothing),
    "sources": (kinds.of_everyone, kinds.of_owner, kinds.of_root, kinds.transposed),
}
WRONG = [
    (name, what, said)
    for name in COLLECTIVES for what in SAID for said in SAID[what] if said is not getattr(COLLECTIVE_KINDS[name], what)
]


@pytest.mark.parametrize("wrong", one_in(3, WRONG), ids=lambda wrong: f"{wrong[0]} {wrong[1]} {wrong[2].__name__}")
def test_a_kind_that_says_something_else_is_found_wrong(wrong, monkeypatch):
    name, what, said = wrong
    monkeypatch.setitem(COLLECTIVE_KINDS, name, replace(COLLECTIVE_KINDS[name], **{what: said}))
    assert found_wrong(name)


def test_a_kind_as_it_is_is_not():
    assert not found_wrong("broadcast")


def test_who_agrees():
    agreeing = {name for name, kind in COLLECTIVE_KINDS.items() if kind.agreeing}
    assert agreeing == {"all_reduce", "all_gather", "broadcast", "barrier"}


@pytest.mark.parametrize("sources", [
    lambda rank, chunk, size, root: [(0, rank * chunk)], lambda rank, chunk, size, root: [(rank % size, chunk)],
], ids=["in the last chunk", "by the number of ranks"])
def test_who_is_left_with_something_else_anywhere_does_not_agree(sources):
    assert not replace(COLLECTIVE_KINDS["all_gather"], sources=sources).agreeing
