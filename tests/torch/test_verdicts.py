"""`zerosim torch --check` on many small scripts; these tests run where PyTorch is installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mpi.launch import SECONDS_TO_END, mpirun

pytest.importorskip("torch", reason="make torch runs these in an environment that has PyTorch")

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


def torchrun(*words):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI"))}
    return subprocess.run([*TORCHRUN, *words], capture_output=True, text=True, timeout=10 * SECONDS_TO_END,
                          env=kept | {"OMP_NUM_THREADS": "1"}, check=False)


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_wrong_scripts_are_found_with_their_cause_and_right_ones_are_not_accused(ranks):
    outcome = mpirun(ranks, ["-W", "ignore", "-m", "tests.torch.corpus"], timeout=10 * SECONDS_TO_END)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.mpi
def test_the_same_holds_under_torchrun_over_gloo():
    outcome = torchrun("-m", "tests.torch.corpus")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.mpi
def test_torchrun_checks_an_unchanged_script_without_mpi(tmp_path):
    script, found = tmp_path / "train.py", tmp_path / "found.json"
    script.write_text(WITHOUT_SYNC)
    outcome = checked(BY_TORCHRUN, script, "--check-steps", "1..2", "--json", str(found))
    assert outcome.returncode == 1, outcome.stderr
    assert "mpi4py" not in outcome.stdout
    document = json.loads(found.read_text())
    assert document["schema"] == "zerosim.check/1"
    (finding,) = document["findings"]
    assert (finding["step"], finding["rank"], finding["line"]) == (1, 0, "train.py:9")
    assert finding["cause"] == "own gradient only"
    assert "zerosim: FOUND step 1, rank 0: own gradient only" in outcome.stderr


WITHOUT_SYNC = """import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(int(sys.argv[1])):
    with model.no_sync():
        model(torch.randn(4, 3) + dist.get_rank()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print([name for name in sys.modules if "mpi4py" in name])
dist.destroy_process_group()
"""


@pytest.mark.mpi
def test_findings_are_in_the_page_and_in_the_trace(tmp_path):
    script, page, trace = (tmp_path / name for name in ("train.py", "page.html", "trace.json"))
    script.write_text(WITHOUT_SYNC)
    outcome = checked(BY_MPIRUN, script, "--report", str(page), "--trace", str(trace))
    assert outcome.returncode == 1, outcome.stderr
    assert "CHECKED: 2 steps, 1 finding" in page.read_text()
    assert "step 1, rank 0: own gradient only" in page.read_text()
    events = json.loads(trace.read_text())["traceEvents"]
    (marker,) = [each for each in events if each["ph"] == "i"]
    assert (marker["pid"], marker["name"]) == (1, "step 1: own gradient only")
    assert {"forward", "backward", "check", "update"} <= {each["name"] for each in events if each["ph"] == "X"}


BY_MPIRUN, BY_TORCHRUN = "mpirun", "torchrun"


def checked(by, script, *flags):
    """Two ranks that check a script, over zerosim or over gloo."""
    if by == BY_TORCHRUN:
        return torchrun("-m", "zerosim.torch", "--check", *flags, str(script), "2")
    return mpirun(2, ["-m", "zerosim", "torch", "--check", *flags, str(script), "2"], timeout=SECONDS_TO_END)


@pytest.mark.mpi
@pytest.mark.parametrize("by", [BY_MPIRUN, BY_TORCHRUN])
def test_a_check_that_fails_on_one_rank_ends_all_with_one_line(by, tmp_path):
    (script := tmp_path / "train.py").write_text(FAILING_CHECK + WITHOUT_SYNC)
    outcome = checked(by, script)
    assert outcome.returncode == (3 if by == BY_MPIRUN else 1), outcome.stderr
    said = [line for line in outcome.stderr.splitlines() if line.startswith("zerosim: ")]
    assert said == ["zerosim: rank 1: the check failed on this rank alone: ZeroDivisionError: division by zero"]


FAILING_CHECK = """import os
from zerosim.torch.verdicts.judging import Judge
if os.environ["RANK"] == "1":
    Judge.replay = lambda *_: 1 / 0
"""


@pytest.mark.mpi
@pytest.mark.parametrize(("flags", "code"), [([], 0), (["--double"], 1)])
def test_in_64_bits_a_fault_within_the_rounding_of_32_is_found(flags, code, tmp_path):
    (script := tmp_path / "train.py").write_text(SLIGHTLY_OFF)
    outcome = checked(BY_TORCHRUN, script, *flags)
    assert outcome.returncode == code, outcome.stderr
    assert ("no order of addition explains it" in outcome.stderr) == bool(code)


SLIGHTLY_OFF = """import torch, torch.distributed as dist, torch.distributed.fsdp
dist.init_process_group("gloo")
torch.manual_seed(0)
model = dist.fsdp.fully_shard(torch.nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.randn(4, 3) + dist.get_rank()).square().mean().backward()
model.weight.grad.to_local()[0, 0] *= 1 + (dist.get_rank() == 1) * 1.2e-7
optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.mpi
@pytest.mark.parametrize("by", [BY_MPIRUN, BY_TORCHRUN])
def test_a_part_of_a_script_is_checked_and_nothing_is_left_wrapped(by, tmp_path):
    (script := tmp_path / "train.py").write_text(CHECKING)
    outcome = torchrun(str(script)) if by == BY_TORCHRUN else mpirun(2, [str(script)], timeout=SECONDS_TO_END)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.count("['clipping on one rank'] True") == 2
    assert outcome.stderr.count("zerosim: FOUND step 1") == 1


CHECKING = """import sys, torch, torch.distributed as dist, zerosim.torch
from torch.nn.utils import clip_grad_norm_
from zerosim.worlds.launcher import launched
dist.init_process_group("zerosim" if launched() else "gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
optimizer, called = torch.optim.SGD(model.parameters(), 0.1), torch.nn.Module.__call__
with zerosim.torch.checking(model, optimizer) as check:
    for step in range(2):
        model(torch.randn(4, 3) + dist.get_rank()).square().mean().backward()
        if dist.get_rank() == 0:
            clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()
causes = [each["cause"] for each in check.document["findings"]][:1]
sys.stdout.write(f"{causes} {torch.nn.Module.__call__ is called}\\n")  # in one piece: ranks share the terminal
dist.destroy_process_group()
"""


@pytest.mark.parametrize("flags", [["--check-steps", "3..1"], ["--check-steps", "x"]])
def test_wrong_flags_are_one_line(flags, tmp_path, capsys):
    from zerosim.cli import main

    (Path(tmp_path) / "train.py").write_text("")
    assert main(["torch", "--check", *flags, str(tmp_path / "train.py")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
