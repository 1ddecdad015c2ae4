"""The errors of quantised sums that `zerosim bench wires` measures, against second loops."""

import json
import re

import numpy as np
import pytest

from zerosim.cli import main
from zerosim.collectives import ring
from zerosim.commands.benches import wires
from zerosim.commands.benches.samples import Sample
from zerosim.commands.benches.wires import measure_sums
from zerosim.numerics.wire_errors import wire_error
from zerosim.numerics.wires import CODES, wire

SIZES = (2, 4, 8, 16, 32)


def arriving(code, sent):
    """As `tests/test_wires.py` holds it to a quantiser of single numbers."""
    return wire(code, 32).arriving(sent)


def in_a_ring(code, brought, owner):
    """Rank owner + 1 sends first, the owner adds last."""
    ranks = len(brought)
    total = brought[(owner + 1) % ranks]
    for distance in range(2, ranks + 1):
        total = arriving(code, total) + brought[(owner + distance) % ranks]
    return total


def by_an_all_to_all(code, brought, owner):
    total = None
    for rank, each in enumerate(brought):
        sent = each if rank == owner else arriving(code, each)
        total = sent if total is None else total + sent
    return total


def in_two_hops(code, brought, owner):
    """Two hosts, of half of the ranks each."""
    host, place = divmod(owner, len(brought) // 2)
    sums = [by_an_all_to_all(code, half, place) for half in np.split(brought, 2)]
    return by_an_all_to_all(code, sums, host)


def second(adds, code, ranks):
    """The relative error by these loops."""
    brought = np.random.default_rng(0).standard_normal((ranks, 64 * ranks)).astype(np.float32)
    chunks = np.split(brought, ranks, axis=1)
    found = np.concatenate([adds(code, chunk, owner) for owner, chunk in enumerate(chunks)]).astype(np.float64)
    due = brought.astype(np.float64).sum(axis=0)
    return float(np.sqrt(np.square(found - due).sum())) / float(np.sqrt(np.square(due).sum()))


def expected():
    return [
        Sample({"algorithm": name, "format": code, "ranks": ranks},
               figures={"hops": hops(ranks), "error": second(adds, code, ranks)})
        for code in CODES
        for name, adds, hops in (("ring", in_a_ring, lambda ranks: ranks - 1),
                                 ("two_hop", in_two_hops, lambda ranks: min(ranks - 1, 2)))
        for ranks in SIZES
    ]


def test_every_error_is_that_of_second_loops():
    assert measure_sums() == expected()


def against_what_arrived(found, due):
    return wire_error(due, found)


def against_a_float32_sum(found, due):
    return wire_error(found, [due[0].astype(np.float32)])


def against_one_contribution(found, due):
    return wire_error(found, [wires.contributions(len(found))[0]])


@pytest.mark.parametrize("planted", [against_what_arrived, against_a_float32_sum, against_one_contribution])
def test_an_error_against_the_wrong_reference_is_noticed(planted, monkeypatch):
    monkeypatch.setattr(wires, "wire_error", planted)
    found, due = measure_sums((2, 8)), [each for each in expected() if each.names["ranks"] in (2, 8)]
    assert all(mine.figures["error"] != right.figures["error"] for mine, right in zip(found, due, strict=True))


def test_a_ring_in_place_of_two_hops_is_noticed(monkeypatch):
    monkeypatch.setitem(wires.SUMS, "two_hop", lambda ranks: ring.reduce_scatter)
    found, due = measure_sums(), expected()
    wrong = [mine.names for mine, right in zip(found, due, strict=True) if mine != right]
    assert wrong == [{"algorithm": "two_hop", "format": code, "ranks": ranks} for code in CODES for ranks in SIZES[1:]]


def test_the_command_shows_draws_and_writes_what_was_measured(tmp_path, capsys):
    picture, out = tmp_path / "wires.svg", tmp_path / "wires.json"
    assert main(["bench", "wires", "--svg", str(picture), "--json", str(out)]) == 0
    rows = json.loads(out.read_text())["wires"]
    assert rows == [each.document() for each in measure_sums()]
    last = {row["algorithm"]: row["error"] for row in rows if row["format"] == "int4" and row["ranks"] == 32}
    sentence = f"After 31 hops int4's error is {last['ring'] / last['two_hop']:.1f} times that of two hops"
    assert sentence in capsys.readouterr().out
    drawn = picture.read_text()
    assert sentence in drawn.replace("&#39;", "'")
    assert int(re.search(r'<svg[^>]* width="(\d+)"', drawn)[1]) <= 410
    assert min(map(int, re.findall(r'font-size="(\d+)px"', drawn))) >= 11


def test_only_what_is_drawn_takes_svg(capsys):
    assert main(["bench", "step", "--svg", "x.svg"]) == 2
    assert "--svg is for bench collectives and bench wires" in capsys.readouterr().err
