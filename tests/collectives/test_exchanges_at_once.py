"""Several exchanges at once: a ring in both directions through everything that wraps a communicator."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from zerosim.collectives.narrow import Narrowed
from zerosim.commands.cli import main
from zerosim.core.allocation import allocate
from zerosim.core.comm import Exchange, among
from zerosim.core.errors import Deadlock
from zerosim.core.sharding import split
from zerosim.core.wires import Format
from zerosim.observe.faults import Faults, Faulty
from zerosim.observe.observed import Observed
from zerosim.worlds.local import spawn

FOLDER = Path(__file__).parents[2] / "scenarios" / "examples" / "two_way_ring"
CODE = (FOLDER / "two_way_ring.py").read_text()
sys.path.insert(0, str(FOLDER))
from two_way_ring import all_gather  # noqa: E402

WRAPPED = {
    "plain": lambda comm, x: comm,
    "some of its ranks": lambda comm, x: among(comm, range(comm.size)),
    "observed": lambda comm, x: Observed(comm),
    "faulty": lambda comm, x: Faulty(comm, Faults([], None, None)),
    "narrow": lambda comm, x: Narrowed(comm, Format("int8", block=0), allocate),
}


@pytest.mark.parametrize("wrapper", WRAPPED)
def test_every_wrapper_does_several_exchanges_at_once(wrapper):
    def program(comm):
        x = np.full(10, 127 * (comm.rank + 1), np.float32)
        wrapped = WRAPPED[wrapper](comm, x)
        all_gather(wrapped, split(x, comm.size))
        return x.tolist()

    due = [127.0 * (rank + 1) for rank in (0, 0, 0, 1, 1, 1, 2, 2, 2, 3)]
    assert spawn(program, ranks=4) == [due] * 4


def test_they_are_one_round_of_a_picture(capsys):
    assert main(["show", f"{FOLDER}/two_way_ring.py:all_gather", "--ranks", "3"]) == 0
    drawn = capsys.readouterr().out
    assert "all_gather on 3 ranks: 2 rounds, 12 messages" in drawn
    assert re.search(r"round 1 .*\nrank 0 +2 ─no chunk──▶ .*\n +1 ─chunk 1──▶", drawn)


@pytest.mark.parametrize(("old", "new", "words"), [
    ("for half, turn in enumerate((1, -1)):", "for half, turn in enumerate((-1, 1)):", "declared is"),
    ("def both_ways(comm, chunks, behind, reduce=None):",
     "def both_ways(comm, chunks, behind, reduce=None):\n    behind = min(behind, 2)", "holds"),
    ("np.concatenate(sums)", "sums[0]", "the declared order of addition fails"),
])
def test_a_wrong_half_is_found(old, new, words, tmp_path, capsys):
    (tmp_path / "two_way_ring.py").write_text(CODE.replace(old, new))
    assert CODE.count(old) == 1
    assert main(["prove", f"{tmp_path}/two_way_ring.py:reduce_scatter", "--ranks", "4"]) == 1
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(("old", "new", "code", "words"), [
    ("", "", 0, "sends 12 chunks in 24 messages and 3 rounds; 12 chunks is the least\n"),
    ("lambda ranks: ranks - 1", "lambda ranks: ranks", 1,
     "a rank sends 3 chunks on average, and chunks_sent declares 4 on 4 ranks"),
    (", chunks_sent=lambda ranks: ranks - 1", "", 0, "12 chunks is the least\n"),
])
def test_what_is_sent_is_compared_with_the_least_and_with_the_declaration(old, new, code, words, tmp_path, capsys):
    (tmp_path / "two_way_ring.py").write_text(CODE.replace(old, new) if old else CODE)
    assert main(["prove", f"{tmp_path}/two_way_ring.py:reduce_scatter", "--ranks", "4"]) == code
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("sends", ["buffered", "rendezvous"])
def test_a_partner_that_stays_away_is_named(sends):
    def program(comm):
        if comm.rank:
            comm.exchange_all([Exchange(np.ones(1), other, np.empty(1), other) for other in range(3)])

    with pytest.raises(Deadlock, match="rank 1 waits for a message from rank 0, which has finished; rank 2 waits"):
        spawn(program, ranks=3, sends=sends)
