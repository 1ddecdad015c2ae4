"""Checkpoints: saved, resumed and resharded to the bit; refused where they are not of the training; never lost."""

import errno
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training import labelled, scenario
from tests.training.checkpointing import bits, go
from zerosim.core.errors import CheckpointError, ZerosimError
from zerosim.scenario import Check, ModelKeys, Parallel, WorldKeys
from zerosim.scenario.sections import Variant
from zerosim.training.keeping import latest
from zerosim.training.state_file import steps_in


def training(**train):
    """Six micro-batches of two samples for three ranks, four steps."""
    return scenario(stages=("zero3",), **train)


# What is saved and goes on is what was never interrupted.

VARIANTS = (
    Variant("wide", accumulate_dtype="fp32", reduce_dtype="fp32"), Variant("one", units="model"), Variant("one"),
    Variant("ein Stück/零", bucket_mb=0.0001), Variant("零"), Variant("§"),
)


def test_every_row_goes_on_from_a_folder_of_its_own(tmp_path):
    built = replace(training(precision="bf16", steps=3), variant=VARIANTS)
    whole = go(built, labelled())
    go(built, labelled(), save=tmp_path / "a", steps=2, keep=1)
    rest = go(built, labelled(), resume=tmp_path / "a")
    assert rest.failures == []
    assert bits(rest) == bits(whole)
    assert sorted(each.name for each in (tmp_path / "a").iterdir()) == sorted(
        ["wide", "one", "one-2", "ein-st-ck", "row", "row.6"])


def test_a_row_that_had_finished_is_as_it_was(tmp_path):
    built = replace(training(), check=Check(messages=(30,), activations=(1,)))
    whole = go(replace(built, check=Check()), labelled(), save=tmp_path / "a")
    rest = go(built, labelled(), resume=tmp_path / "a", save=tmp_path / "a")
    assert (rest.failures, bits(rest)) == ([], bits(whole))


def test_rows_that_had_not_begun_begin_and_others_go_on(tmp_path):
    built = replace(training(), parallel=Parallel(stages=("zero1", "zero2", "zero3")))
    go(replace(built, parallel=Parallel(stages=("zero1",))), labelled(), save=tmp_path / "a")
    go(replace(built, parallel=Parallel(stages=("zero2",))), labelled(), save=tmp_path / "a", steps=3)
    (tmp_path / "a" / "zero3").mkdir()
    rest = go(built, labelled(), resume=tmp_path / "a")
    assert [row.config.done for row in rest.trained] == [4, 3, 0]
    assert (rest.failures, bits(rest)) == ([], bits(go(built, labelled())))


def test_rows_that_came_another_way_are_not_held_to_each_other(tmp_path):
    built = replace(training(), parallel=Parallel(stages=("zero1", "zero2", "zero3")), check=Check(reference=False))
    for stage, ranks in (("zero1", 3), ("zero2", 2), ("zero3", 2)):
        other = replace(built, world=WorldKeys(ranks), parallel=Parallel(stages=(stage,)))
        go(other, labelled(), save=tmp_path / "a", steps=2)
    rest = go(built, labelled(), resume=tmp_path / "a")
    assert rest.failures == []
    assert [row.compared_with for row in rest.trained] == [None, None, "Stage II"]
    assert rest.trained[0].measured.weights_sha256 != rest.trained[1].measured.weights_sha256


def test_the_padding_of_what_is_restored_is_zero_whatever_was_in_its_memory(tmp_path, monkeypatch):
    go(training(), labelled(), save=tmp_path / "a", steps=2)
    monkeypatch.setattr("zerosim.training.program.allocate", lambda shape, dtype, **_: np.full(shape, 7, dtype))
    assert go(training(), labelled(), resume=tmp_path / "a").failures == []


# A checkpoint is whole or not there.


def test_the_last_few_are_kept_and_nothing_else_is_left(tmp_path):
    go(training(steps=5), labelled(), save=tmp_path / "a", keep=3)
    assert sorted(os.listdir(tmp_path / "a" / "zero3")) == [f"step-0000000{n}.safetensors" for n in (3, 4, 5)]
    go(training(steps=5), labelled(), save=tmp_path / "b", every=3, keep=9)
    assert steps_in(tmp_path / "b" / "zero3") == [3, 5]


