"""Models to split, and the outcome of a run."""

from pathlib import Path

from zerosim.scenario.data import load_dataset
from zerosim.scenario.load import load
from zerosim.training.experiment import prepare
from zerosim.verdict.judged_run import run_locally

MLP = """
[world]
ranks = 4
[model]
hidden = [8, 6, 8]
[train]
steps = 3
micro_batch = 4
"""
GPT = """
[world]
ranks = 4
[data]
source = "text"
[model]
kind = "transformer"
layers = 2
width = 16
heads = 4
sequence = 8
[train]
steps = 2
micro_batch = 2
"""
LLAMA = 'model.architecture="llama"', "model.key_value_heads=2", "model.inner=44"
EVEN = ("model.vocabulary=68",)
SPLIT = f"{Path(__file__).parents[1] / 'brought' / 'split.py'}:net"
MIXTURE = """
[world]
ranks = 4
[data]
source = "text"
[model]
kind = "mixture"
width = 16
inner = 8
sequence = 8
[train]
steps = 2
micro_batch = 4
"""
PIECES = ["parallel.tensor_ranks=2", "parallel.sequence_parallel=true", "parallel.expert_ranks=2",
          "model.queue_tokens=2"]


def read(text, tmp_path, *changes):
    path = tmp_path / "scenario.toml"
    path.write_text(text)
    return load(path, [*changes])


def outcome(text, tmp_path, *changes):
    scenario = read(text, tmp_path, *changes)
    return run_locally(prepare(scenario, load_dataset(scenario)))
