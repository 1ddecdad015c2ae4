"""Published bugs of training frameworks, run again under the check.

    python -m tests.torch.bugs [NAME …]

installs the versions that `bugs.toml` names, from the package index that pip is configured with, and runs each row with
the wrong and with the mended version.
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
BASE = ROOT / ".venv-torch"
TABLE = tomllib.loads((HERE / "bugs.toml").read_text())
SIDES = ("wrong", "right")
SECONDS = 600


def environment(requirements):
    """The Python of an environment with these packages; PyTorch is that of `.venv-torch` unless they name one."""
    if not requirements:
        return BASE / "bin" / "python"
    folder = ROOT / f".venv-bugs-{re.sub(r'[^a-z0-9.]+', '-', requirements)}"
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        if "torch==" not in requirements.split():
            (own,) = folder.glob("lib/python*/site-packages")
            (below,) = BASE.glob("lib/python*/site-packages")
            (own / "below.pth").write_text(f"import site; site.addsitedir({str(below)!r})\n")
        for packages in (["wheel"], requirements.split()):
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-build-isolation", *packages],
                           check=True, env=os.environ | {"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"})
        (folder / "installed").touch()
    return python


def run(requirements, command):
    """Run a script of this folder on two ranks under the check: what rank 0 printed, and what the check said."""
    script, *arguments = command.split()
    words = [environment(requirements), "-m", "zerosim.torch", "--check", HERE / script, *arguments]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # The environment of torchrun, without a third process that imports PyTorch.
    ours = os.environ | {
        "TORCHELASTIC_RUN_ID": "bugs", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu",
        "PYTHONWARNINGS": "ignore", "NODE_RANK": "0", "GROUP_RANK": "0"}
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
                                  env=ours | {"RANK": rank, "LOCAL_RANK": rank}) for rank in "01"]
        (printed, complained), (_, others) = (each.communicate(timeout=SECONDS) for each in ranks)
    said = [line.removeprefix("zerosim: ") for line in (complained + others).splitlines()  # the last to end judges
            if line.startswith("zerosim: ")]
    if not said:
        raise SystemExit(f"{command} with {requirements}:\n{printed}{complained[-4000:]}{others[-4000:]}")
    return {"with": requirements, "run": command, "exit": ranks[0].returncode, "said": said,
            "printed": [line.removeprefix("> ") for line in printed.splitlines() if line.startswith("> ")]}


def says(outcome):
    """The check's first finding in its own words; empty if there is none."""
    return next((line.removeprefix("FOUND ") for line in outcome["said"] if line.startswith("FOUND ")), "")


def main():
    """Run the rows that are named, or all; 1 if one is not found with its cause, or its mended version is accused."""
    failed = 0
    for bug in TABLE["bug"]:
        for side in SIDES if bug["name"] in (sys.argv[1:] or [bug["name"]]) else ():
            said = says(run(bug[side]["with"], bug[side]["run"]))
            right = f": {bug['cause']}: " in said if side == "wrong" else not said
            failed += not right
            print(f"{bug['name']}, {side}: {said or 'no finding'}{'' if right else ' (NOT as it should be)'}",
                  flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
