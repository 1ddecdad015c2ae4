"""`check` of parts of one's own and of exercises: what holds is said, and a fault planted in each kind is named."""

import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import zerosim as zs
from tests.proofs import solutions
from tests.proofs.exercises import skeletons
from tests.sampling import one_in
from zerosim.collectives import ring
from zerosim.commands.cli import main
from zerosim.extend import Layer, Parameter, linear, uniform
from zerosim.models.units import Model, ModelKind, grouped

ROOT = Path(__file__).parents[2]
MINE = (ROOT / "tests" / "brought" / "mine.py").read_text().replace("linear(silu(linear(", "linear(swish(linear(")
PARTS = ("gated", "lion", "compressed", "halving_reduce_scatter", "doubling_all_gather", "spirals")
EXAMPLES = ("lion/lion.py:lion", "residual_mlp/residual.py:residual", "mixture_of_experts/experts.py:mixture",
            "two_level/two_level.py:reduce_scatter", "two_level/two_level.py:all_gather",
            "each_micro_batch/stage.py:step")


def graded(folder, capsys, name):
    code = main(["check", f"{folder / 'mine.py'}:{name}"])
    said = capsys.readouterr()
    return code, " ".join(f"{said.out} {said.err}".split())


@pytest.mark.parametrize("name", PARTS)
def test_parts_hold(name, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(MINE)
    assert main(["check", f"{tmp_path / 'mine.py'}:{name}", "--json", str(tmp_path / "found.json")]) == 0
    claims = [json.loads(line) for line in (tmp_path / "found.json").read_text().splitlines()]
    assert {claim["part"].rpartition(":")[2] for claim in claims} == {name}
    assert {(claim["state"], claim["complaint"]) for claim in claims} == {("holds", None)}


@pytest.mark.parametrize("name", skeletons())
def test_an_exercise_is_not_yet_written(name):
    assert zs.check(skeletons()[name]).verdict == "not yet written"


@pytest.mark.parametrize("exercise", one_in(2, ["5_f_and_g", "6_one_f_one_b"]))
def test_exercises_with_tests_hold_for_solutions_only(exercise, tmp_path):
    for file in (ROOT / "docs" / "exercises").glob(f"*{exercise}.py"):
        shutil.copy(file, tmp_path)

    def passed():
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
        return subprocess.run(command, capture_output=True, check=False, cwd=tmp_path).returncode == 0

    assert not passed()
    shutil.copy(solutions.__file__, tmp_path / f"{exercise}.py")
    assert passed()


@pytest.mark.parametrize("name", one_in(2, EXAMPLES))
def test_examples_hold(name):
    assert zs.check(str(ROOT / "scenarios" / "examples" / name)).passed


@pytest.mark.parametrize(("name", "old", "new", "words"), [
    ("lion", "    momentum *= beta2", "    momentum *= beta2 * np.mean(g)", "a formula works element by element"),
    ("lion", "    np.sign(a, out=a)", "    a += 0.1 * len(g)", "✗ its formula works element by element,"),
    ("lion", "    momentum *= beta2", "    momentum *= np.nan", "elements of the slot momentum not finite"),
    ("swish", "sigma * (1.0 + x * (1.0 - sigma))", "sigma * (1.0 + x)", "∂L/∂x[0, 0] is "),
    ("swish", 'EXAMPLES = {"swish"', 'EXAMPLES = {"other"', "give example shapes of its inputs"),
    ("swish", "sigma = 1.0 / (1.0 + np.exp(-x))", "sigma = 1.0 / (1.0 + np.exp(-z))", "name 'z' is not defined"),
    ("gated", "swish(linear(", "swish([] + linear(", "layer blocks.0: line 23"),
    ("gated", "sigma * (1.0 + x * (1.0 - sigma))", "sigma",
     "layer blocks.1: the gradient of its parameter 'gate' along a random direction is"),
    ("gated", "np.divide(x, 1.0 + np.exp(-x), out=empty(x.shape, x.dtype))", "np.where(x < 9, x, x)",
     "np.where is not for extents"),
    ("compressed", "            gradient = replica.reduce_scatter(unit, gradient)\n", "",
     "replica.keep_shard(layers."),
    ("compressed", "    return loss", "    return 0", "the step returned 0; return the loss"),
    ("compressed", "replica.keep_shard(unit, gradient)", "replica.keep(unit, gradient)",
     "of layers.0's gradients; expected"),
    ("halving_reduce_scatter", "reduce=np.add)", "reduce=lambda arrived, kept: arrived)",
     "; with halving.reduce_scatter it is (g"),
    ("halving_reduce_scatter", "@collective(order=halves_first,", '@collective(order="ring",',
     "declared is"),
    ("halving_reduce_scatter", "    low, high, half = 0,",
     "    if chunks[0].dtype == np.float32:\n        chunks[0][:1] *= 1.001\n    low, high, half = 0,",
     "✗ every stage trains with it to the bits of one process DDP: "),
    ("halving_reduce_scatter", ", powers_of_two=True)", ")", "right on 1, 2, but on 3 ranks"),
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


def test_a_collective_of_no_kind_is_refused_at_the_prompt():
    def doubling(comm, chunks):
        """All-gather that serves everybody wrongly."""

    check = zs.check(doubling)
    assert "let the function's name contain it" in str(check)
    assert not check.passed


@pytest.mark.parametrize(("name", "said"), [
    ("EXAMPLES", "has no function 'EXAMPLES'"), ("both", "is no part; write f(comm, chunks), step(replica, batch)"),
])
def test_what_is_no_part_is_refused(name, said, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(MINE + "\ndef both(a, b, c): ...\n")
    assert main(["check", f"{tmp_path / 'mine.py'}:{name}"]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def blocks_of_teaching(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "docs" / "teaching.md").read_text(), re.M | re.S)


def test_the_lecturers_pytest_file_marks_a_submission(tmp_path):
    lab, _ = blocks_of_teaching("python")
    (tmp_path / "test_lab.py").write_text(lab)
    text = (ROOT / "docs" / "exercises" / "1_ring.py").read_text()
    walk = inspect.getsource(ring.reduce_scatter).partition('"""')[2].partition('"""\n')[2]
    (tmp_path / "1_ring.py").write_text(text.replace("    raise NotImplementedError\n", walk, 1))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "2 failed, 1 passed" in ended.stdout
    assert "not yet written" in ended.stdout


def test_the_command_of_the_classroom_exits_with_1_for_a_skeleton(tmp_path, monkeypatch, capsys):
    (workflow,) = blocks_of_teaching("yaml")
    (command,) = re.findall(r"command: zerosim (.*)", workflow)
    shutil.copy(ROOT / "docs" / "exercises" / "1_ring.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main([*command.split(), "--json", "-"]) == 1
    claims = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {claim["state"] for claim in claims} == {"not yet written"}
    assert len(claims) == 3


def test_a_kind_of_model_with_a_parameter_that_it_does_not_read_is_wrong():
    def for_task(settings, task, groups, frozen):
        parameters = Parameter("weight", (task.outputs, task.inputs), uniform(0.1)), Parameter("bias", (3,), uniform(1))
        layer = Layer("only", "only.", parameters, lambda weights, x: linear(x, weights["weight"]))
        return Model(grouped([layer], groups, frozen), task, "one product")

    told = str(zs.check(ModelKind("one", (), for_task, lambda settings: 1)))
    assert "layer only: its code does not read the parameter 'bias'" in told
