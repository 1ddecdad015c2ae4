"""`zerosim show`: drawings, pictures and data say what the recording says."""

import argparse
import dataclasses
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from tests.pages import refused
from zerosim.collectives import ALGORITHMS
from zerosim.commands import show
from zerosim.commands.cli import main
from zerosim.commands.show import show_algorithms
from zerosim.core.comm import left, right
from zerosim.core.errors import UsageError
from zerosim.proofs.subject import named_subject, subject
from zerosim.show import schedule_svg
from zerosim.show.film import show_schedule
from zerosim.show.schedule import schedule_document, scheduled
from zerosim.show.schedule_svg import schedule_picture
from zerosim.show.shown import printed

SIZES = range(1, 10)
EVERY = [(name, size) for name, row in ALGORITHMS.items() for size in SIZES if row.serves(size)]
COLOUR = "\x1b["


def drawn(schedule, width=100, **terminal):
    console = Console(width=width, record=True, **terminal)
    with console.capture() as capture:
        show_schedule(console, schedule)
    return capture.get()


def test_every_algorithm_is_shown_to_its_end():
    for name, size in EVERY:
        schedule = scheduled(named_subject(name), size, size - 1 if ALGORITHMS[name].collective == "scatter" else 0)
        assert schedule.faults == [], (name, size)
        assert len(schedule.arrows) == sum(ALGORITHMS[name].messages(rank, size) for rank in range(size)), (name, size)
        drawn = ElementTree.fromstring(schedule_picture(schedule))
        assert len(drawn.findall(".//*[@class='message']")) == len(schedule.arrows)
        assert json.loads(json.dumps(schedule_document(schedule)))["faults"] == []


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_the_ring_holds_partial_sums(size):
    found = {
        (each["round"], each["rank"], each["chunk"]): each["holds"]
        for each in schedule_document(scheduled(named_subject("ring.reduce_scatter"), size))["holdings"]
    }
    for rank in range(size):
        assert [found.pop((0, rank, chunk)) for chunk in range(size)] == [f"g{rank}"] * size
        for step in range(1, size):
            chunk = (rank - step - 1) % size
            total = f"g{(chunk + 1) % size}"
            for distance in range(2, step + 2):
                total = f"({total} + g{(chunk + distance) % size})"
            assert found.pop((step, rank, chunk)) == total
    assert found == {}


@pytest.mark.parametrize(("name", "root"), [("tree.broadcast", 2), ("tree.scatter", 1), ("naive.gather", 3)])
def test_the_root_is_the_one_that_was_asked_for(name, root):
    schedule = scheduled(named_subject(name), 4, root)
    ends = {arrow.to if "gather" in name else arrow.source for arrow in schedule.arrows if arrow.round == 1}
    assert ends == {root}
    assert schedule_document(schedule)["root"] == root
    assert f"root {root}" in drawn(schedule)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_four_ranks_fit_a_hundred_columns(name):
    lines = drawn(scheduled(named_subject(name), 4)).splitlines()
    assert max(map(len, lines)) <= 100
    assert all(line == line.rstrip() for line in lines)
    assert "left out" not in lines[-2]


def test_each_line_of_the_drawing_is_a_message_of_the_recording():
    schedule = scheduled(named_subject("rabenseifner.all_reduce"), 6)
    lines = re.findall(r"(\d) ─+([a-z 0-9,]+)─+([+─])▶ rank (\d)", drawn(schedule))
    assert lines == [
        (str(a.source), schedule.cargo(a), "+" if a.reduced else "─", str(a.to)) for a in schedule.arrows
    ]


def test_what_is_new_in_a_round_is_marked():
    schedule = scheduled(named_subject("tree.reduce"), 4)
    assert drawn(schedule).count("›") == 1 + sum(len(arrow.lands) for arrow in schedule.arrows)  # 1 in the legend


def test_all_to_all_names_the_chunk_that_a_term_comes_from():
    schedule = scheduled(named_subject("direct.all_to_all"), 3)
    assert [cell.text for cell in schedule.states[-1][2]] == ["0[2]✓", "1[2]✓", "2✓"]


def test_memory_beside_the_vector_is_told_apart():
    states = scheduled(named_subject("bruck.all_gather"), 5).states
    assert [cell.text for cell in states[2][0]] == ["0✓", "(1)", "(2)", "(3)", "·"]
    assert [cell.text for cell in states[4][0]] == ["0✓", "1✓", "2✓", "3✓", "4✓"]


