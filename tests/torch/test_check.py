"""`zerosim torch --check` on many small scripts; these tests run where PyTorch is installed."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.mpi.launch import SECONDS_TO_END, mpirun
from tests.torch.launch import PLAIN, TORCHRUN, findings, judged, torchrun

torch = pytest.importorskip("torch", reason="make oracles runs these in an environment that has PyTorch")

# -- the corpus

@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 4])
def test_wrong_scripts_are_found_with_their_cause_and_right_ones_are_not_accused(ranks):
    outcome = torchrun(ranks, "-m", "tests.torch.corpus")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.mpi
def test_the_same_holds_over_zerosim():
    outcome = mpirun(3, ["-W", "ignore", "-m", "tests.torch.corpus"], timeout=10 * SECONDS_TO_END)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.mpi
def test_losses_weights_and_random_states_of_right_scripts_have_the_same_bytes_with_and_without_the_check():
    outcome = torchrun(2, "-m", "tests.torch.corpus", "--bytes")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


# -- the command

BEGIN = """import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def backward():
    model(torch.randn(4, 3) + dist.get_rank()).square().mean().backward()
"""
SCRIPT = BEGIN + """for step in range(4):
    with model.no_sync():
        backward()
    optimizer.step()
    optimizer.zero_grad()
{end}
"""
ENDS = {
    "as usual": """import gc, weakref
group = weakref.ref(dist.group.WORLD)
print([name for name in sys.modules if "mpi4py" in name]); dist.destroy_process_group()
del model, optimizer; gc.collect(); assert group(), "destroyed within the script, which may wait for ever" """,
    "by an exception": 'raise ValueError("of the script")',
    "on one rank by an exception": 'assert dist.get_rank() == 0, "on rank 1"; time.sleep(99)',
    "without the group": 'print("ended")',
    "never on one rank": 'time.sleep(99 * (dist.get_rank() == 1))',
    "by a signal": 'os.kill(os.getpid(), 9)',
}


@pytest.mark.mpi
@pytest.mark.parametrize("end", ENDS)
def test_findings_are_said_and_written_however_a_script_ends(end, tmp_path):
    (script := tmp_path / "train.py").write_text(SCRIPT.format(end=ENDS[end]))
    words = [*TORCHRUN, "2", "-m", "zerosim.torch", "--check", "--json", tmp_path / "found.json", script]
    with (tmp_path / "said").open("w") as said:
        running = subprocess.Popen(words, stdout=said, stderr=said, env=PLAIN)
    if end == "never on one rank":
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(SECONDS_TO_END / 2)
        running.terminate()
    assert running.wait(3 * SECONDS_TO_END) != 0
    for _ in range(100):  # a child judges a little later if no rank could
        time.sleep(0.1 * (not (tmp_path / "found.json").exists()))
    whole = end in ("as usual", "without the group")  # else the ranks might have averaged their weights later
    finding, *_ = json.loads((tmp_path / "found.json").read_text())["findings" if whole else "suspicions"]
    assert (finding["step"], finding["rank"], finding["line"]) == (1, 0, "train.py:7")
    said = (tmp_path / "said").read_text()
    assert f"zerosim: {'FOUND' if whole else 'SUSPICIOUS'} step 1, rank 0: own gradient only" in said
    assert ("not ended well on all ranks" in said) == (not whole)
    assert "mpi4py" not in said


@pytest.mark.mpi
def test_sampled_steps_are_recorded_and_can_be_judged_later(tmp_path):
    (script := tmp_path / "train.py").write_text(SCRIPT.format(end=""))
    outcome = torchrun(2, "-m", "zerosim.torch", "--check", "--check-steps", "3..4", "--records", tmp_path / "records",
                       script)
    assert outcome.returncode == 1, outcome.stderr
    assert ("checked 2 steps of 4 (--check-steps A..B checks others), 1 micro-batch, 2 of 2 parameters: 2 findings"
            in outcome.stderr)
    again = judged(tmp_path / "records")
    assert again.returncode == 1
    assert findings(again.stderr) == findings(outcome.stderr)
    assert [line.split(":")[2].strip() for line in findings(again.stderr)] == [
        "own gradient only", "replicas have drifted apart"]


NOT_JUDGED = """import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.randn(4, 3)).square().mean().backward()
optimizer.step()
"""


@pytest.mark.mpi
def test_no_findings_is_not_said_where_gradients_were_not_judged(tmp_path):
    (script := tmp_path / "train.py").write_text(NOT_JUDGED)
    outcome = torchrun(2, "-m", "zerosim.torch", "--check", "--records", tmp_path / "records", script)
    assert outcome.returncode == 0, outcome.stderr
    assert "checked 1 step: gradients were not judged" in outcome.stderr
    assert [judged(tmp_path / "records", *flags).returncode for flags in ([], ["--strict"])] == [0, 4]


# Scripts end a second late: a thread of gloo may hold tensors for a moment, and PyTorch aborts if Python has ended.
SLIGHTLY_OFF = """import time, torch, torch.distributed as dist, torch.distributed.fsdp
dist.init_process_group("gloo")
torch.manual_seed(0)
model = dist.fsdp.fully_shard(torch.nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.randn(4, 3) + dist.get_rank()).square().mean().backward()
if dist.get_rank() == 1:
    model.weight.grad.to_local()[0, 0] *= 1 + 1.2e-7
