"""`zerosim show`: drawings, pictures, pages and data say what the recording says, of collectives and of stages."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tests.pages import Seen, refused
from zerosim.collectives import ALGORITHMS
from zerosim.commands.cli import main
from zerosim.core.comm import left, right
from zerosim.core.errors import UsageError
from zerosim.observe.trace import COLLECTIVES, COMPUTATION, OUT, RankStep, Span, Trace
from zerosim.proofs.schedule import chunks_of, scheduled
from zerosim.proofs.subject import named_subject, subject
from zerosim.show import drawing
from zerosim.show.drawing import show_schedule, shown_schedule
from zerosim.show.film import of_schedule
from zerosim.show.recorded import events_of


def drawn(schedule, width=100):
    console = Console(width=width, record=True)
    with console.capture() as capture:
        show_schedule(console, schedule)
    return capture.get()


def test_every_algorithm_is_drawn_to_its_end():
    """Each message is a line of the drawing and a move of the film; what is new is marked; nothing is red."""
    for name, row in ALGORITHMS.items():
        for size in filter(row.serves, (1, 3, 4)):
            schedule = scheduled(named_subject(name), size, size - 1 if row.collective == "scatter" else 0)
            found = schedule.document()
            assert found["faults"] == [], (name, size)
            assert len(schedule.messages) == sum(row.messages(rank, size) for rank in range(size)), (name, size)
            frames = of_schedule(schedule).frames
            looks = [look for frame in frames for cells in frame.cells for cell in cells if cell for look in cell.looks]
            assert sum(len(frame.moves) for frame in frames) == sum(
                max(len(sent.carried), 1) for sent in schedule.messages)
            assert "wrong" not in looks, (name, size)
            text, new = drawn(schedule, 400), sum(each["round"] > 0 for each in found["holdings"])
            assert sorted(re.findall(r"(\d) ─([a-z 0-9,…]+)─([⊕─])▶", text)) == sorted(
                (str(sent.source), schedule.place_name(*chunks_of(sent.carried)), "⊕" if sent.reduced else "─")
                for sent in schedule.messages)
            assert text.count("›") - 1 == new == looks.count("new")  # 1 in the legend


def test_a_chunk_moves_to_a_cell_that_is_new_and_has_it():
    for name in ("ring.all_reduce", "rabenseifner.all_reduce", "direct.all_to_all", "tree.scatter"):
        for frame in of_schedule(scheduled(named_subject(name), 4)).frames:
            for _, _, to, into, added, carried in frame.moves:
                reached = frame.cells[to][into]
                assert ("new" in reached.looks, reached.colour) == (True, carried.colour)
                assert {*(carried.parts or ())} <= {*(reached.parts or ())}
                assert added or re.split(r"[\[✓]", carried.text)[0] == re.split(r"[\[✓]", reached.text)[0]


@pytest.mark.parametrize(("name", "root"), [("tree.broadcast", 2), ("tree.scatter", 1), ("naive.gather", 3)])
def test_the_root_is_the_one_that_was_asked_for(name, root):
    schedule = scheduled(named_subject(name), 4, root)
    assert {sent.to if "gather" in name else sent.source for sent in schedule.messages if sent.round == 1} == {root}
    assert schedule.document()["root"] == root
    assert f"root {root}" in drawn(schedule)


def test_four_ranks_fit_a_terminal():
    for name in ALGORITHMS:
        assert max(map(len, drawn(scheduled(named_subject(name), 4), 60).splitlines()[:-1])) <= 60


def test_cells_name_other_chunks_memory_beside_the_vector_and_long_sums():
    schedule = scheduled(named_subject("direct.all_to_all"), 3)
    assert [cell.text for cell in schedule.states[-1][2]] == ["0[2]✓", "1[2]✓", "2✓"]
    states = scheduled(named_subject("bruck.all_gather"), 5).states
    assert [cell.text for cell in states[2][0]] == ["0✓", "(1)", "(2)", "(3)", "·"]
    assert [cell.text for cell in states[4][0]] == ["0✓", "1✓", "2✓", "3✓", "4✓"]
    ends = scheduled(named_subject("halving.reduce_scatter"), 8).states[-1]
    assert "8 terms✓" in {cell.text for cells in ends for cell in cells}
    assert "0…7✓" in {cell.text for cell in scheduled(named_subject("tree.reduce"), 8).states[-1][0]}


def stuck_all_reduce(comm, chunks):
    if comm.rank < 2:
        partner = 1 - comm.rank
        comm.exchange(chunks[0], to=partner, into=chunks[0], source=partner, reduce=np.add)
    comm.recv(into=chunks[1], source=left(comm))


def test_a_deadlock_is_drawn_up_to_there():
    schedule = scheduled(subject(stuck_all_reduce), 3)
    assert [(a.round, a.source, a.to) for a in schedule.messages] == [(1, 1, 0), (1, 0, 1)]
    assert schedule.states[-1][0][0].text == "1+0"
    assert "FAILED: no rank can go on: rank 0 waits for a message from rank 2; rank 1 waits" in drawn(schedule)
    said = " ".join(re.findall(">([^<]*)</text>", shown_schedule(schedule).picture().svg))
    assert "rank 2 waits for a message from rank 1" in said


def disagreeing_all_reduce(comm, x):
    total, passing, incoming = x.copy(), x.copy(), np.empty_like(x)
    for _ in range(comm.size - 1):
        comm.exchange(passing, to=right(comm), into=incoming, source=left(comm))
        total += incoming
        passing[...] = incoming
    return total


def test_an_array_function_shows_what_arrived_its_result_and_that_ranks_disagree():
    schedule = scheduled(subject(disagreeing_all_reduce), 3)
    assert [cell.text for cell in schedule.states[1][0]] == ["(2)"] * 3
    assert [cell.text for cell in schedule.states[-1][0]] == ["0+2+1✓"] * 3
    assert schedule.heading(len(schedule.states) - 1) == "end"
    assert "the ranks disagree" in schedule.verdict
    assert scheduled(subject(disagreeing_all_reduce), 2).proof.holds


def test_a_picture_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(drawing, "MOST_CELLS", 10)
    large = shown_schedule(scheduled(named_subject("ring.all_reduce"), 4))
    with pytest.raises(UsageError, match="would have 112 cells"):
        large.picture()
    assert {*large._repr_mimebundle_()} == {"text/plain"}


def all_reduce(comm, chunks):
    raise ValueError("not yet")


def test_an_error_before_the_first_message_is_drawn():
    assert "FAILED: ValueError: not yet, in line" in drawn(scheduled(subject(all_reduce), 2))


def command(line):
    return main(["show", *map(str, line.split())])


def test_the_command_draws_and_writes(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command("ring.all_reduce --ranks 3 --round 2 --svg ring.svg --json ring.json --html ring.html") == 0
    text = capsys.readouterr().out
    assert (re.findall(r"^(?:start|round \d)", text, re.MULTILINE), text.count("▶")) == (["round 2"], 3)
    assert Path("ring.svg").read_text().count("⊕</text>") == 3
    assert json.loads(Path("ring.json").read_text())["rounds"] == 4
    seen = Seen(Path("ring.html").read_text())
    (film,) = seen.films
    assert (seen.ids, film["first"], len(film["steps"])) == (["film"], 2, 5)
    assert command("--list --ranks 6 --json -") == 0
    found, rows = capsys.readouterr(), {}
    rows = {row["name"]: row for row in json.loads(found.out)["algorithms"]}
    assert list(rows) == list(ALGORITHMS)
    assert rows["ring.all_reduce"]["sent_share"] == pytest.approx(10 / 6)
    assert rows["halving.reduce_scatter"]["steps"] is None
    assert all(name in found.err for name in ALGORITHMS)


def test_the_command_draws_a_stage_and_a_learners_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        'from zerosim.extend import stage\nfrom zerosim.stages.zero2 import step\n'
        '@stage(sharded=("optimizer", "gradients"))\ndef zero2_step(replica, batch): return step(replica, batch)\n'
        'def my_all_reduce(comm, chunks): comm.recv(into=chunks[0], source=0)\n')
    assert command("zero1 --ranks 6 --json a.json --html a.html") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert [line.split()[:3] for line in lines if line.startswith("  2 ")] == [["2", "forward", "layers.1"]] * 2
    assert len(json.loads(Path("a.json").read_text())["moments"][0]["ranks"]) == 6
    assert "rank 5" in Path("a.html").read_text()
    assert command("mine.py:zero2_step --ranks 2") == 0
    assert capsys.readouterr().out.startswith("mine.py:zero2_step: a step on 2 ranks")
    assert command("mine.py:my_all_reduce --ranks 2") == 1
    assert "FAILED: no rank can go on" in capsys.readouterr().out


@pytest.mark.parametrize(("line", "words"), [
    ("ring.all_reduce --round 9", "there are rounds 0 to 6"), ("ring.all_reduce --root 1", "has none"),
    ("tree.broadcast --root 7", "root 7 is none of the 4 ranks"), ("halving.reduce_scatter --ranks 3", "power of two"),
    ("ring.all_reduce --shard-ranks 2", "remove shard-ranks: a collective has none"),
    ("zero1,ring.all_reduce", "'ring.all_reduce' is no stage"), ("zero1,ddp --root 1", "remove root: a stage has none"),
    ("1f1b,zero1", "only stages, or schedules of pipelines, stand beside each other: ddp, zero1, zero2 and zero3; g"),
    ("interleaved", "nor a stage or a pipeline's schedule (ddp, zero1, zero2, zero3, gpipe, 1f1b"),
    ("zero1,ddp --svg a.svg", "there is no picture of this: print it"), ("--list --root 1", "remove all other flags"),
    ("zero1 --round 1", "remove round: a stage has none"), ("zero1 --root 0", "remove root: a stage has none"),
    ("copy_to", "'copy_to' is neither in the table of algorithms"),
    ("zero1 --secondary-ranks 2", "leave out secondary_ranks"), ("zero1 --shard-ranks 3", "does not divide 4 ranks"),
    ("mine.py:zero3_step", "has no function 'zero3_step'"),
    ("skeleton.py:zero2_step", "skeleton.py:zero2_step: not written yet"),
    ("broken.py:zero1_step", "'Replica' object has no attribute 'nothing', in line 4"),
])
def test_a_mistake_is_one_line(line, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    head = 'from zerosim.extend import stage\n@stage(sharded=("optimizer", "gradients"))\n'
    for name, body in {"skeleton": "def zero2_step(replica, batch):\n    raise NotImplementedError\n", "mine": "pass\n",
                       "broken": "def zero1_step(replica, batch):\n    return replica.nothing\n"}.items():
        (tmp_path / f"{name}.py").write_text((head if name != "mine" else "") + body)
    assert words in refused(capsys, "show", *line.split())


def value_of(formula, size):
    """The value of a formula in words for `size` ranks."""
    python = formula.replace("−", "-").replace("⌈log₂ N⌉", "up").replace("⌊log₂ N⌋", "down")
    python = re.sub(r"(\d) ?(?=[(Nud])", r"\1 * ", python)
    down = size.bit_length() - 1
    fold = 0 if size == 2 ** down else 2
    return eval(python, {}, {"N": size, "down": down, "up": down + (fold > 0), "fold": fold,
                             "short": size % 2 * (size + 1) // 2, "H": (size + 1) // 2,
                             "rest": size // 2 if size % 2 or size == 2 else 0})


def test_a_formula_of_steps_has_the_value_of_its_function():
    for name, row in ALGORITHMS.items():
        served = [size for size in (*range(2, 130), 1000, 1024) if row.serves(size)]
        assert [value_of(row.steps_formula, size) for size in served] == [row.steps(size) for size in served], name
    assert value_of("2N − 1", 5) == 9 != ALGORITHMS["ring.all_reduce"].steps(5)


def test_ranks_that_do_different_things_are_not_drawn_as_one():
    def rank(number, what):
        return RankStep(number, 1, 0, 9, [Span(number, COMPUTATION, 1, what, "", 0, 5)], [(0, {})])

    alike = events_of(Trace([], [rank(1, "loss"), rank(0, "loss")]))
    assert [event["what"] for event in alike] == ["loss", "between steps"]
    with pytest.raises(UsageError, match="ranks did different things"):
        events_of(Trace([], [rank(0, "loss"), rank(1, "update")]))


def test_messages_outside_of_any_collective_are_an_event_of_their_own():
    spans = [Span(0, OUT, 1, "", "", 1, 2, 40, 1), Span(0, COLLECTIVES, 1, "all_gather", "u", 3, 6),
             Span(0, OUT, 1, "all_gather", "u", 4, 5, 8, 1), Span(0, COMPUTATION, 1, "forward", "u", 7, 8)]
    found = events_of(Trace([], [RankStep(0, 1, 0, 9, spans, [(0, {"parameters": 1}), (7, {"parameters": 5})])]))
    assert [(each["words"], *each["ranks"][0].values()) for each in found] == [
        ("message", {"1": 40}, {"parameters": 1}), ("all-gather u", {"1": 8}, {"parameters": 1}),
        ("forward u", {}, {"parameters": 5}), ("between steps", {}, {"parameters": 5})]


