"""The walk of a row from its file to the verdict passes the types that the documents name, and no others."""

import re
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from zerosim.models import MODELS, build
from zerosim.models.units import Task
from zerosim.observe.traffic import Count
from zerosim.scenario import ModelKeys, Scenario, load
from zerosim.scenario.sections import Variant
from zerosim.training import comparison, config, experiment, measurement, program
from zerosim.verdict import outcome
from zerosim.verdict.judged_run import prepare_run, run_locally

MODULES = {module.__name__ for module in (config, experiment, program, comparison, measurement, outcome)}
MODULES |= {Scenario.__module__}
BESIDE = {Scenario, Variant, Count}
"""Types of the walk whose modules have others too; msgspec makes a scenario without its `__init__`."""
MANY = 12


def types_passed(path):
    """The types of these modules that come into being while the rows of a scenario are prepared, run and judged."""
    passed = {Scenario}

    def note(frame, event, _):
        kind = type(frame.f_locals.get("self"))
        if event == "call" and frame.f_code.co_name == "__init__" and (kind.__module__ in MODULES or kind in BESIDE):
            passed.add(kind)

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        assert run_locally(prepare_run(load(path))).passed
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return {kind.__name__ for kind in passed}


def test_a_row_passes_the_types_of_the_architecture(tmp_path):
    path = tmp_path / "one_row.toml"
    path.write_text("[world]\nranks = 2\n[train]\nsteps = 2\nmicro_batches = 2\n[[variant]]\nstage = 'zero3'\n")
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = re.search(r"These are twelve types: (.*?)\.\n?", page, re.DOTALL)[1]
    assert types_passed(path) == set(re.findall(r"`(\w+)`", listed))
    assert len(re.findall(r"`(\w+)`", listed)) == MANY


@dataclass(frozen=True)
class Smoothed(Task):
    """A task with a key that no model knows."""

    label_smoothing: float = 0.0


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_carries_the_task_that_it_is_given(kind):
    """Its sizes may be the model's own; a key of the task that a model does not know is not dropped."""
    tokens = kind != "mlp"
    task = Smoothed(8, 10, "cross_entropy", tokens=tokens, label_smoothing=0.25)
    keys = ModelKeys(kind=kind, **({"width": 8, "heads": 2, "layers": 1, "sequence": 4} if tokens else {}))
    carried = build(keys, task, keys.units_of("layer")).task
    assert (carried.label_smoothing, carried.outputs) == (0.25, 10)
    assert carried.inputs == (4 if tokens else 8)