optimizer.step()
time.sleep(1), dist.destroy_process_group()
"""


@pytest.mark.mpi
@pytest.mark.parametrize(("flags", "code"), [([], 0), (["--double"], 1)])
def test_in_64_bits_a_fault_within_the_rounding_of_32_is_found(flags, code, tmp_path):
    (script := tmp_path / "train.py").write_text(SLIGHTLY_OFF)
    outcome = torchrun(2, "-m", "zerosim.torch", "--check", "--strict", *flags, script)
    assert outcome.returncode == code, outcome.stderr
    assert ("SUSPICIOUS step 1, rank 1: no order of addition explains it" in outcome.stderr) == bool(code)


CHECKING = BEGIN + """import pytest, zerosim.torch
from torch.nn.utils import clip_grad_norm_
called = torch.autograd.backward
with pytest.raises(AssertionError, match="clipping on one rank"):
    with zerosim.torch.checking(optimizer, raises=True) as checked:
        for step in range(2):
            backward()
            if dist.get_rank() == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
            optimizer.zero_grad()
same = torch.autograd.backward is called
sys.stdout.write(f"{checked.findings[0].cause} {same}\\n")  # in one piece: ranks share the terminal
time.sleep(1), dist.destroy_process_group()
"""


@pytest.mark.mpi
def test_a_part_of_a_script_is_checked_and_nothing_is_left_wrapped(tmp_path):
    (script := tmp_path / "train.py").write_text(CHECKING)
    outcome = torchrun(2, script)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.count("clipping on one rank True") == 2
    assert outcome.stderr.count("zerosim: FOUND step 1") == 1


FAILING = BEGIN + """from zerosim.torch.check import window
window.sketch = lambda *_: 1 / 0
for _ in range(3):
    backward()
    optimizer.step()
sys.stdout.write("trained\\n")
time.sleep(1), dist.destroy_process_group()
"""


@pytest.mark.mpi
def test_an_exception_in_the_observer_ends_the_check_in_one_line_and_not_the_training(tmp_path):
    (script := tmp_path / "train.py").write_text(FAILING)
    outcome = torchrun(2, "-m", "zerosim.torch", "--check", script)
    assert outcome.returncode == 1, outcome.stderr  # nothing was judged
    assert outcome.stdout.count("trained") == 2
    assert outcome.stderr.count("zerosim: the check has ended, and the training goes on: ZeroDivisionError") == 2
    assert "gradient: not judged: the check has ended on rank 0: ZeroDivisionError" in outcome.stderr


# -- the table of causes

@pytest.mark.filterwarnings("ignore")  # PyTorch's own, as it is imported
def test_each_cause_has_a_wrong_and_a_right_script_and_a_line_in_the_page():
    from tests.torch.corpus import CASES
    from zerosim.torch.check.causes import CAUSES, table

    for name, cause in CAUSES.items():
        assert CASES[cause.wrong].cause == name, name
        assert not CASES[cause.right].cause, name
    code = "".join(path.read_text() for path in Path("zerosim/torch/check").glob("*.py") if path.name != "causes.py")
    assert not [name for name in CAUSES if f'"{name}"' not in code and "micro-batch only" not in name]
    assert table() in Path("docs/check.md").read_text()


# -- ways to start

def test_the_check_is_imported_without_mpi_and_without_pytorch():
    code = ("import os, sys; sys.modules['mpi4py'] = None; before = dict(os.environ); "
            "from zerosim.torch import checking; assert 'torch' not in sys.modules; assert before == dict(os.environ)")
    subprocess.run([sys.executable, "-c", code], check=True, env=PLAIN)


SPAWNING = """import os, torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank, ranks, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model.module(torch.randn(4, 3) + rank).square().mean().backward()
        optimizer.step()
if __name__ == "__main__":
    mp.spawn(work, (2, 20000 + os.getpid() % 20000), 2)
