"""`python -m zerosim.torch.check` on many small scripts; these tests run where PyTorch is installed."""

import json
import os
import subprocess
import sys

import pytest

from tests.mpi.launch import SECONDS_TO_END, mpirun

pytest.importorskip("torch", reason="make torch runs these in an environment that has PyTorch")

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]


def torchrun(ranks, *words):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI"))}
    return subprocess.run([*TORCHRUN, str(ranks), *words], capture_output=True, text=True, timeout=10 * SECONDS_TO_END,
                          env=kept | {"OMP_NUM_THREADS": "1"}, check=False)


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_wrong_scripts_are_found_with_their_cause_and_right_ones_are_not_accused(ranks):
    outcome = torchrun(ranks, "-m", "tests.torch.corpus")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.mpi
def test_the_same_holds_over_zerosim():
    outcome = mpirun(3, ["-W", "ignore", "-m", "tests.torch.corpus"], timeout=10 * SECONDS_TO_END)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


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
def test_torchrun_checks_an_unchanged_script_and_its_records_can_be_judged_later(tmp_path):
    script, found, records = tmp_path / "train.py", tmp_path / "found.json", tmp_path / "records"
    script.write_text(WITHOUT_SYNC)
    outcome = torchrun(2, "-m", "zerosim.torch.check", "--steps", "1..2", "--json", str(found), "--records",
                       str(records), str(script), "2")
    assert outcome.returncode == 1, outcome.stderr
    assert "mpi4py" not in outcome.stdout
    (finding,) = json.loads(found.read_text())["findings"]
    assert (finding["step"], finding["rank"], finding["line"]) == (1, 0, "train.py:9")
    assert "zerosim: FOUND step 1, rank 0: own gradient only" in outcome.stderr
    again = subprocess.run([sys.executable, "-m", "zerosim.torch.check", "--judge", str(records)], capture_output=True,
                           text=True, check=False, env=os.environ | {"TORCHELASTIC_RUN_ID": "none"})
    assert again.returncode == 1
    assert [line for line in again.stderr.splitlines() if line.startswith("zerosim: FOUND")] == [
        line for line in outcome.stderr.splitlines() if line.startswith("zerosim: FOUND")]


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
@pytest.mark.parametrize(("flags", "code"), [([], 0), (["--double"], 1)])
def test_in_64_bits_a_fault_within_the_rounding_of_32_is_found(flags, code, tmp_path):
    (script := tmp_path / "train.py").write_text(SLIGHTLY_OFF)
    outcome = torchrun(2, "-m", "zerosim.torch.check", *flags, str(script))
    assert outcome.returncode == code, outcome.stderr
    assert ("no order of addition explains it" in outcome.stderr) == bool(code)


CHECKING = """import sys, torch, torch.distributed as dist, zerosim.torch.check
from torch.nn.utils import clip_grad_norm_
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
optimizer, called = torch.optim.SGD(model.parameters(), 0.1), torch.autograd.backward
with zerosim.torch.check.checking(optimizer) as found:
    for step in range(2):
        model(torch.randn(4, 3) + dist.get_rank()).square().mean().backward()
        if dist.get_rank() == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()
causes = [each["cause"] for each in found["findings"]][:1]
sys.stdout.write(f"{causes} {torch.autograd.backward is called}\\n")  # in one piece: ranks share the terminal
dist.destroy_process_group()
"""


@pytest.mark.mpi
def test_a_part_of_a_script_is_checked_and_nothing_is_left_wrapped(tmp_path):
    (script := tmp_path / "train.py").write_text(CHECKING)
    outcome = torchrun(2, str(script))
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.count("['clipping on one rank'] True") == 2
    assert outcome.stderr.count("zerosim: FOUND step 1") == 1
