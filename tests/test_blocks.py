"""What a checkpoint's files are read and written in: any slice, of blocks of any size, and of no block more."""

from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.checkpointing import go
from tests.training import labelled, scenario
from zerosim.checkpoint import reshard, shards
from zerosim.checkpoint.manifest import read_manifest
from zerosim.checkpoint.reshard import Resharded
from zerosim.checkpoint.saving import Saving
from zerosim.checkpoint.shards import ShardReader
from zerosim.commands.checkpoint import only
from zerosim.errors import CheckpointError
from zerosim.models.mlp import mlp
from zerosim.sharding import shard

BLOCK = 4
"""Elements of a block of float32."""


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(shards, "BLOCK_BYTES", 4 * BLOCK)


@pytest.mark.parametrize("count", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_any_slice_is_read_as_it_was_written(tmp_path, small, count):
    values = np.arange(count, dtype=np.float32)
    reader = ShardReader(tmp_path, shards.write(tmp_path / "x", {"a": values}))
    for start in range(count + 1):
        for stop in range(start, count + 1):
            out = np.full(stop - start, np.nan, np.float32)
            reader.read("a", start, out)
            assert out.tolist() == values[start:stop].tolist()
    reader.verify()


def test_of_a_file_no_block_is_read_beside_those_of_the_slice(tmp_path, small):
    """What is damaged elsewhere is nobody's business."""
    stored = shards.write(tmp_path / "x", {"a": np.arange(3 * BLOCK, dtype=np.float32)})
    written = bytearray((tmp_path / "x").read_bytes())
    written[-1] ^= 1                                        # in the last block
    (tmp_path / "x").write_bytes(written)
    reader, out = ShardReader(tmp_path, stored), np.empty(BLOCK, np.float32)
    reader.read("a", BLOCK, out)
    assert out.tolist() == [4.0, 5.0, 6.0, 7.0]
    with pytest.raises(CheckpointError, match="elements 8 to 11 of 'a' were changed after they were written"):
        reader.read("a", BLOCK + 1, out)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The units, and a checkpoint of them on three ranks; and what one process has in the end."""
    folder = tmp_path_factory.mktemp("saved")
    outcome = go(scenario(stages=("zero3",), steps=1), labelled(), save=folder)
    return outcome.model.units, only(folder)


def test_weights_in_full_are_whole_however_long_a_parameter_is(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(reshard, "BLOCK_BYTES", 4 * BLOCK)
    units, folder = saved
    reshard.write_full(folder, read_manifest(folder), tmp_path / "w")
    found, whole = load_file(tmp_path / "w"), Resharded(folder, read_manifest(folder))
    for unit in units:
        flat = np.empty(unit.count, np.float32)
        whole.fill(unit, "weights", shard(unit.count, 1, 0), flat)
        assert {name: found[name].tobytes() for name in unit.views(flat)} == {
            name: view.tobytes() for name, view in unit.views(flat).items()}
        assert len(np.unique(flat)) > unit.count // 2


def test_other_units_of_the_same_layers_are_filled_with_their_layers_and_with_zeros_behind_them(saved):
    units, folder = saved
    whole = Resharded(folder, read_manifest(folder))
    apart = []
    for unit in units:
        apart.append(np.empty(unit.count, np.float32))
        whole.fill(unit, "weights", shard(unit.count, 1, 0), apart[-1])
    for groups in ([[0, 1], [2]], [[0, 2], [1]], [[0, 1, 2]]):
        for unit in mlp(6, [5, 4], 3, "tanh", "cross_entropy", groups=groups).units:
            due = np.concatenate([apart[number] for number in unit.numbers])
            for ranks in (1, 2, 4, 7):
                layouts = [shard(unit.count, ranks, rank) for rank in range(ranks)]
                pieces = [np.full(layout.length, np.nan, np.float32) for layout in layouts]
                for layout, out in zip(layouts, pieces, strict=True):
                    whole.fill(unit, "weights", layout, out)
                found = np.concatenate(pieces)
                assert found[: unit.count].tobytes() == due.tobytes()
                assert not found[unit.count :].any()


def test_a_checkpoint_says_how_far_its_training_has_come_whatever_was_to_follow(tmp_path):
    go(scenario(stages=("zero2",), steps=2, precision="fp16"), labelled(), save=tmp_path)
    for step in (1, 2):
        manifest = read_manifest(tmp_path / "zero2" / f"step-{step:08d}")
        assert [leg.until for leg in manifest.legs] == [step]
        assert (manifest.step, manifest.updates, manifest.good_steps, manifest.samples) == (step, step, step, 12 * step)


def test_a_training_is_saved_every_so_many_steps_and_at_its_end():
    saving = SimpleNamespace(every=3)
    assert [step for step in range(1, 9) if Saving.is_due(saving, step, 8)] == [3, 6, 8]