"""


@pytest.mark.mpi
@pytest.mark.parametrize(("text", "code", "said"), [
    (SPAWNING, 1, "FOUND step 1, rank 0: own gradient only"), ("print('no training')", 2, "no update was seen")])
def test_ranks_that_a_module_spawns_are_observed_and_no_training_is_no_success(text, code, said, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(text)
    outcome = subprocess.run([sys.executable, "-m", "zerosim.torch", "--check", "-m", "package.train"], check=False,
                             capture_output=True, text=True, cwd=tmp_path, env=PLAIN | {"PYTHONPATH": os.getcwd()})
    assert outcome.returncode == code, outcome.stderr
    assert said in outcome.stderr


# -- sensitivity

def planted(what, values, error):
    """The gradient with a relative error in all elements or in a row, or one in an element in standard deviations."""
    if what == "element":
        values[7, 7] += error * values.std()
    else:
        values[slice(None) if what == "all" else 7] *= 1 + error
    return values


MATRIX = (1024, 2048)
SENSITIVITY = {
    # What is planted, size, dtype: the relative error that docs/check.md says is seen, and one that rounding explains.
    ("all", (64, 64), torch.float32): (1e-6, 1e-8),
    ("all", (64, 64), torch.bfloat16): (0.1, 1e-3),
    ("all", MATRIX, torch.float32): (1e-6, 1e-8),
    ("all", MATRIX, torch.bfloat16): (0.1, 1e-3),
    ("row", MATRIX, torch.float32): (1e-5, 1e-8),
    ("row", MATRIX, torch.bfloat16): (0.2, 1e-3),
    ("element", MATRIX, torch.float32): (1e-4, 1e-8),
    ("element", MATRIX, torch.bfloat16): (10.0, 1e-3),
}


@pytest.mark.parametrize(("what", "shape", "dtype"), SENSITIVITY)
def test_the_table_of_what_is_seen(what, shape, dtype):
    from zerosim.torch.check.gradients import answers
    from zerosim.torch.check.record import Facts, Record, Sketched, Step, Term
    from zerosim.torch.check.sketch import sketch, whole

    def sketched(values):
        about = torch.finfo(dtype)
        sums, squares = sketch(values, shape, whole(shape)).numpy()
        return Sketched(tuple(shape), whole(shape), about.eps / 2, about.tiny, sums=sums, squares=squares)

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    ranks = [torch.randn(shape, generator=generator).to(dtype) for _ in range(2)]
    terms = [Term(sketched(values), 1, "", 0) for values in ranks]
    for error, is_seen in zip((*SENSITIVITY[what, shape, dtype], 0.0), (True, False, False), strict=True):
        found = sketched(planted(what, ranks[0] / 2 + ranks[1] / 2, error))
        steps = [Step(0, 1, terms={"w": [term]}, gradients={"w": found}) for term in terms]
        records = [Record(Facts(rank, 2, trainer="DDP")) for rank in range(2)]
        assert (answers("w", records, steps, None, 1, 1)[0].wrong() is not None) is is_seen, error


def test_sketches_of_parts_add_up_whatever_the_layout():
    from zerosim.torch.check.record import bucket_length, counted
    from zerosim.torch.check.sketch import digest, sketch, whole

    generator = np.random.default_rng(0)
    for _ in range(30):
        shape = tuple(int(each) for each in generator.integers(1, 60, generator.integers(1, 4)))
        values, axis = torch.randn(shape), int(generator.integers(len(shape)))
        cut = int(generator.integers(0, shape[axis] + 1))
        keys = [tuple((first, last) if axis == at else (0, size) for at, size in enumerate(shape))
                for first, last in ((0, cut), (cut, shape[axis]))]
        parts = [values[tuple(slice(*each) for each in key)] for key in keys]
        total = sum(sketch(part, shape, key) for part, key in zip(parts, keys, strict=True))
        assert torch.allclose(total, sketch(values, shape, whole(shape)), rtol=1e-12, atol=1e-12)
        bits = sum(int(digest(part, shape, key)) for part, key in zip(parts, keys, strict=True))
        assert (bits - int(digest(values, shape, whole(shape)))) % 2**64 == 0
        assert sum(counted(shape, key) for key in keys).tolist() == counted(shape, whole(shape)).tolist()
        assert counted(shape, whole(shape)).max() <= bucket_length(values.numel())


def test_sketches_wait_for_no_device():
    from zerosim.torch.check.sketch import digest, sketch, whole

    for dtype in (torch.float32, torch.bfloat16):
        for shape, key in (((70_000,), whole((70_000,))), ((30, 50), ((0, 30), (10, 20)))):
            part = torch.empty([last - first for first, last in key], dtype=dtype, device="meta")
            assert sketch(part, shape, key).is_meta  # a number of a tensor on "meta" cannot be asked for
            assert digest(part, shape, key).is_meta
