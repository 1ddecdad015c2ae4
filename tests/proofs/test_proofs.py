"""Proofs; ours hold by the law of collectives; broken ones are named, each with what is wrong and where."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from zerosim.collectives import ALGORITHMS, doubling, ring
from zerosim.commands import cli
from zerosim.core import orders
from zerosim.core.comm import left, right
from zerosim.core.terms import Term, commuted, symbols
from zerosim.proofs.proof import SMALL, difference, known_order, prove, roots
from zerosim.proofs.subject import named_subject, subject


def lost_chunk(comm, chunks):
    ring.all_gather(comm, [*list(chunks)[:-1], chunks[-1].copy()])


def swapped_neighbour(comm, chunks):
    for step in range(comm.size - 1):
        comm.exchange(chunks[(comm.rank - step) % comm.size], to=left(comm),
                      into=chunks[(comm.rank - step - 1) % comm.size], source=right(comm))


def wrong_modulus_at_5(comm, chunks, reduce=np.add):
    modulus = 4 if comm.size == 5 else comm.size
    for step in range(comm.size - 1):
        comm.exchange(chunks[(comm.rank - step - 1) % modulus], to=right(comm),
                      into=chunks[(comm.rank - step - 2) % modulus], source=left(comm), reduce=reduce)


def raises(comm, x):
    return x[comm.size]


def last_exchange_twice_at_6(comm, chunks, reduce=np.add):
    doubling.all_reduce(comm, chunks, reduce)
    if comm.size == 6:
        partner = comm.rank ^ 1
        comm.exchange(chunks[:], to=partner, into=chunks[:], source=partner, reduce=reduce)


def fills_with_zeros(comm, chunks):
    for chunk in chunks:
        chunk[:] = 0


BROKEN = [
    (lost_chunk, "all_gather", 4, ["chunk 3", "a place that was never filled"]),
    (swapped_neighbour, "all_gather", 4, ["misplaced", "with a message from rank"]),
    (wrong_modulus_at_5, "reduce_scatter", 5, ["missing"]), (wrong_modulus_at_5, "reduce_scatter", 4, []),
    (fills_with_zeros, "all_gather", 2, ["a place that was never filled"]),
    (last_exchange_twice_at_6, "all_reduce", 6, ["added 2 times"]),
    (raises, "all_reduce", 2, ["IndexError", "raised on rank"]),
]


@pytest.mark.parametrize(("function", "collective", "size", "words"), BROKEN, ids=[row[0].__name__ for row in BROKEN])
def test_a_broken_collective_is_not_proved_and_the_message_says_why(function, collective, size, words):
    proof = prove(subject(function, collective), size)
    assert proof.holds == (not words)
    said = "\n".join(fault.what for fault in proof.faults)
    for word in words:
        assert word in said


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_declared_order_is_meant_to_the_letter_and_a_users_up_to_commutation(size):
    def my_all_reduce(comm, chunks, reduce=np.add):
        ring.all_reduce(comm, chunks, lambda arrived, mine: reduce(mine, arrived))

    row = replace(ALGORITHMS["ring.all_reduce"], function=my_all_reduce)
    unnamed = subject(my_all_reduce)
    assert prove(unnamed, size).order == "ring"
    (fault,) = prove(replace(unnamed, algorithm=row), size).faults
    assert fault.what.startswith("rank 0, chunk 0: added as (g0 + ")
    assert fault.what.endswith("+ g0)")


@pytest.mark.parametrize(("in_each_chunk", "name"), [
    ([orders.ring] * 4, "ring"), ([orders.rank_order] * 4, "rank order"), ([orders.near_tree] * 4, "near tree"),
    ([orders.ring] + [orders.far_tree] * 3, None), ([orders.far_tree] * 3 + [orders.near_tree], None),
])
def test_an_order_has_a_name_only_if_every_chunk_is_added_so(in_each_chunk, name):
    dues = list(zip(*(symbols(rank, 4) for rank in range(4)), strict=True))
    held = {due: commuted(order(due, due[0].element)) for due, order in zip(dues, in_each_chunk, strict=True)}
    assert known_order(held, {chunk: chunk for chunk in range(4)}) == name


def test_an_order_that_depends_on_the_chunk_is_that_of_the_chunk_an_element_lies_in():
    """Results span chunks of several elements, of which every one is held to the order of its own."""
    proof = prove(named_subject("ring.all_reduce"), 3)
    assert (proof.holds, proof.lengths) == (True, [3, 0, 1, 7])
    off_by_one = replace(ALGORITHMS["ring.all_reduce"], order=lambda due, chunk: orders.ring(due, (chunk + 1) % 3))
    (fault,) = prove(replace(proof.subject, algorithm=off_by_one), 3).faults
    assert fault.what == "rank 0, chunk 0: added as ((g1 + g2) + g0); declared is ((g2 + g0) + g1)"


@pytest.mark.parametrize(("size", "lengths"), [
    (SMALL - 1, [SMALL - 1, 0, 1, 2 * SMALL - 1]), (SMALL, [SMALL, 0, 1, 2 * SMALL + 1]), (SMALL + 1, [SMALL + 1]),
])
def test_up_to_small_sizes_lengths_do_not_divide(size, lengths):
    assert prove(named_subject("bruck.all_gather"), size).lengths == lengths


@pytest.mark.parametrize(("name", "size", "due"), [
    ("tree.broadcast", SMALL, [*range(SMALL)]), ("tree.broadcast", SMALL + 1, [0, 1, SMALL]),
    ("tree.gather", 2, [0, 1]), ("ring.all_gather", 3, [0]), ("ring.all_gather", SMALL + 1, [0]),
])
def test_the_roots_that_are_tried(name, size, due):
    assert list(roots(named_subject(name), size)) == due


def first_chunk_of_rank_1(comm, chunks, root):
    if comm.rank == root:
        for rank in range(comm.size):
            if rank != root:
                comm.recv(into=chunks[rank], source=rank)
    else:
        comm.send(chunks[0 if comm.rank == 1 else comm.rank], to=root)


@pytest.mark.parametrize(("function", "collective", "said"), [
    (first_chunk_of_rank_1, "gather", [(0, 1, 1)]),
    (swapped_neighbour, "all_gather", [(0, 3, 1), (1, 1, 2), (2, 1, 3), (3, 3, 0)]),
])
def test_a_fault_names_the_sender_of_its_own_rank_and_round(function, collective, said):
    faults = prove(subject(function, collective), 4).faults
    assert [(fault.rank, fault.round) for fault in faults] == [(rank, round_) for rank, round_, _ in said]
    for fault, (_, round_, sender) in zip(faults, said, strict=True):
        assert fault.what.endswith(f", since round {round_}, with a message from rank {sender}")


def test_the_command_prints_sums_and_what_was_proved(capsys):
    assert cli.main(["prove", "ring.all_reduce", "--ranks", "4"]) == 0
    printed = capsys.readouterr().out
    assert "chunk 1  (((g2 + g3) + g0) + g1)" in printed
    assert "every contribution arrives exactly once, added in the declared order, the same on" in printed


def test_the_command_takes_a_file_and_a_range(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(
        "from zerosim.collectives import ring\n"
        "def my_all_reduce(comm, chunks, reduce):\n    ring.all_reduce(comm, chunks, reduce)\n"
    )
    out = tmp_path / "proof.json"
    assert cli.main(["prove", f"{file}:my_all_reduce", "--ranks", "2..5", "--json", str(out)]) == 0
    assert [proof["ranks"] for proof in json.loads(out.read_text())["proofs"]] == [2, 3, 4, 5]
    assert capsys.readouterr().out.count("added in the order of the ring") >= 1


def test_sizes_that_an_algorithm_does_not_serve_are_said(capsys):
    assert cli.main(["prove", "halving.reduce_scatter", "--ranks", "2..5"]) == 0
    assert "not for 3, 5 ranks: it serves a power of two of ranks" in capsys.readouterr().out


ENDLESS = """\
import time
def my_all_reduce(comm, x):
    time.sleep(60)
