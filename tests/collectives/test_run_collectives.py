"""Scenarios of collectives: each that ships holds, and a claim that is not so fails the run."""

from pathlib import Path

import pytest

from zerosim.commands import cli
from zerosim.core.errors import Deadlock
from zerosim.proofs.programs import programs_of, run_collectives
from zerosim.scenario import load
from zerosim.worlds.local import LocalWorld

SCENARIOS = Path(__file__).parents[2] / "scenarios"


def found_by(scenario):
    world, programs = LocalWorld(scenario.world.ranks, sends=scenario.world.sends), programs_of(scenario)
    return world.run(lambda comm: run_collectives(comm, scenario, programs))[0]


def carried_out(name, *overrides):
    return found_by(load(SCENARIOS / f"{name}.toml", overrides))


@pytest.mark.parametrize("name", [
    "all_reduce_is_reduce_scatter_plus_all_gather", "reduce_scatter_slides", "broadcast_or_all_gather",
    "bucketing_changes_bits", "wrong_on_some_ranks",
])
def test_what_a_scenario_claims_is_so(name):
    outcome = carried_out(name)
    assert outcome.findings
    assert outcome.passed


@pytest.mark.parametrize(("name", "claim"), [
    ("all_reduce_is_reduce_scatter_plus_all_gather", "expect.same_results=false"),
    ("all_reduce_is_reduce_scatter_plus_all_gather", "expect.ranks_agree=false"),
    ("all_reduce_is_reduce_scatter_plus_all_gather", "expect.same_messages=false"),
    ("reduce_scatter_slides", "expect.results=[[6, 12], [14, 56], [36, 289]]"),
    ("broadcast_or_all_gather", "expect.same_bytes_sent=true"),
    ("bucketing_changes_bits", "expect.same_results=true"),
    ("wrong_on_some_ranks", "expect.ranks_agree=true"),
])
def test_the_opposite_claim_fails(name, claim):
    assert not carried_out(name, claim).passed


def test_a_planted_bug_is_located():
    outcome = carried_out("planted_bug")
    assert [finding.holds for finding in outcome.findings] == [False, True]
    assert "in round 4 rank 0 sends chunk 3 as g0 to rank 1, where ring.all_reduce sends" in outcome.findings[0].seen
    assert "zerosim show" in outcome.findings[0].seen
    assert cli.main(["run", str(SCENARIOS / "planted_bug.toml")]) == 1


def test_buckets_differ_only_where_elements_change_chunks():
    seen = carried_out("bucketing_changes_bits").findings[0].seen
    assert "284 of 1,024 elements (27.7%)" in seen
    assert "284 of those differ, 0 of the rest" in seen


def test_unsafe_sends_deadlock_unless_they_are_buffered():
    with pytest.raises(Deadlock, match="its message to be received by rank"):
        carried_out("unsafe_sends")
    assert carried_out("unsafe_sends", "world.sends=buffered").passed
    assert cli.main(["run", str(SCENARIOS / "unsafe_sends.toml")]) == 3


