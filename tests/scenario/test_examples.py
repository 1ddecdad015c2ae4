"""Every folder of `scenarios/examples/` runs and is planned; the code that `docs/extend.md` shows is the examples'."""

import re
import shutil
from copy import copy
from pathlib import Path

import numpy as np
import pytest

from zerosim.commands.cli import main
from zerosim.stages.gathering import OfMatrices
from zerosim.stages.optimizers import OPTIMIZERS
from zerosim.stages.replica import Replica
from zerosim.stages.users_optimizer import optimizer, wrong
from zerosim.training import build

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(path.parent for path in ROOT.glob("scenarios/examples/*/scenario.toml"))
SHORTER = ["--set", "train.steps=2", "--set", "check.test_accuracy=0"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_an_example_runs_and_is_planned(folder, capsys):
    assert main(["run", str(folder / "scenario.toml"), "--progress", "none", *SHORTER]) == 0
    assert "every bit equal to one process" in capsys.readouterr().out
    assert main(["plan", str(folder / "scenario.toml")]) == 0


EXPERTS = ROOT / "scenarios" / "examples" / "mixture_of_experts"


@pytest.fixture
def routed(tmp_path):
    """The folder of a mixture of experts that notes how many samples choose each expert, and the share sent nowhere."""
    shutil.copytree(EXPERTS, tmp_path, dirs_exist_ok=True)
    with (tmp_path / "experts.py").open("a") as code:
        code.write(NOTES)
    return tmp_path


NOTES = """

from dataclasses import replace
from pathlib import Path
import numpy as np

def noted(choices, *, empty, queues, capacity, place=queue_slots.forward):
    out = place(choices, empty=empty, queues=queues, capacity=capacity)
    if isinstance(choices, np.ndarray):
        with Path(__file__).with_name("loads").open("a") as file:
            print(*np.bincount(choices.ravel(), minlength=queues), np.mean(out < 0), file=file)
    return out

queue_slots = replace(queue_slots, forward=noted)
"""


@pytest.mark.parametrize(("old", "new", "even"), [
    ("", "", True), ("top_k(turned(softmax(turned(logits))), choices)", "top_k(softmax(logits), choices)", False)])
def test_the_load_of_experts_stays_reasonable_because_chances_are_balanced(routed, old, new, even):
    code = (routed / "experts.py").read_text()
    (routed / "experts.py").write_text(code.replace(old, new))
    words = ["--set", 'parallel.stages=["ddp"]', "--set", "check.reference=false", "--set", "check.test_accuracy=0"]
    assert main(["run", str(routed / "scenario.toml"), "--progress", "none", *words]) == 0
    *chosen, dropped = np.loadtxt(routed / "loads")[-64:].mean(axis=0)
    assert (min(chosen) > sum(chosen) / 8 / 3 and dropped < 0.1) == even


def test_the_page_shows_code_that_runs():
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "extend.md").read_text(), re.DOTALL)
    files = [*ROOT.glob("scenarios/examples/*/*.py"), ROOT / "tests" / "brought" / "mine.py"]
    code = "\n".join(path.read_text() for path in files)
    assert len(shown) >= 5
    assert [block for block in shown if block.strip() not in code] == []


def test_every_example_is_listed():
    listed = (ROOT / "scenarios" / "examples" / "README.md").read_text()
    assert [folder.name for folder in FOLDERS if f"`{folder.name}/`" not in listed] == []


def test_the_page_names_verbs_that_there_are():
    page = (ROOT / "docs" / "extend.md").read_text()
    listed = page.partition("The verbs of `replica`:\n\n")[2].partition("\n\n")[0]
    verbs = {verb for item in re.findall(r"^- (.*?): ", listed, re.MULTILINE) for verb in re.findall(r"`(\w+)", item)}
    assert len(verbs) > 15
    assert [verb for verb in verbs if verb != "state" and not hasattr(Replica, verb)] == []
    stages = "".join(path.read_text() for path in ROOT.glob("zerosim/stages/zero*.py"))
    used = set(re.findall(r"replica\.(\w+)", stages))
    assert used - verbs == {"loss_name", "tape", "unreduced", "forward_after"}


@pytest.mark.parametrize(("name", "right", "planted", "code"), [
    ("swing", "(-2)", "(-2)", 0), ("swing", "(-2)", "2", 1), ("swing", "else -distance", "else distance", 1),
    ("torus", "%", "%", 0), ("torus", "(behind, behind + 1)", "(behind, behind + 2)", 1),
    ("torus", "(-behind, 1, -behind - 1, -1)", "(-behind, 1, -behind - 1, 1)", 1)])
def test_collectives_of_an_example_are_proved_and_a_planted_fault_is_not(name, right, planted, code, tmp_path):
    text = (ROOT / "scenarios" / "examples" / name / f"{name}.py").read_text()
    (tmp_path / "mine.py").write_text(text.replace(right, planted))
    for function in ("reduce_scatter", "all_gather"):
        assert main(["prove", f"{tmp_path}/mine.py:{function}", "--ranks", "16"]) == code


MUON = str(ROOT / "scenarios" / "examples" / "muon" / "scenario.toml")


def run_muon(*changes):
    return main(["run", MUON, "--progress", "none", "--set", "train.steps=2", "--set", "check.volumes=[]", *(
        word for each in changes for word in ("--set", each))])


@pytest.mark.parametrize("changes", [
    ["parallel.shard_ranks=2", "train.precision=fp64"], ["parallel.units=model", "train.clip_norm=0.1"]])
def test_an_optimizer_of_whole_matrices_has_the_bits_of_one_process(changes):
    assert run_muon(*changes) == 0


def test_an_optimizer_that_rewrites_parts_of_matrices_is_noticed(monkeypatch, capsys):
    class OfParts(OfMatrices):
        def update(self, replica, unit, weights):
            alone = copy(replica)
            alone.all_gather = lambda *_: None
            super().update(alone, unit, weights)

    monkeypatch.setattr(build, "OfMatrices", OfParts)
    assert run_muon() == 1
    assert "Stage III" in capsys.readouterr().out


@pytest.mark.parametrize("change", [
    "train.precision=bf16", "parallel.publish=updates", "parallel.tensor_ranks=2", "parallel.offload_optimizer=host"])
def test_keys_that_an_optimizer_of_whole_matrices_does_not_go_with(change, capsys):
    assert run_muon(change) == 2
    told = capsys.readouterr().err
    assert "muon rewrites differences of whole matrices on the device" in told
    assert change.partition(".")[2].replace("=", " = ") in told


@pytest.mark.parametrize(("of_matrix", "why"), [
    (lambda difference, *, h: difference / 2, "of_matrix leaves a difference unchanged"),
    (lambda difference, *, h: difference @ difference, "ValueError: "),
])
def test_a_wrong_function_of_matrices_is_named(of_matrix, why):
    formula = OPTIMIZERS["sgd"].formula
    assert why in wrong(optimizer(of_matrix=of_matrix)(formula))
