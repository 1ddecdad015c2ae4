"""Points come from a process that a submission cannot reach: cheats earn nothing, and every check finds its mistake."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests import solutions
from zerosim.numerics import orders
from zerosim.payloads.terms import Blank, Term, commuted, leaves
from zerosim.teach.grading import confirmed as confirming
from zerosim.teach.grading.channel import behind
from zerosim.teach.grading.claims import CLAIMS
from zerosim.teach.grading.confirmed import (
    FORGED,
    confirmed,
    function_of,
    grade_separately,
    separate_ranks,
    stand_in,
)
from zerosim.teach.grading.exercises import EXERCISES, Grade, Item, from_document
from zerosim.teach.grading.separate_ranks import Contributions
from zerosim.teach.proofs.proof import run
from zerosim.teach.proofs.subject import subject


def full(name):
    """A grade with all points."""
    items = [Item(claim.says, claim.points, "holds", claim.law) for claim in CLAIMS[name](stand_in)]
    return Grade(name, "holds", items)


def written(tmp_path, text):
    file = tmp_path / "mine.py"
    file.write_text(text)
    return str(file)


NOTHING = "\ndef all_gather(comm, chunks):\n    pass\n"
HANDED_IN = tomllib.loads(Path(__file__).with_name("handed_in.toml").read_text())


@pytest.mark.parametrize("cheat", HANDED_IN["cheats"])
def test_a_cheat_earns_nothing(tmp_path, cheat):
    forged = f"FORGED = {json.dumps(full('all_gather').document())!r}\n"
    found = grade_separately(written(tmp_path, forged + HANDED_IN["cheats"][cheat] + NOTHING), "all_gather")
    assert (found.earned, found.state) == (0, "does not hold yet")
    assert found.points == EXERCISES["all_gather"]


@pytest.mark.parametrize("items", [
    [Item("it is mine", 1000, "holds")],
    [Item(item.says, 13, "holds", item.law) for item in full("all_gather").items],
    [item for item in full("all_gather").items for _ in range(2)],
])
def test_points_that_no_examination_gives_are_refused(tmp_path, items):
    found = confirmed(Grade("all_gather", "holds", items), written(tmp_path, NOTHING))
    assert (found.earned, found.complaint) == (0, FORGED)


@pytest.mark.parametrize("forged", [
    full("reduce").document(), {}, [], {"items": 1}, full("all_gather").document() | {"printed": [1]},
    full("all_gather").document() | {"items": [{"says": "x", "points": -5, "state": "holds"}]},
    full("all_gather").document() | {"items": []},
])
def test_what_is_no_grade_is_refused(tmp_path, monkeypatch, forged):
    monkeypatch.setattr(confirming, "answer_of_process", lambda *given: forged)
    found = grade_separately(written(tmp_path, NOTHING), "all_gather")
    assert (found.function, found.earned, found.state, found.complaint) == (
        "all_gather", 0, "does not hold yet", FORGED)


@pytest.mark.parametrize(("said", "answer"), [
    ("[" * 60_000, None), ("[1]", None), ("null", None), ('{"a"', None), ("9" * 5_000, None), ('{"a": 1}', {"a": 1})])
def test_only_an_object_behind_the_secret_is_an_answer(said, answer):
    assert behind("secret", f"xsecret{said}".encode()) == answer


@pytest.mark.parametrize("changed", [
    {"state": "[/nope]"}, {"function": 1}, {"items": {"a": 1}}, {"complaint": 7}, {"printed": 1},
    *({"items": [full("all_gather").document()["items"][0] | wrong]} for wrong in (
        {"points": True}, {"points": float("inf")}, {"points": "3"}, {"state": "earned"}, {"says": None})),
])
def test_every_field_of_an_answer_is_checked(changed):
    with pytest.raises((TypeError, ValueError, KeyError, AttributeError)):
        from_document(full("all_gather").document() | changed)


def test_words_of_an_answer_are_cleaned_and_bounded():
    found = from_document(full("all_gather").document() | {"complaint": "\ud800\x1b[2J" + "x" * 900_000})
    assert found.complaint.startswith(r"\ud800\x1b[2J")
    assert len(found.complaint) < 10_000


@pytest.mark.parametrize("name", ["zero2_each_part_step", "zero3_kept_step", "fsdp_step", "all_reduce_two_level",
                                  "reduce"])
def test_after_a_first_claim_that_fails_nothing_counts(tmp_path, name):
    found = confirmed(full(name), written(tmp_path, f"def {name}(*given):\n    return 0\n"))
    assert (found.earned, {item.state for item in found.items[1:]}) == (0, {"not asked"})


INFINITE = """
def zero2_step(replica, batch):
    replica.comm._comm._wire.say({gave})
    import os
    os._exit(0)
