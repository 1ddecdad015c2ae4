"""Python callers: scenarios built of objects and dicts, functions instead of names, and what comes back."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import zerosim as zs

HERE = Path(__file__).parents[1]
ROOT = HERE.parent
spec = importlib.util.spec_from_file_location("brought_mine", HERE / "brought" / "mine.py")
mine = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mine)


def small(**sections):
    default = {"train": zs.Train(steps=2, micro_batch=4, micro_batches=2), "parallel": zs.Parallel(stages=("zero2",))}
    return zs.Scenario(title="small", world=zs.World(ranks=2), **default | sections)


def test_a_scenario_of_objects_has_functions_in_place_of_names():
    outcome = zs.run(small(
        model=zs.Model(kind=mine.gated, own={"depth": 1}), data=zs.Data(source=mine.spirals),
        train=zs.Train(steps=2, micro_batch=4, micro_batches=2, optimizer=mine.lion),
        parallel=zs.Parallel(stages=("zero2", mine.compressed), reduce_scatter=mine.halving_reduce_scatter)))
    assert outcome.passed
    assert [row["name"] for row in outcome.rows()] == ["Stage II", "brought_mine:compressed"]
    assert outcome.document["scenario"]["model"]["depth"] == 1
    assert outcome.document["scenario"]["train"]["optimizer"] == "brought_mine:lion"


def test_a_dict_is_a_scenario_too():
    outcome = zs.run({"world": {"ranks": 2}, "parallel": {"stages": ["zero3"]},
                      "train": {"steps": 1, "micro_batches": 2, "optimizer": mine.lion, "beta2": 0.9}})
    assert outcome.passed
    assert outcome.document["scenario"]["train"]["beta2"] == 0.9


@pytest.mark.parametrize(("scenario", "words"), [
    ({"train": {"stps": 1}}, "unknown key 'stps' in [train]; did you mean 'steps'?"),
    ({"train": {"optimizer": lambda g: None}}, "does not take t, h, a, b"),
    ({"train": {"steps": -1}}, "train.steps must be an integer of at least 0, found -1"),
    ({"train": {"optimizer": mine.lion, "beta2": "fast"}}, 'train.beta2 must be a finite number, found "fast"'),
])
def test_what_is_wrong_in_a_dict_is_one_line(scenario, words):
    with pytest.raises(zs.ScenarioError) as told:
        zs.run(scenario)
    assert words in str(told.value)


def test_set_replaces_keys_of_an_object():
    assert len(zs.run(small(), set={"train.steps": 1}).losses()) == 1


def test_everything_shows_itself():
    results = [zs.run(small()), zs.plan(small()), zs.show("ring.all_reduce", ranks=2),
               zs.show(mine.compressed, ranks=2), zs.prove(mine.halving_reduce_scatter, ranks=[2, 4])]
    for result in [*results, zs.check(all_gather)]:
        assert len(repr(result).splitlines()) < 40
        assert result.rows() or result not in results
        assert json.loads(json.dumps(result.document))
        assert result._repr_mimebundle_()["text/plain"] == str(result)


def all_gather(comm, chunks):
    raise NotImplementedError


def mypy(folder):
    return [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir",
            str(ROOT / ".mypy_cache"), "--disable-error-code=type-arg", str(folder / "typed.py")]


def pyright(folder):
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT)], "include": ["typed.py"]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    return [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", "."]


@pytest.mark.long
@pytest.mark.parametrize("checker", [mypy, pyright], ids=lambda checker: checker.__name__)
def test_types_are_complete_for_a_program_outside(checker, tmp_path):
    pytest.importorskip(checker.__name__, reason="types are checked where make lint has installed mypy and pyright")
    text = Path(__file__).with_name("typed_from_outside.py").read_text() + "wrong: int = outcome.about\n"
    (tmp_path / "typed.py").write_text(text)
    assert (ROOT / "zerosim" / "py.typed").exists()
    found = subprocess.run(checker(tmp_path), capture_output=True, text=True, check=False, cwd=tmp_path,
                           env=os.environ | {"MYPYPATH": str(ROOT)})
    wrong = re.findall(r"typed\.py:(\d+):.*error", found.stdout)
    assert (found.returncode, wrong) == (1, [str(text.count("\n"))]), found.stdout
