"""Checkpoints of split models: saved by ranks of several places, resumed by any others, joined in one file."""

import hashlib
import json
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from tests.checkpointing import bits, go
from tests.mpi.launch import mpirun
from tests.small import examples
from tests.test_split_models import GPT, LLAMA, MLP, read
from zerosim.checkpoint import folders
from zerosim.checkpoint.keeping import Keeper
from zerosim.checkpoint.manifest import canonical, encoded, read_manifest
from zerosim.checkpoint.reshard import Resharded, write_full
from zerosim.cli import main
from zerosim.commands.checkpoint import only
from zerosim.data import load_dataset
from zerosim.errors import CheckpointError
from zerosim.models.parameters import Pieced
from zerosim.models.units import Task
from zerosim.sharding import full
from zerosim.training import build
from zerosim.training.config import configured


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
    pytest.param(GPT, [*LLAMA], [(4, 1), (2, 2, PIECES)], marks=pytest.mark.long),
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
     [(4, 1, 2, by("zero3")), (1, 4, 1, by("zero1")), (2, 2, 1, by("ddp"), *IN_CHUNKS), (1, 1, 1, by("ddp"))]),
    (GPT, (1, 2, 2, by("zero2")), ["model.tied_embeddings=true", "train.clip_norm=0.01"],
     [(1, 1, 2, by("zero3")), (2, 3, 1, by("zero1"))]),
    (GPT, (1, 1, 2, by("zero3")), ["parallel.autocast=bf16"], [(2, 2, 1, by("zero1"), "parallel.units=\"layer\"")]),
])
def test_saved_by_a_pipeline_it_resumes_in_any_layout(text, saved, model, others, tmp_path):
    *sizes, stage = saved
    began = over(*sizes, stage, *model)
    trained(tmp_path, text, began, save=tmp_path / "a", steps=1)
    folder = only(tmp_path / "a")
    write_full(folder, read_manifest(folder), tmp_path / "w")
    assert encoded(read_manifest(folder)) == (folder / folders.MANIFEST).read_bytes()
    same = trained(tmp_path, text, began, resume=tmp_path / "a")
    assert (same.failures, bits(same)) == ([], bits(trained(tmp_path, text, began)))
    for each in others:
        assert trained(tmp_path, text, over(*each, *model), resume=tmp_path / "a").failures == []


MIXTURE = GPT.replace('"transformer"', '"mixture"\nqueue_tokens = 2')


@pytest.mark.parametrize(("text", "saved", "resumed"), [
    (GPT, ["parallel.tensor_ranks=2"], ["parallel.context_ranks=2", "parallel.tensor_ranks=2"]),
    (MIXTURE, ["parallel.expert_ranks=2"], []),
    (MIXTURE, ["parallel.expert_ranks=2", "parallel.tensor_ranks=2", "parallel.sequence_parallel=true"],
     ["parallel.context_ranks=2"]),
])
def test_every_direction_is_left_for_another(text, saved, resumed, tmp_path):
    base = ["world.ranks=4", "train.micro_batches=4", by("zero3")]
    trained(tmp_path, text, [*base, *saved], save=tmp_path / "a", steps=1)
    assert trained(tmp_path, text, [*base, *resumed], resume=tmp_path / "a").failures == []