@pytest.mark.parametrize(("call", "nth"), [("fsync", 0), ("rename", 1)])
def test_a_disk_that_fills_up_leaves_the_last_one_whole(tmp_path, monkeypatch, call, nth):
    go(training(), labelled(), save=tmp_path / "a", steps=2)
    before, calls = {each: each.read_bytes() for each in tmp_path.rglob("*.safetensors")}, []
    honest = getattr(os, call)

    def failing(*given, **named):
        calls.append(given)
        if len(calls) > nth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return honest(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        with pytest.raises(ZerosimError, match="no space left on device"):
            go(training(), labelled(), save=tmp_path / "a", resume=tmp_path / "a", keep=9)
    assert {each: each.read_bytes() for each in before} == before
    assert not [each for each in os.listdir(tmp_path / "a" / "zero3") if each.startswith(".")]
    assert go(training(), labelled(), save=tmp_path / "a", resume=tmp_path / "a").failures == []


def test_a_folder_that_cannot_be_written_is_refused_before_the_first_step(tmp_path):
    (tmp_path / "zero3").write_text("a file")
    with pytest.raises(ZerosimError, match=r"cannot write a checkpoint in .*not a directory|.*file exists"):
        go(training(), labelled(), save=tmp_path)


def test_what_a_dead_run_was_writing_is_cleared_away(tmp_path):
    go(training(), labelled(), save=tmp_path / "a", steps=2)
    torn = tmp_path / "a" / "zero3" / ".step-00000003.safetensors"
    torn.write_bytes(b"half")
    assert go(training(), labelled(), resume=tmp_path / "a", save=tmp_path / "a").failures == []
    assert not torn.exists()


# What is damaged, or not of the training, is refused in one line.


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    go(training(precision="bf16"), labelled(), save=folder, steps=2, keep=1)
    return latest(folder / "zero3")


def refused(path, built=None, dataset=None, **said):
    with pytest.raises(CheckpointError) as caught:
        go(built or training(precision="bf16"), dataset or labelled(), resume=path, **said)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=20, deadline=None)
def test_a_flipped_bit_of_a_number_or_of_the_header_is_seen(one, tmp_path_factory, where, bit):
    path, content = tmp_path_factory.mktemp("flipped") / one.name, one.read_bytes()
    behind = 8 + int.from_bytes(content[:8], "little")
    for start, length, words in ((behind, len(content) - behind, "damaged: its SHA-256 does not match"),
                                 (0, behind, "damaged")):
        flipped = bytearray(content)
        flipped[start + int(where * length)] ^= 1 << bit
        path.write_bytes(flipped)
        assert words in refused(path)


def test_a_torn_file_is_found(one, tmp_path):
    for kept in (0, 7, 100, -1):
        (tmp_path / one.name).write_bytes(one.read_bytes()[:kept])
        assert "damaged" in refused(tmp_path / one.name)


def test_another_training_is_refused_with_what_changed(one):
    other = training(learning_rate=0.5, seed=3)
    assert ('belongs to another training run: train.learning_rate was 0.01, is 0.5; train.precision was "bf16", is '
            '"fp32"; train.seed was 0, is 3. Restore') in refused(one, other)


def test_another_model_and_other_data_are_refused(one):
    other = replace(training(precision="bf16"), model=ModelKeys(hidden=(5, 5), activation="tanh"))
    assert "model.hidden was [5, 4], is [5, 5]. Restore these values" in refused(one, other)
    assert "data: the samples" in refused(one, dataset=labelled(seed=1))
    assert "is of step 2, but train.steps is 1" in refused(one, steps=1)


def test_what_may_change_is_not_refused(one):
    built = replace(
        training(precision="bf16", steps=3), title="another", caption="too", check=Check(reference=False),
        variant=(Variant("a", units="model"), Variant("b", stage="ddp", reduce_dtype="fp32")))
    outcome = go(built, labelled(), resume=one)
    assert outcome.failures == []
    assert [row.config.done for row in outcome.trained] == [2, 2]


def test_a_folder_without_checkpoints_is_refused(tmp_path, one):
    assert "no such folder" in refused(tmp_path / "none")
    words = "no checkpoint of Stage III in a folder zero3; folders with checkpoints: none"
    assert words in refused(tmp_path)
    for name in "ab":
        (tmp_path / name).mkdir()
        shutil.copy(one, tmp_path / name)
    assert f"folders with checkpoints: {tmp_path}/a, {tmp_path}/b" in refused(tmp_path)


def test_nobody_saves_among_checkpoints_of_another_run(tmp_path):
    go(training(), labelled(), save=tmp_path / "a", steps=3, keep=9)
    with pytest.raises(CheckpointError, match=r"already has checkpoints up to step 3; resume from the last"):
        go(training(), labelled(), save=tmp_path / "a")
    with pytest.raises(CheckpointError, match=r"up to step 3, but Stage III resumes from .*step-00000002"):
        go(training(), labelled(), save=tmp_path / "a", resume=tmp_path / "a" / "zero3" / "step-00000002.safetensors")