"""


@pytest.mark.parametrize("gave", [
    '{"gave": {"losses": [[float("inf"), 1]], "held": [], "kept": [], "peak": {}}}', '{"gave": 1}', '{"raised": 1}',
    '{"to": 99, "array": 1}', '{"gave": {"losses": [], "held": [], "kept": [{"gradients": -1}], "peak": []}}'])
def test_a_rank_that_sends_no_record_earns_nothing(tmp_path, gave):
    found = confirmed(full("zero2_step"), written(tmp_path, INFINITE.replace("{gave}", gave)))
    assert (found.earned, found.state) == (0, "does not hold yet")


def test_a_line_of_a_rank_is_bounded(tmp_path):
    found = confirmed(full("zero2_step"), written(tmp_path, INFINITE.replace("{gave}", '{"gave": [[]] * 300_000}')))
    assert (found.earned, "sends more than 1,048,576 bytes at once" in found.complaint) == (0, True)




@pytest.mark.parametrize("use", HANDED_IN["uses"])
def test_a_rank_reports_what_it_runs_of_the_library(tmp_path, use):
    file = written(tmp_path, f"{HANDED_IN['uses'][use]}\ndef all_gather(comm, chunks):\n    f(comm, chunks)\n")
    with separate_ranks(file, "all_gather", 2) as ranks:
        run(subject(function_of("all_gather", ranks), "all_gather"), 2, 2)
    said = {"the source": "reads collectives/ring.py", "its code": "reads __code__ of all_gather",
            "its bytecode": "reads __init__.py", "its folder": "opens a folder",
            "its path": "reads __init__.py", "too many": "more than 100 uses, which are not told",
            "no watch": "sys.setprofile"}.get(use, "calls all_gather of collectives/ring.py")
    assert said in ranks.used


def test_laws_alone_earn_nothing(tmp_path):
    items = [item if item.law else replace(item, state="does not hold") for item in full("all_gather").items]
    found = confirmed(Grade("all_gather", "does not hold yet", items), written(tmp_path, NOTHING))
    assert (found.earned, found.complaint) == (0, FORGED)


HEAD = """
import numpy as np
from zerosim.collectives import naive, ring, tree
from zerosim.comm import left, right
from zerosim.stages import zero1, zero2, zero3
"""


@pytest.mark.parametrize("mistake", HANDED_IN["mistakes"].values(), ids=HANDED_IN["mistakes"])
def test_each_check_finds_its_mistake(tmp_path, mistake):
    found = confirmed(full(mistake["exercise"]), written(tmp_path, HEAD + mistake["program"]))
    assert [item.says for item in found.items if item.state == "does not hold"] == mistake["refuted"]
    assert found.state == "does not hold yet"


def test_what_is_right_keeps_its_points(tmp_path):
    for name in ("reduce_scatter_left", "all_reduce_two_level", "fsdp_step"):
        assert confirmed(full(name), solutions.__file__).earned == EXERCISES[name]


def test_this_process_attributes_terms_itself():
    drawn = Contributions(4, 4, orders.ring)
    own = [list(drawn.numbers[:, chunk]) for chunk in range(4)]
    added = [orders.ring(own[0], 0), own[2][3], own[1][0] + own[1][2],
             own[1][0] + own[2][0], own[0][0] + 1, own[3][1].real]
    assert drawn.attributed(np.array(added), 0).tolist() == [
        orders.ring([Term(rank) for rank in range(4)], 0), Term(3, 2), Term(0, 1) + Term(2, 1), *[Blank(0)] * 3]
    assert drawn.encoded(drawn.attributed(np.array(added), 0)).tolist() == added
    assert drawn.attributed(Contributions(4, 4, None).numbers[0], 1).tolist() == [Blank(1)] * 4


def test_an_order_of_addition_shows_in_the_bits_of_a_chunk():
    drawn = Contributions(4, 36, orders.ring)
    for chunk in range(3):
        numbers = [orders.rank_order(list(drawn.numbers[:, element]), 0) for element in range(9 * chunk, 9 * chunk + 9)]
        due = [orders.ring([Term(rank, element) for rank in range(4)], chunk)
               for element in range(9 * chunk, 9 * chunk + 9)]
        found = drawn.attributed(np.array(numbers), 0).tolist()
        assert [*map(commuted, found)] != [*map(commuted, due)]
        assert all(len({*leaves(each)}) == 4 for each in found)