def test_long_sums_are_abbreviated():
    texts = {cell.text for cells in scheduled(named_subject("halving.reduce_scatter"), 8).states[-1] for cell in cells}
    assert "8 terms✓" in texts
    assert "0…7✓" in {cell.text for cell in scheduled(named_subject("tree.reduce"), 8).states[-1][0]}


def test_what_is_left_out_is_said():
    text = drawn(scheduled(named_subject("ring.all_reduce"), 20))
    assert "left out: ranks 16…19, rounds 32…37; --json FILE lists them all" in text
    assert "round 38" in text
    assert "round 31" in text
    assert "round 32" not in text


@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("name", ["ring.all_reduce", "halving.reduce_scatter", "bruck.all_gather", "direct.all_to_all"])
def test_nothing_is_left_out_where_lines_have_only_what_is_new(name, size, width):
    schedule = scheduled(named_subject(name), size)
    lines = drawn(schedule, width).splitlines()
    assert max(map(len, lines)) <= width
    assert not any("left out" in line for line in lines)
    news = " ".join(lines)
    texts = {cell.text for _, cell in schedule.news() if cell.since}
    assert {text for text in texts if f": ›{text}" not in news} == set()
    assert news.count("▶ rank") == len(schedule.arrows)


def test_neighbours_that_read_the_same_are_one():
    text = drawn(scheduled(named_subject("tree.scatter"), 16), 80)
    assert "8 ────chunks 10,11─────▶ rank 10  chunk 10: ›0✓  chunk 11: ›0" in text
    assert "rank 0   chunk 0:  0✓  chunks 1–15:  0" in text


@pytest.mark.parametrize("width", [60, 80])
def test_the_table_of_algorithms_fits_narrow_terminals_too(width):
    lines = printed(lambda console: show_algorithms(console, 8), width).splitlines()
    assert max(map(len, lines)) <= width
    figures = lines[lines.index("ring.all_reduce") + 2]
    assert re.fullmatch(r"  2 \(N − 1\) +1\.75 n +any +ring +\[\d\]", figures)


def test_colour_only_where_there_is_colour(monkeypatch):
    schedule = scheduled(named_subject("ring.all_reduce"), 3)
    assert COLOUR not in drawn(schedule)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = drawn(schedule, force_terminal=True)
    assert f"{COLOUR}36m1 ─chunk 0─+▶" in coloured
    assert f"{COLOUR}1;36m1+2{COLOUR}0m" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    colourless = drawn(schedule, force_terminal=True)
    assert not re.search(r"\x1b\[[\d;]*3\dm", colourless)
    assert re.sub(r"\x1b\[[\d;]*m", "", colourless) == drawn(schedule)


def stuck_all_reduce(comm, chunks):
    if comm.rank < 2:
        partner = 1 - comm.rank
        comm.exchange(chunks[0], to=partner, into=chunks[0], source=partner, reduce=np.add)
    comm.recv(into=chunks[1], source=left(comm))


def test_a_deadlock_is_drawn_up_to_there():
    schedule = scheduled(subject(stuck_all_reduce), 3)
    assert [(a.round, a.source, a.to) for a in schedule.arrows] == [(1, 1, 0), (1, 0, 1)]
    assert schedule.states[-1][0][0].text == "1+0"
    *_, last, why = drawn(schedule).splitlines()
    assert why.startswith("why: ")
    assert last.startswith("FAILED: no rank can go on: rank 0 waits for a message from rank 2; rank 1 waits")
    assert "rank 2 waits for a message from rank 1" in schedule_picture(schedule)


def disagreeing_all_reduce(comm, x):
    total, passing, incoming = x.copy(), x.copy(), np.empty_like(x)
    for _ in range(comm.size - 1):
        comm.exchange(passing, to=right(comm), into=incoming, source=left(comm))
        total += incoming
        passing[...] = incoming
    return total


def test_an_array_function_shows_what_arrived_and_its_result():
    schedule = scheduled(subject(disagreeing_all_reduce), 3)
    assert [cell.text for cell in schedule.states[1][0]] == ["(2)"] * 3
    assert [cell.text for cell in schedule.states[-1][0]] == ["0+2+1✓"] * 3
    assert schedule.heading(len(schedule.states) - 1) == "end"


def test_ranks_that_disagree_do_not_pass():
    assert scheduled(subject(disagreeing_all_reduce), 2).faults == []
    assert "the ranks disagree" in scheduled(subject(disagreeing_all_reduce), 3).verdict


