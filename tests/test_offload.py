"""What a unit that is run again has kept goes to a file and comes back: same bits, less memory, nothing left behind."""

import errno
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.test_planted import fails, outcome_of
from zerosim.allocation import allocate
from zerosim.autograd.shelf import InMemory, Offloaded
from zerosim.autograd.tape import Tape
from zerosim.cli import main
from zerosim.errors import OffloadError
from zerosim.figures.shapes import expected
from zerosim.instruments.memory import Ledger
from zerosim.instruments.observed import ObservedAllocator
from zerosim.models.units import Task
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import ModelKeys, Parallel, Train
from zerosim.training.config import configured
from zerosim.training.tiers import OffloadFile

OFFLOADED = {"recompute": True, "offload_activations": True, "hidden": (5, 4, 7)}
KEYS = [
    {}, {"ranks": 1}, {"ranks": 6}, {"precision": "bf16", "accumulate_dtype": "fp32"}, {"precision": "fp64"},
    {"order": "exact"}, {"accumulation": "micro_batch"}, {"accumulation": "micro_batch", "prefetch": True},
    {"recompute": (2,)}, {"recompute": (1, 3)}, {"units": ((0,), (1, 2), (3,))}, {"units": "model"}, {"frozen": (0, 1)},
    {"frozen": (3,)}, {"frozen": (0, 1, 2, 3)}, {"reshard_after_forward": False},
]


@pytest.mark.parametrize("keys", KEYS, ids=str)
def test_the_bits_are_one_process_s_and_the_bytes_the_formula_s(keys):
    outcome = outcome_of(**OFFLOADED | keys)
    assert outcome.failures == []
    assert all(stage.equal for stage in outcome.trained)
    files = {rank.figures.offloaded_bytes for stage in outcome.trained for rank in stage.memory}
    assert (0 in files) is (keys in ({"units": "model"}, {"frozen": (0, 1, 2, 3)}))


def test_what_the_file_holds_by_hand():
    """Inputs of layers 1 to 3, of a micro-batch of 2 samples; of both of a rank where they go together."""
    for accumulation, together in (("boundary", 1), ("micro_batch", 1), ("layered", 2)):
        found = outcome_of(**OFFLOADED, accumulation=accumulation)
        files = {rank.figures.offloaded_bytes for stage in found.trained for rank in stage.memory}
        assert files == {together * 2 * (5 + 4 + 7) * 4}


def transformer(layers, **keys):
    (row,) = Scenario(
        model=ModelKeys(kind="transformer", layers=layers, width=8, heads=2),
        train=Train(micro_batch=3, micro_batches=8),
        parallel=Parallel(stages=("zero3",), recompute=True, **keys),
    ).rows
    return expected(configured(row, Task(7, 11, "cross_entropy", tokens=True)))


def activations(found):
    return found.peak_bytes["activations"]


@pytest.mark.parametrize("layers", [3, 4, 9])
def test_in_memory_inputs_grow_with_the_blocks_and_in_a_file_they_do_not(layers):
    """One more block is one more input of 3 sequences of 7 tokens of 8 numbers."""
    one_input = 3 * 7 * 8 * 4
    assert activations(transformer(layers + 1)) - activations(transformer(layers)) == one_input
    fewer, more = (transformer(count, offload_activations=True) for count in (layers, layers + 1))
    assert activations(more) == activations(fewer)
    assert more.offloaded_bytes - fewer.offloaded_bytes == one_input
    assert fewer.offloaded_bytes == (layers + 1) * one_input


# The file.


def tree(folder):
    return sorted(str(path) for path in folder.rglob("*"))


def open_files():
    return len(os.listdir("/proc/self/fd"))


def test_nothing_is_left_of_the_files(tmp_path):
    before = open_files()
    assert outcome_of(**OFFLOADED, offload_folder=str(tmp_path)).failures == []
    assert (tree(tmp_path), open_files()) == ([], before)


def test_the_files_have_no_names(tmp_path):
    file = OffloadFile(str(tmp_path))
    file.write(0, np.ones(3))
    assert tree(tmp_path) == []
    file.close()