@pytest.mark.parametrize(("text", "words"), [
    ('kind = "collectiv"', ':1:8: kind must be training or collective'),
    ('kind = "collective"', "there is no [[program]]"),
    ('kind = "collective"\n[[program]]\ncalls = ["ring.all_reduc"]', ":3:9: 'ring.all_reduc' is neither"),
    ('kind = "collective"\nworld.ranks = 3\n[[program]]\ncalls = ["halving.reduce_scatter"]',
     ":4:9: halving.reduce_scatter serves a power of two"),
    ('kind = "collective"\nvalues.given = [[1], [2]]\n[[program]]\ncalls = ["all_reduce"]',
     ":2:16: values.given has 2 rows for 4 ranks"),
    ('kind = "collective"\n[train]\nsteps = 1', ":2:2: [train] is for training, and this is a scenario of collectives"),
    ('kind = "collective"\nworld.ranks = 1_000_000\n[[program]]\ncalls = ["all_reduce"]',
     ":2:15: world.ranks must be an integer of at least 1 and at most 4096"),
    ('kind = "collective"\nworld.ranks = 1\nvalues.dtype = "float16"\nvalues.given = [[1, 65536]]\n'
     '[[program]]\ncalls = ["all_reduce"]', ":4:16: values.given[0][1] is 65536, which float16 cannot hold"),
])
def test_mistakes_are_found_where_they_stand(tmp_path, text, words, capsys):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    assert cli.main(["run", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{path}:")
    assert words in line


def scenario_of(folder, text):
    path = folder / "scenario.toml"
    path.write_text(f'kind = "collective"\n{text}')
    return path


def test_integers_of_64_bits_keep_every_bit(tmp_path):
    path = scenario_of(tmp_path, f"""
world.ranks = 2
values.dtype = "int64"
values.given = [[{2**53 + 1}, 3.0], [{2**62}, 0]]
expect.results = [[{2**53 + 1 + 2**62}, 3], [{2**53 + 1 + 2**62}, 3]]
[[program]]
calls = ["all_reduce"]
""")
    scenario = load(path)
    assert found_by(scenario).passed
    wrong = load(path, [f"expect.results=[[{2**53 + 2**62}, 3], [{2**53 + 1 + 2**62}, 3]]"])
    assert not found_by(wrong).passed


def test_a_failed_claim_says_that_it_does_not_hold_and_what_was_seen(tmp_path, capsys):
    path = scenario_of(tmp_path, """
world.ranks = 2
values.lengths = [3]
expect = {same_results = true, ranks_agree = false}
[[program]]
calls = ["gather"]
[[program]]
calls = ["all_gather"]
""")
    assert cli.main(["run", str(path)]) == 1
    *_, third, verdict = capsys.readouterr().out.splitlines()
    assert verdict == (
        "FAILED: 3 of 3 claims do not hold: the programs leave the same bytes; after gather the ranks hold different "
        "bytes; after all_gather the ranks hold different bytes")
    assert third == ("✗ does not hold: after all_gather the ranks hold different bytes; seen: after all_gather all "
                     "ranks hold the same bytes")


def test_who_claims_nothing_is_told_so(tmp_path, capsys):
    assert cli.main(["run", str(scenario_of(tmp_path, '[[program]]\ncalls = ["all_reduce"]'))]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nothing was claimed"


@pytest.mark.parametrize(("keys", "place"), [
    ("values.lengths = [4]", "5:18"), ("values.given = [[1, 2], [1, 2], [1, 2]]", "5:16"),
    ("values.lengths = [3, 4]\nprogram = [{calls = ['all_to_all'], bucket = 'each'}]", "5:18"),
])
def test_equal_chunks_cannot_be_cut_from_any_vector(tmp_path, keys, place, capsys):
    file = tmp_path / "uneven.toml"
    program = "" if "program" in keys else "program = [{calls = ['all_to_all']}]"
    file.write_text(f"kind = 'collective'\n\nworld.ranks = 3\n{program}\n{keys}\n")
    assert cli.main(["run", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{file}:{place}: ")
    assert "3 ranks do not divide a vector of" in line


@pytest.mark.parametrize(("programs", "seen"), [
    ('{calls = ["reduce_scatter"]}, {calls = ["all_reduce"]}',
     "reduce_scatter and all_reduce leave vectors of 3 and 6 elements on rank 0"),
    ('{calls = ["all_reduce"]}, {calls = ["reduce_scatter"]}',
     "all_reduce and reduce_scatter leave vectors of 6 and 3 elements on rank 0"),
    ('{calls = ["all_reduce"]}, {calls = ["all_gather"]}',
     "all_reduce and all_gather differ in 6 of 6 elements (100.0%) on rank 0"),
    ('{calls = ["gather"]}, {calls = ["all_gather"]}',
     "all_gather leaves a vector on rank 1, gather leaves nothing there"),
    ('{calls = ["reduce_scatter"]}', "after reduce_scatter rank 1 holds 3 elements and rank 0 4"),
])
def test_what_programs_of_the_same_bucket_leave_is_told_in_a_sentence(tmp_path, programs, seen):
    lengths, claim = ("2, 4", "same_results") if "}, {" in programs else ("7", "ranks_agree")
    scenario = load(scenario_of(
        tmp_path, f"world.ranks = 2\nvalues.lengths = [{lengths}]\nprogram = [{programs}]\nexpect.{claim} = true"))
    (finding,) = found_by(scenario).findings
    assert not finding.holds
    assert finding.seen == seen