"""


@pytest.mark.parametrize("command", ["prove", "show"])
def test_a_function_that_never_ends_is_told_of(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("zerosim.proofs.proof.LIMIT_SECONDS", 0.1)
    (tmp_path / "endless.py").write_text(ENDLESS)
    assert cli.main([command, f"{tmp_path}/endless.py:my_all_reduce"]) == 1
    assert "still ran after 0.1 s" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "said"), [
    (["ring.all_reduc"], "did you mean 'ring.all_reduce'?"), (["dissemination.barrier"], "moves no data"),
    (["nosuch.py:f"], "nosuch.py"), ([f"{Path(__file__)}:raises"], "which collective is"),
    ([f"{Path(__file__)}:lost_chukn"], "did you mean 'lost_chunk'?"),
    (["ring.all_reduce", "--as", "all_gather"], "is an algorithm of all_reduce, not of all_gather"),
    (["halving.reduce_scatter", "--ranks", "3,5"], "serves a power of two of ranks, not 3, 5"),
])
def test_what_was_meant_is_said(arguments, said, capsys):
    assert cli.main(["prove", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(("held", "expected", "said"), [
    ((Term(0, 1), Term(1, 1)), [Term(0, 1)], "g1 is not expected here"),
    ((Term(1, 1), Term(2, 1)), [Term(0, 1)], "g0 is missing, g1, g2 are not expected here"),
])
def test_what_is_wrong_with_a_sum_is_a_sentence(held, expected, said):
    assert difference(held[0] + held[1], expected) == said


@pytest.mark.parametrize("ranks", ["1..1000000000000", "0..4", "4..2", "5..2,8", "4..", "257", "-3", "x", "", "2,,3"])
def test_numbers_of_ranks_have_limits(ranks, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["prove", "ring.all_reduce", f"--ranks={ranks}"])
    assert stop.value.code == 2
    words = "a number, a range 2..9 or a list" if ranks[1:4] == "..2" else "a whole number from 1 to 256"
    assert f"give {words}" in capsys.readouterr().err


def test_what_is_seen_on_more_ranks_than_were_asked_for_says_so(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text("def my_all_reduce(comm, chunks):\n    from zerosim.collectives import ring\n"
                    "    ring.reduce_scatter(comm, chunks)\n")
    assert cli.main(["prove", f"{file}:my_all_reduce", "--ranks", "2"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "why: on 4 ranks, in round 4 rank 0 sends nothing to rank 1, where ring.all_reduce sends chunk 0" in said
