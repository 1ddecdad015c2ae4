"""`zerosim torch --check` on many small scripts; these tests run where PyTorch is installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mpi.launch import SECONDS_TO_END, mpirun

pytest.importorskip("torch", reason="make torch runs these in an environment that has PyTorch")

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m"]


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
    outcome = torchrun("tests.torch.corpus")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.mpi
def test_torchrun_checks_an_unchanged_script_without_mpi(tmp_path):
    script, found = tmp_path / "train.py", tmp_path / "found.json"
    script.write_text(WITHOUT_SYNC)
    outcome = torchrun("zerosim.torch", "--check", "--check-steps", "1..2", "--json", str(found), str(script), "3")
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


@pytest.mark.parametrize("flags", [["--check-steps", "3..1"], ["--check-steps", "x"], ["--report", "page.html"]])
def test_wrong_flags_are_one_line(flags, tmp_path, capsys):
    from zerosim.cli import main

    (Path(tmp_path) / "train.py").write_text("")
    assert main(["torch", "--check", *flags, str(tmp_path / "train.py")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