def doubling_all_reduce(comm, chunks):
    for chunk in chunks:
        comm.exchange(chunk, to=comm.rank, into=chunk, source=comm.rank, reduce=np.add)


def test_what_is_wrong_with_a_result_is_said():
    schedule = scheduled(subject(doubling_all_reduce), 2)
    assert [cell.text for cell in schedule.states[-1][1]] == ["1+1", "1+1"]
    assert "g0 is added 2 times" in schedule.verdict
    assert schedule.verdict.endswith("; and 1 more rank")


def failing_broadcast(comm, vector, root):
    raise ValueError("<no> & never")


def test_an_error_before_the_first_message_is_shown():
    schedule = scheduled(subject(failing_broadcast), 2)
    assert schedule.verdict.startswith("FAILED: ValueError: <no> & never, in line ")
    assert "<no> & never" in ElementTree.fromstring(schedule_picture(schedule)).find("{*}desc").text


def test_the_picture_is_complete_and_has_nothing_outside():
    schedule = scheduled(named_subject("ring.all_reduce"), 4)
    root = ElementTree.fromstring(schedule_picture(schedule))
    _, _, width, height = map(float, root.get("viewBox").split())
    assert root.find("{*}title").text == "ring.all_reduce on 4 ranks"
    assert "24 messages" in root.find("{*}desc").text
    assert len(root.findall(".//*[@class='cell']")) == 7 * 4 * 4
    for box in root.iter("{*}rect"):
        assert 0 <= float(box.get("x")) <= width - float(box.get("width"))
        assert 0 <= float(box.get("y")) <= height - float(box.get("height"))
    assert {element.tag.split("}")[1] for element in root.iter()} == {
        "svg", "title", "desc", "style", "text", "g", "rect", "path", "circle",
    }


def test_a_picture_too_large_to_look_at_is_refused(monkeypatch):
    schedule = scheduled(named_subject("ring.all_gather"), 4)
    monkeypatch.setattr(schedule_svg, "MOST_CELLS", 63)
    with pytest.raises(UsageError, match="would have 64 cells, at most 63"):
        schedule_picture(schedule)


def command(*arguments):
    parser = argparse.ArgumentParser()
    show.add_arguments(parser)
    return show.main(parser.parse_args([str(each) for each in arguments]))


def test_the_command_draws_and_writes(tmp_path, capsys):
    svg, data = tmp_path / "ring.svg", tmp_path / "ring.json"
    assert command("ring.all_reduce", "--ranks", 3, "--svg", svg, "--json", data) == 0
    schedule = scheduled(named_subject("ring.all_reduce"), 3)
    assert svg.read_text() == schedule_picture(schedule)
    assert json.loads(data.read_text()) == schedule_document(schedule)
    out = capsys.readouterr().out
    assert out == drawn(schedule)
    assert COLOUR not in out


def test_json_on_standard_output_is_alone_there(capsys):
    assert command("tree.broadcast", "--json", "-") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["schema"] == "zerosim.schedule/1"
    assert "PASSED" in captured.err


def test_a_function_of_the_user_with_a_deadlock_exits_with_1(tmp_path, capsys):
    mine = tmp_path / "mine.py"
    mine.write_text("def my_sum(comm, x):\n    comm.recv(into=x, source=comm.rank)\n    return x\n")
    assert command(f"{mine}:my_sum", "--as", "all_reduce", "--ranks", 2) == 1
    assert "rank 1 waits for a message from rank 1" in capsys.readouterr().out