class Full:
    """`os` on a disk that has room for so many bytes."""

    def __init__(self, room):
        self.room = room

    def __call__(self, descriptor, rest, start):
        if start + len(rest) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return WRITE(descriptor, rest, start)


WRITE, READ = os.pwrite, os.preadv
SCENARIO = """
[train]
steps = 1
[parallel]
stages = ["zero2"]
recompute = true
offload_activations = true
offload_folder = "{}"
"""


def run(tmp_path, folder):
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO.format(folder))
    return main(["run", str(path), "--progress", "none"])


def test_a_full_disk_is_one_line_and_exit_code_3(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "pwrite", Full(5000))
    before = open_files()
    (tmp_path / "here").mkdir()
    assert run(tmp_path, "here") == 3
    said = capsys.readouterr().err.strip()
    assert said.count("\n") == 0
    assert f"cannot write 4,096 bytes for offloaded activations in {tmp_path}/here: no space left on device;" in said
    assert (tree(tmp_path / "here"), open_files()) == ([], before)


def test_a_folder_that_is_not_there_is_the_scenario_s_fault(tmp_path, capsys):
    assert run(tmp_path, "nowhere") == 2
    said = capsys.readouterr().err.strip()
    assert "scenario.toml:8:18: cannot make a file for offloaded activations" in said
    assert f"{tmp_path}/nowhere: no such file" in said
    assert "name another folder in parallel.offload_folder" in said
    assert said.count("\n") == 0


def test_a_disk_that_writes_and_reads_little_by_little(monkeypatch):
    monkeypatch.setattr(os, "pwrite", lambda file, rest, at: WRITE(file, rest[:7], at))
    monkeypatch.setattr(os, "preadv", lambda file, into, at: READ(file, [into[0][:5]], at))
    assert outcome_of(**OFFLOADED, stages=("zero3",)).failures == []


def test_a_file_that_ends_too_early_is_an_error():
    file = OffloadFile()
    file.write(0, np.ones(2))
    with pytest.raises(OffloadError, match=r"cannot read 8 bytes .* it has ended"):
        file.read(0, np.empty(3))()
    file.close()


def test_where_nothing_is_run_again_nothing_can_be_offloaded():
    for recompute in (False, ()):
        with pytest.raises(Exception, match="offload_activations offloads the inputs of recomputed units; set "):
            Scenario(parallel=Parallel(offload_activations=True, recompute=recompute))


# The shelf.


def test_arrays_are_let_go_of_and_come_back_one_segment_early():
    ledger, file = Ledger(), OffloadFile()
    give = ObservedAllocator(allocate, ledger)
    shelf = Offloaded(file, give)
    for segment in range(3):
        arrays = [give((2, 3), np.float64, kind="activations", owner="layers.1") for _ in range(2)]
        for number, array in enumerate(arrays):
            array[...] = 10 * segment + number
        shelf.put(segment, "layers.1", arrays)
        del arrays, array
        assert ledger.now["activations"] == 0
    assert shelf.most_bytes == 3 * 2 * 48
    for segment in (2, 1, 0):
        back = shelf.take(segment)
        assert [array.tolist() for array in back] == [[[10 * segment + number] * 3] * 2 for number in range(2)]
        shelf.begin(segment - 1)
        assert ledger.now["activations"] == (2 + 2 * (segment > 0)) * 48
        del back
    shelf.put(0, "layers.1", [np.ones(1)])
    assert shelf.most_bytes == 3 * 2 * 48
    shelf.close()


def test_the_next_input_is_read_while_a_unit_runs_again(monkeypatch):
    events = []
    run, again, begin = Tape._run, Tape._recomputed_from, Offloaded.begin

    def ran(*arguments, **keys):
        events.append("forward")
        return run(*arguments, **keys)

    def ran_again(*arguments):
        events.append("recomputation")
        return again(*arguments)

    def began(self, segment):
        events.append(segment)
        begin(self, segment)

    monkeypatch.setattr(Tape, "_run", ran)
    monkeypatch.setattr(Tape, "_recomputed_from", ran_again)
    monkeypatch.setattr(Offloaded, "begin", began)
    outcome_of(recompute=True, offload_activations=True, hidden=(4, 4, 4), stages=("zero3",), reference=False, ranks=1,
               steps=1, micro_batches=1)
    repeated = "recomputation"
    assert events[:15] == [*["forward"] * 4, 3, 2, repeated, 2, 1, repeated, 1, 0, repeated, -1, repeated]


