"""Checkpoints of split models: saved by ranks of several places, resumed by any others, joined in one file."""


import pytest

from tests.models.test_split_models import GPT, MLP, read
from tests.training.checkpointing import bits, go
from zerosim.core.errors import CheckpointError
from zerosim.models.units import Task
from zerosim.scenario.data import load_dataset
from zerosim.training import program
from zerosim.training.config import configured
from zerosim.training.keeping import latest
from zerosim.training.state_file import read as read_file


def layout(data, tensor, *more):
    """Changes of a scenario: data ranks times tensor ranks."""
    return [f"world.ranks={data * tensor}", f"parallel.tensor_ranks={tensor}", "train.micro_batches=4", *more]


def over(data, pipeline, tensor, *more):
    """Changes of a scenario: data ranks times ranks of a pipeline times tensor ranks."""
    return [f"world.ranks={data * pipeline * tensor}", f"parallel.pipeline_ranks={pipeline}",
            f"parallel.tensor_ranks={tensor}", "train.micro_batches=8", *more]


def by(stage):
    return f'parallel.stages=["{stage}"]'


def trained(tmp_path, text, changes, **said):
    """The outcome of a scenario with changes, saved or resumed."""
    scenario = read(text, tmp_path, *changes)
    return go(scenario, load_dataset(scenario), **said)


PIECES = "parallel.sequence_parallel=true"


@pytest.mark.parametrize(("text", "model", "others"), [
    (MLP, ["train.precision=bf16", "train.clip_norm=0.01"], [(4, 1, 'parallel.units="model"'), (1, 4)]),
    (GPT, ["model.tied_embeddings=true", 'parallel.order="exact"', "train.precision=fp16"], [(4, 1), (1, 4, PIECES)]),
])
def test_saved_by_two_places_it_resumes_on_one_two_or_four(text, model, others, tmp_path):
    saved = layout(2, 2, by("zero3"), *model)
    trained(tmp_path, text, saved, save=tmp_path / "a", steps=1)
    same = trained(tmp_path, text, saved, resume=tmp_path / "a")
    assert (same.failures, bits(same)) == ([], bits(trained(tmp_path, text, saved)))
    for data, tensor, *more in others:
        found = trained(tmp_path, text, layout(data, tensor, by("zero2"), *model, *more), resume=tmp_path / "a")
        assert found.failures == []


IN_CHUNKS = ['parallel.schedule="interleaved_1f1b"', "parallel.model_chunks=2"]


@pytest.mark.parametrize(("text", "saved", "model", "others"), [
    (MLP, (2, 2, 2, by("zero2")), ["train.clip_norm=0.01", "train.precision=fp16"],
     [(4, 1, 2, by("zero3")), (2, 2, 1, by("ddp"), *IN_CHUNKS), (1, 1, 1, by("ddp"))]),
    (GPT, (1, 2, 2, by("zero2")), ["model.tied_embeddings=true", "train.clip_norm=0.01"],
     [(1, 1, 2, by("zero3")), (2, 3, 1, by("zero1"))]),
])
def test_saved_by_a_pipeline_it_resumes_in_any_layout(text, saved, model, others, tmp_path):
    *sizes, stage = saved
    began = over(*sizes, stage, *model)
    trained(tmp_path, text, began, save=tmp_path / "a", steps=1)
    same = trained(tmp_path, text, began, resume=tmp_path / "a")
    assert (same.failures, bits(same)) == ([], bits(trained(tmp_path, text, began)))
    for each in others:
        assert trained(tmp_path, text, over(*each, *model), resume=tmp_path / "a").failures == []


MIXTURE = GPT.replace('"transformer"', '"mixture"\nqueue_tokens = 2')


@pytest.mark.parametrize(("text", "saved", "resumed"), [
    (GPT, ["parallel.tensor_ranks=2"], ["parallel.context_ranks=2", "parallel.tensor_ranks=2"]),
    (MIXTURE, ["parallel.expert_ranks=2", "parallel.tensor_ranks=2", "parallel.sequence_parallel=true"],
     ["parallel.context_ranks=2"]),
])
def test_every_direction_is_left_for_another(text, saved, resumed, tmp_path):
    base = ["world.ranks=4", "train.micro_batches=4", by("zero3")]
    trained(tmp_path, text, [*base, *saved], save=tmp_path / "a", steps=1)
    assert trained(tmp_path, text, [*base, *resumed], resume=tmp_path / "a").failures == []


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The folder of a checkpoint of two data ranks on two places, and the changes of its scenario."""
    tmp_path = tmp_path_factory.mktemp("one")
    changes = layout(2, 2, by("zero3"))
    trained(tmp_path, MLP, changes, save=tmp_path / "a", steps=2)
    return tmp_path, changes


def test_a_piece_of_another_place_is_noticed(one, tmp_path, monkeypatch):
    honest = program.restored
    monkeypatch.setattr(program, "restored", lambda config, saved, replica, place: honest(config, saved, replica, 0))
    again = trained(tmp_path, MLP, layout(2, 4, by("zero1")), resume=one[0] / "a")
    assert [what for _, what in again.failures][:1] == ["bits differ"]


@pytest.mark.parametrize(("change", "words"), [
    (["model.hidden=[8, 6, 4]"], "has shape [8, 6] of layers.2.weight, which has shape [4, 6] here"),
    (["model.hidden=[8, 6, 8, 10]"], "lacks layers.4.weight, which has shape [10, 10] here"),
])
def test_a_different_model_is_named(change, words, one, tmp_path):
    saved = read_file(latest(one[0] / "a" / "zero3"))
    (row, *_) = read(MLP, tmp_path, *layout(2, 2), *change).rows
    model = configured(row, Task(64, 10, "cross_entropy")).model
    with pytest.raises(CheckpointError) as caught:
        [saved.whole("weights", place) for place in model.places]
    assert words in str(caught.value)