MISTAKES = {
    "ring.all_recude": "'ring.all_recude' is neither in the table of algorithms",
    "ring": "did you mean 'ring.all_reduce'?",
    "zero4": "nor a stage (ddp, zero1, zero2, zero3) nor FILE.py:FUNCTION; did you mean 'zero3'?",
    "tree.reduce --svg x.png": "--svg: found 'x.png'; give a name that ends in .svg",
    "doubling.all_gather --ranks 6": "not 6: use 'bruck' or 'ring' or 'direct'",
    "ring.all_reduce --root 0": "remove root: ring.all_reduce has none",
    "tree.reduce --root 4": "root 4 is none of the 4 ranks: give one from 0 to 3",
    "tree.reduce --root -1": "root -1 is none of the 4 ranks",
    "tree.reduce --svg /": "--svg: cannot write '/': is a directory",
    "tree.reduce --json no/such/folder": "--json: cannot write 'no/such/folder'",
    "--list --root 1": "remove --root: it is for a drawing",
    "--list --as reduce": "remove --as",
    "--list --svg x.svg": "remove --svg",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(line):
    with pytest.raises(UsageError) as raised:
        command(*line.split())
    assert MISTAKES[line] in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("line", ["", "ring.all_reduce --list", "ring.all_reduce --ranks 0", "tree.reduce --ranks 1e3"])
def test_a_command_line_that_cannot_be_read_exits_with_2(line, capsys):
    with pytest.raises(SystemExit) as raised:
        command(*line.split())
    assert raised.value.code == 2


def test_the_table_lists_every_algorithm(capsys):
    assert command("--list") == 0
    out = capsys.readouterr().out
    assert re.findall(r"^(\w+\.\w+) ", out, re.M) == list(ALGORITHMS)
    for row in ALGORITHMS.values():
        assert row.title in out
        assert row.source in out
    assert max(map(len, out.splitlines())) <= 100
    assert re.search(r"^ring\.all_reduce +2 \(N − 1\) +1\.75 n +any +ring +\[\d\]$", out, re.M)


def value_of(formula, size):
    """What a formula says of `size` ranks, read as one reads it."""
    python = formula.replace("−", "-").replace("⌈log₂ N⌉", "up").replace("⌊log₂ N⌋", "down")
    python = re.sub(r"(\d) ?(?=[(Nud])", r"\1 * ", python)
    down = size.bit_length() - 1
    fold = 0 if size == 2 ** down else 2
    return eval(python, {}, {"N": size, "down": down, "up": down + (fold > 0), "fold": fold,
                             "short": size % 2 * (size + 1) // 2, "H": (size + 1) // 2,
                             "rest": size // 2 if size % 2 or size == 2 else 0})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_formula_has_the_value_of_its_function(name):
    row = ALGORITHMS[name]
    served = [size for size in (*range(2, 130), 1000, 1024) if row.serves(size)]
    assert [value_of(row.steps_formula, size) for size in served] == [row.steps(size) for size in served]


def test_a_formula_of_other_steps_is_seen():
    row = ALGORITHMS["ring.all_reduce"]
    assert value_of("2N − 1", 5) == 9 != row.steps(5)
    assert value_of("2 ⌊log₂ N⌋ + fold", 6) == 6
    assert value_of("⌈log₂ N⌉", 6) == 3


def test_an_algorithm_with_steps_of_any_kind_is_listed(monkeypatch, capsys):
    """No formula is guessed from numbers."""
    keys = {"steps": lambda size: size * size + 7, "steps_formula": "N² + 7"}
    odd = dataclasses.replace(ALGORITHMS["ring.all_reduce"], name="odd", **keys)
    monkeypatch.setitem(ALGORITHMS, "odd.all_reduce", odd)
    assert command("--list") == 0
    assert "N² + 7" in capsys.readouterr().out


def test_the_table_as_data(capsys):
    assert command("--list", "--ranks", 6, "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in found["algorithms"]}
    assert found["ranks"] == 6
    assert rows["ring.all_reduce"]["steps"] == 10
    assert rows["ring.all_reduce"]["sent_share"] == pytest.approx(10 / 6)
    assert (rows["halving.reduce_scatter"]["steps"], rows["halving.reduce_scatter"]["sent_share"]) == (None, None)
    assert rows["tree.reduce"]["order"] == "near tree"


def test_one_round_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["show", "ring.all_reduce", "--ranks", "8", "--round", "6", "--svg", "a.svg", "--html", "a.html"]) == 0
    out = capsys.readouterr().out
    assert "round 6" in out
    assert out.count("chunk") == 16
    assert "round 5" not in out
    assert "1…3 is 1+2+3" in out
    headings = re.findall(r'class="heading"[^>]*>([^<]*)<', Path("a.svg").read_text())
    assert headings == ["round 5", "round 6"]
    assert Path("a.svg").read_text().count('class="message"') == 8
    assert 'value="6"' in Path("a.html").read_text()
    assert refused(capsys, "show", "ring.all_reduce", "--ranks", "3", "--round", "5") == (
        "zerosim: --round 5: ring.all_reduce on 3 ranks has rounds 1 to 4; 0 is the start")


def test_sums_of_sixteen_ranks_are_written_as_one_writes_them():
    texts = {cell.text for _, cell in scheduled(named_subject("ring.all_reduce"), 16).news()}
    assert "12…15+0…11✓" in texts
    assert not any("terms" in text for text in texts)
