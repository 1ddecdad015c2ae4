"""The parameters of Hugging Face's families: those of its own classes, as `tests/oracles/families.py` recorded them."""

import json
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from zerosim.core.errors import ScenarioError, UsageError
from zerosim.plan import foreign
from zerosim.plan.planned_row import rows_of
from zerosim.plan.reading import scenario_of, with_usual_settings

CASES = json.loads(Path(__file__).with_name("families.json").read_text("utf-8"))


def counted(config, tmp_path):
    """The parameters of a plan of a config.json, and what it says of it."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    read = foreign.hugging_face(str(path))
    row, *_ = rows_of(scenario_of(with_usual_settings(), read.keys))
    return row.config.in_one_piece.count, read


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_family_has_the_parameters_of_its_class_or_is_refused_if_its_file_is_odd(case, tmp_path):
    with suppress(ScenarioError, UsageError) if case["name"].startswith("odd") else nullcontext():
        assert counted(case["config"], tmp_path)[0] == case["parameters"]


def test_every_family_has_a_case():
    assert {case["config"]["model_type"] for case in CASES} == {*foreign.TABLES["hugging_face"]["families"]}


def of(name):
    return next(case["config"] for case in CASES if case["name"] == name)


def test_a_family_read_as_another_is_noticed(tmp_path):
    count, _ = counted(of("small qwen3") | {"model_type": "llama"}, tmp_path)
    assert count != next(case["parameters"] for case in CASES if case["name"] == "small qwen3")


@pytest.mark.parametrize(("name", "unread", "chosen"), [
    ("gemma3_4b_vision", ["sliding_window = 1024", "vision_config"], 1), ("llama3_1_8b", [], 1), ("gpt2", [], 0),
    ("deepseek_v3", ["scoring_func = sigmoid", "n_group = 8", "num_nextn_predict_layers = 1"], 2),
    ("gpt_oss_20b", ["sliding_window = 128", "quantization_config.quant_method = mxfp4"], 1), ("qwen2_5_7b", [], 1),
    ("every second block dense", [], 2)])
def test_what_is_not_modelled_and_what_is_chosen_is_said(name, unread, chosen, tmp_path):
    _, read = counted(of(name), tmp_path)
    assert (read.unread, len(read.chosen)) == (unread, chosen)
    assert read.keys["model.sequence"] == min(4096, of(name).get("max_position_embeddings", 4096 if chosen else 1024))
