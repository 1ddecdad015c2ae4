"""The loop in docs/checkpoint.md goes on after a killed rank, to the bits of an undisturbed run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mpi.launch import OPEN_MPI_AS_ROOT_ON_FEW_CORES, ROOT
from zerosim.commands.cli import main

KILL = (ROOT / "scenarios/faults/kill.toml").read_text()


@pytest.mark.mpi
@pytest.mark.long
def test_the_loop_goes_on_to_the_same_bits(tmp_path):
    """Under the environment's own mpirun; the first start is killed in step 3."""
    (loop,) = re.findall(r"^```bash\n(for start.*?)```", (ROOT / "docs/checkpoint.md").read_text(), re.DOTALL | re.M)
    (tmp_path / "S.toml").write_text(KILL)
    loop = loop.replace("zerosim run S.toml", f"{sys.executable} -m zerosim run S.toml --json out.json --progress none")
    ended = subprocess.run(
        ["bash", "-c", loop], check=False, capture_output=True, text=True, timeout=300, cwd=tmp_path,
        env=os.environ | OPEN_MPI_AS_ROOT_ON_FEW_CORES | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)})
    (row,) = json.loads((tmp_path / "out.json").read_text())["stages"]
    assert (row["resumed"]["step"], row["resumed"]["ranks"]) == (2, 3), ended.stderr
    (tmp_path / "whole.toml").write_text(KILL.partition("[[fault]]")[0])
    undisturbed = tmp_path / "whole.json"
    assert main(["run", str(tmp_path / "whole.toml"), "--progress", "none", "--json", str(undisturbed)]) == 0
    (whole,) = json.loads(undisturbed.read_text())["stages"]
    assert [row[key] for key in ("weights_sha256", "optimizer_sha256", "losses")] == [
        whole[key] for key in ("weights_sha256", "optimizer_sha256", "losses")]
