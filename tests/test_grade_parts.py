"""`grade` of parts of one's own: what holds is said, and a fault planted in each kind is named as exercises' are."""

import json
from pathlib import Path

import pytest

import zerosim as zs
from zerosim.cli import main

ROOT = Path(__file__).parents[1]
MINE = (ROOT / "tests" / "brought" / "mine.py").read_text().replace("linear(silu(linear(", "linear(swish(linear(")
PARTS = ("gated", "lion", "compressed", "halving_reduce_scatter", "doubling_all_gather", "spirals")
EXAMPLES = ("lion/lion.py:lion", "residual_mlp/residual.py:residual", "mixture_of_experts/experts.py:mixture",
            "two_level/two_level.py:reduce_scatter", "two_level/two_level.py:all_gather",
            "each_micro_batch/stage.py:step")


def graded(folder, capsys, name):
    code = main(["grade", f"{folder / 'mine.py'}:{name}"])
    found = capsys.readouterr()
    return code, " ".join(f"{found.out} {found.err}".split())


def test_parts_hold(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(MINE)
    names = [f"{tmp_path / 'mine.py'}:{name}" for name in PARTS]
    assert main(["grade", *names, "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["passed"]
    assert [file["functions"][0]["state"] for file in found["files"]] == ["holds"] * len(PARTS)
    assert "every stage trains with it to the bits of one process" in capsys.readouterr().out


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_hold(name):
    assert zs.grade(str(ROOT / "scenarios" / "examples" / name)).passed


@pytest.mark.parametrize(("name", "old", "new", "words"), [
    ("lion", "    momentum *= beta2", "    momentum *= beta2 * np.mean(g)", "a formula works element by element"),
    ("lion", "    np.sign(a, out=a)", "    a += 0.1 * len(g)", "✗ 0/2 its formula works element by element,"),
    ("gated", "swish(linear(", "swish([] + linear(", "layer blocks.0: line 23"),
    ("gated", "sigma * (1.0 + x * (1.0 - sigma))", "sigma",
     "layer blocks.1: the gradient of its parameter 'gate' along a random direction is"),
    ("gated", "np.divide(x, 1.0 + np.exp(-x), out=out)", "out[...] = np.where(x < 9, x, x)",
     "np.where is not for extents"),
    ("compressed", "            gradient = replica.reduce_scatter(unit, gradient)\n", "",
     "is that of rank 0 alone: the other ranks' gradients are missing"),
    ("compressed", "replica.keep_shard(unit, gradient)", "replica.keep(unit, gradient)", "bytes of gradients, not"),
    ("halving_reduce_scatter", "reduce=np.add)", "reduce=lambda arrived, kept: arrived)",
     "is overwritten on its own rank before it is added"),
    ("halving_reduce_scatter", "@collective(order=halves_first,", '@collective(order="ring",',
     "every chunk is added in the order that it declares"),
    ("halving_reduce_scatter", "    low, high, half = 0,",
     "    if chunks[0].dtype == np.float32:\n        chunks[0][:1] *= 1.001\n    low, high, half = 0,",
     "✗ 0/2 every stage trains with it to the bits of one process DDP: "),
    ("halving_reduce_scatter", ", powers_of_two=True)", ")", "or declare it: @collective(powers_of_two=True)"),
    ("halving_reduce_scatter", "@collective(order=halves_first, powers_of_two=True)\n", "",
     "does not declare its order of addition"),
    ("spirals", '{"x": x[10:]', '{"x": x[10:].tolist()', "its x is a list"),
])
def test_a_fault_is_named(name, old, new, words, tmp_path, capsys):
    assert old in MINE
    (tmp_path / "mine.py").write_text(MINE.replace(old, new))
    code, said = graded(tmp_path, capsys, name)
    assert code == 1
    assert words in said


def test_parts_of_a_program_are_graded_at_the_prompt():
    def doubling(comm, chunks):
        """All-gather that serves everybody wrongly."""

    found = zs.grade(doubling)
    assert "let its name contain which" in str(found)
    assert not found.passed


@pytest.mark.parametrize(("words", "said"), [
    (["{0}:lion", "{0}"], "is not a part; give parts as FILE.py:NAME"),
    (["{0}:lion", "--csv", "points.csv"], "--csv and --feedback are for exercises"),
    (["{0}:EXAMPLES"], "has no function 'EXAMPLES'"),
    (["{0}:both"], "is no part; write f(comm, chunks), step(replica, batch)"),
])
def test_what_is_no_part_is_refused(words, said, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(MINE + "\ndef both(a, b, c): ...\n")
    assert main(["grade", *(word.format(tmp_path / "mine.py") for word in words)]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
