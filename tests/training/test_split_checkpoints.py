"""Checkpoints of split models, which `laws` saves and resumes: what is of another place or model is seen."""

import pytest

from tests.models.split import MLP, read
from tests.training.checkpointing import go
from zerosim.core.errors import CheckpointError
from zerosim.models.units import Task
from zerosim.scenario.data import load_dataset
from zerosim.training import program
from zerosim.training.config import configured
from zerosim.training.keeping import latest
from zerosim.training.state_file import read as read_file


def trained(folder, data, tensor, stage, **said):
    """The outcome of data ranks times tensor ranks, saved or resumed."""
    scenario = read(MLP, folder, f"world.ranks={data * tensor}", f"parallel.tensor_ranks={tensor}",
                    "train.micro_batches=4", f'parallel.stages=["{stage}"]')
    return go(scenario, load_dataset(scenario), **said)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The folder of a checkpoint of two data ranks on two places."""
    folder = tmp_path_factory.mktemp("one")
    trained(folder, 2, 2, "zero3", save=folder / "a", steps=2)
    return folder / "a"


def test_a_piece_of_another_place_is_noticed(kept, tmp_path, monkeypatch):
    honest = program.restored
    monkeypatch.setattr(program, "restored", lambda config, saved, replica, place: honest(config, saved, replica, 0))
    again = trained(tmp_path, 2, 4, "zero1", resume=kept)
    assert [what for _, what in again.failures][:1] == ["bits differ"]


@pytest.mark.parametrize(("change", "words"), [
    (["model.hidden=[8, 6, 4]"], "has shape [8, 6] of layers.2.weight, which has shape [4, 6] here"),
    (["model.hidden=[8, 6, 8, 10]"], "lacks layers.4.weight, which has shape [10, 10] here"),
])
def test_a_different_model_is_named(change, words, kept, tmp_path):
    saved = read_file(latest(kept / "zero3"))
    row, *_ = read(MLP, tmp_path, *change).rows
    model = configured(row, Task(64, 10, "cross_entropy")).model
    with pytest.raises(CheckpointError) as caught:
        [saved.whole("weights", place) for place in model.places]
    assert words in str(caught.value)