@settings(max_examples=examples(6))
@given(st.data())
def test_from_any_layout_to_any_and_on(tmp_path_factory, data):
    """Two changes of the layout, so that the reference joins and cuts twice."""
    tmp_path, text = tmp_path_factory.mktemp("any"), data.draw(st.sampled_from((MLP, GPT)))
    drawn = [
        layout(ranks, tensor, by(data.draw(st.sampled_from(("ddp", "zero1", "zero3")))),
               f"parallel.units={data.draw(st.sampled_from(('layer', 'model')))}")
        for ranks, tensor in data.draw(st.lists(st.sampled_from([(1, 2), (2, 2), (4, 1), (1, 4), (2, 4)]),
                                                min_size=3, max_size=3))]
    for steps, changes in enumerate(drawn, start=1):
        resume = tmp_path / str(steps - 1) if steps > 1 else None
        found = trained(tmp_path, text, changes, save=tmp_path / str(steps), resume=resume, steps=steps)
        assert found.failures == []


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The folder of a checkpoint of two data ranks on two places, and the changes of its scenario."""
    tmp_path = tmp_path_factory.mktemp("one")
    changes = layout(2, 2, by("zero3"))
    trained(tmp_path, MLP, changes, save=tmp_path / "a", steps=2)
    return tmp_path, changes


def test_every_element_is_written_once(one):
    manifest = read_manifest(only(one[0] / "a"))
    lengths = [array.length for shard in manifest.shards for name, array in shard.file.arrays.items()
               if name.startswith("weights.")]
    assert sum(lengths) == configured(read(MLP, one[0]).rows[0], Task(64, 10, "cross_entropy")).model.count
    assert encoded(manifest) == (only(one[0] / "a") / folders.MANIFEST).read_bytes()


def test_weights_in_full_are_those_of_the_run_and_begin_another(one, tmp_path):
    folder, path = only(one[0] / "a"), tmp_path / "scenario.toml"
    write_full(folder, read_manifest(folder), tmp_path / "w")
    path.write_text(MLP)
    words = [word for each in [*one[1], "train.steps=2"] for word in ("--set", each)]
    assert main(["run", str(path), *words, "--progress", "none", "--weights", str(tmp_path / "of_run")]) == 0
    found, due = load_file(tmp_path / "w"), load_file(tmp_path / "of_run")
    assert {name: (each.shape, each.tobytes()) for name, each in found.items()} == {
        name: (each.shape, each.tobytes()) for name, each in due.items()}
    assert main(["run", str(path), *words, "--progress", "none", "--set", f'model.weights="{tmp_path / "w"}"']) == 0


FAULTS = {
    "every piece from the first place": (Pieced, "in_pieces", lambda honest: lambda self, start, stop: (
        (0, first, length) for _, first, length in honest(self, start, stop))),
    "every stretch where the first place has it": (Pieced, "in_whole", lambda honest: (
        lambda self, start, stop, coordinates: honest(self, start, stop, {}))),
    "every stretch from its parameter's beginning": (Pieced, "in_whole", lambda honest: (
        lambda self, start, stop, coordinates: honest(self, 0, stop - start, coordinates))),
    "the first place's piece on every place": (Keeper, "restore", lambda honest: (
        lambda self, config, replica, place: honest(self, config, replica, 0))),
    "runs as if a cut were along the first dimension": (Pieced, "_dealt", lambda honest: property(lambda self: (
        self.count, 1 if self.cut is None else self.cut.direction.size))),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_piece_from_elsewhere_is_noticed(fault, one, tmp_path, monkeypatch):
    owner, name, planted = FAULTS[fault]
    monkeypatch.setattr(owner, name, planted(getattr(owner, name)))
    again = trained(tmp_path, MLP, layout(2, 4, by("zero1")), resume=one[0] / "a")
    assert [what for _, what in again.failures][:1] == ["bits differ"]


def test_a_reference_that_cuts_wrongly_is_noticed(one, tmp_path, monkeypatch):
    honest = build.cut
    monkeypatch.setattr(build, "cut", lambda whole, piece, flat, _: honest(whole, piece, flat, {}))
    again = trained(tmp_path, MLP, layout(1, 4, by("ddp")), resume=one[0] / "a")
    assert [what for _, what in again.failures][:1] == ["bits differ"]


def cut_of(document):
    return next(each for unit in document["units"] for each in unit["parameters"] if "cut" in each)["cut"]


DAMAGES = {
    "is damaged: IndexError at ": lambda said: cut_of(said).update(axis=7),
    "is damaged: ValueError at cut": lambda said: cut_of(said).update(blocks=3),
    "is damaged: ValueError at 'up'": lambda said: cut_of(said)["direction"].update(name="up"),
    "is damaged: ValueError at layout": lambda said: said["shards"][1]["arrays"][0].update(length=3, blocks=["x"]),
    "is damaged: ValueError at directions": lambda said: said["legs"][0]["parallel"].update(tensor_ranks=3),
    "is damaged: it lacks elements of weights of layers.0.weight": lambda said: said["shards"][1]["arrays"].clear(),
    "is damaged: its units do not match its model": lambda said: (
        cut_of(said).update(axis=0) or cut_of(said).update(blocks=2)),
}


@pytest.mark.parametrize("words", DAMAGES)
def test_a_damaged_manifest_is_one_line(words, one, tmp_path):
    folder = tmp_path / "damaged"
    folder.mkdir()
    for path in only(one[0] / "a").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    document = json.loads((folder / folders.MANIFEST).read_bytes())
    DAMAGES[words](document["manifest"])
    document["sha256"] = hashlib.sha256(canonical(document["manifest"])).hexdigest()
    (folder / folders.MANIFEST).write_bytes(canonical(document))
    with pytest.raises(CheckpointError) as caught:
        trained(tmp_path, MLP, layout(4, 1), resume=folder)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("change", "words"), [
    (["model.hidden=[8, 6, 4]"], "has shape [8, 6] of layers.2.weight, which has shape [4, 6] here"),
    (["model.hidden=[8, 6, 8, 10]"], "lacks layers.4.weight, which has shape [10, 10] here"),
])
def test_a_different_model_is_named(change, words, one, tmp_path):
    folder = only(one[0] / "a")
    saved = Resharded(folder, read_manifest(folder))
    (row, *_) = read(MLP, tmp_path, *layout(2, 2), *change).rows
    units = configured(row, Task(64, 10, "cross_entropy")).model.units
    with pytest.raises(CheckpointError) as caught:
        [saved.fill(unit, "weights", full(unit.count, 1), unit.initial(0)) for unit in units]
    assert words in str(caught.value)


@pytest.mark.mpi
@pytest.mark.long
def test_under_mpirun(one, tmp_path):
    path = tmp_path / "scenario.toml"
    path.write_text(MLP)
    words = chain.from_iterable(("--set", each) for each in layout(1, 4, by("zero3")))
    said = mpirun(4, ["-m", "zerosim", "run", str(path), *words, "--resume", str(one[0] / "a"), "--progress", "none"])
    assert (said.returncode, said.stdout.count("every bit equal to one process")) == (0, 1)