def test_what_is_coming_already_is_not_read_again():
    class Store:
        def __init__(self):
            self.reads = []

        def write(self, start, array):
            pass

        def read(self, start, array):
            self.reads.append(start)
            return lambda: None

    store = Store()
    shelf = Offloaded(store, allocate)
    shelf.put(0, "layers.1", [np.ones(3), np.ones(2)])
    shelf.begin(0)
    shelf.begin(0)
    shelf.take(0)
    assert store.reads == [0, 24]


RESIDENT = """
import sys
import numpy as np
from zerosim.autograd.shelf import InMemory, Offloaded
from zerosim.allocation import allocate
from zerosim.instruments.resident import resident_bytes
from zerosim.training.tiers import OffloadFile
before = resident_bytes()
shelf = Offloaded(OffloadFile(), allocate) if sys.argv[1] == "file" else InMemory()
for segment in range(8):
    shelf.put(segment, "layers.1", [np.ones(1_000_000)])
print(resident_bytes() - before)
shelf.close()
"""


@pytest.mark.parametrize(("where", "megabytes"), [("memory", 64), ("file", 0)])
def test_resident_memory_falls(where, megabytes):
    done = subprocess.run(
        [sys.executable, "-c", RESIDENT, where], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) / 1e6 == pytest.approx(megabytes, abs=10)


# Faults.


class Swapped(Offloaded):
    """Brings back another micro-batch's array."""

    def take(self, segment):
        return super().take(segment)[::-1]


class Late(Offloaded):
    """Reads nothing ahead."""

    def begin(self, segment):
        if segment in self.asked:
            super().begin(segment)

    asked = ()

    def take(self, segment):
        self.asked = (segment,)
        return super().take(segment)


class Hoarding(Offloaded):
    """Writes arrays, and keeps them all the same."""

    def put(self, segment, owner, arrays):
        super().put(segment, owner, arrays)
        self.kept = [*getattr(self, "kept", ()), arrays]

    def take(self, segment):
        self.kept.pop()
        return super().take(segment)


class Wasteful(Offloaded):
    """Leaves a gap behind each array."""

    def _end(self):
        return super()._end() * 2


def in_memory(store, allocate):
    return InMemory()


@pytest.mark.parametrize(("fault", "words"), [
    (Swapped, "bits differ"), (Late, "less memory than required is in use at the peak"), (Hoarding, "more memory than "
                                                                                                    "allowed is in "
                                                                                                    "use at the peak"),
    (Wasteful, "offloaded bytes are not the formula's"), (in_memory, "more memory than allowed is in use at the peak"),
])
def test_a_planted_fault_is_seen(monkeypatch, fault, words):
    monkeypatch.setattr("zerosim.training.tiers.Offloaded", fault)
    deep = OFFLOADED | {"hidden": (5, 9, 9, 9)}
    fails(outcome_of(**deep, stages=("zero2",), accumulation="layered"), words)


def test_a_claim_about_activations_is_held_to_the_peak():
    (stage,) = outcome_of(**OFFLOADED, stages=("ddp",)).trained
    most = stage.memory[0].figures.peak_bytes["activations"]
    assert outcome_of(**OFFLOADED, stages=("ddp",), activations=(most,)).failures == []
    ((_, what),) = outcome_of(**OFFLOADED, stages=("ddp",), activations=(most - 1,)).failures
    assert what == f"holds {most:,} bytes of activations at the peak, not {most - 1:,}"
    nothing = replace(stage.memory[0], figures=replace(stage.memory[0].figures, offloaded_bytes=0))
    assert nothing.mismeasured.endswith("had 0 B in its file; expected 128")
