"""Published bugs of training frameworks, run again under the check: `make bugs`.

    python -m tests.torch.bugs [NAME …]

installs the versions that `bugs.toml` names, from the package index that pip is configured with, runs each row with the
wrong and with the mended version, writes what was seen into `recorded.json`, and the page from both.
"""

import json
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
PAGE, RECORDED = ROOT / "docs" / "published_bugs.md", HERE / "recorded.json"
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
    said = [line.removeprefix("zerosim: ") for line in complained.splitlines() if line.startswith("zerosim: ")]
    if not said:
        raise SystemExit(f"{command} with {requirements}:\n{printed}{complained[-4000:]}{others[-4000:]}")
    return {"with": requirements, "run": command, "exit": ranks[0].returncode, "said": said,
            "printed": [line.removeprefix("> ") for line in printed.splitlines() if line.startswith("> ")]}


def link(thread):
    """A thread `owner/name#number` as a link."""
    repository, number = thread.split("#")
    return f"[{repository.partition('/')[2]} #{number}](https://github.com/{repository}/issues/{number})"


def says(outcome):
    """The check's first finding in its own words; empty if there is none."""
    return next((line.removeprefix("FOUND ") for line in outcome["said"] if line.startswith("FOUND ")), "")


def judged(outcome):
    """Whether the gradient is within the rounding of any order of addition."""
    return any(line.startswith("gradient: within the rounding") for line in outcome["said"])


def page(recorded):
    """The page, from the table and what was recorded."""
    rows, concerned = [], re.compile(r"; \d+ of \d+ parameters are concerned")
    for bug in TABLE["bug"]:
        wrong, right = (recorded[bug["name"]][side] for side in SIDES)
        printed = [" ".join(line.rpartition(" ")[2] for line in each["printed"]) for each in (wrong, right)]
        at = [each["with"].split()[0].replace("==", " ") if each["with"] else "torch 2.13.0" for each in (wrong, right)]
        mended = f"{at[1] if at[1] != at[0] else 'script'}: {printed[1]}{'' if judged(right) else ', not judged'}"
        threads = ", ".join(map(link, bug["threads"]))
        found = concerned.sub("", says(wrong))
        rows.append(f"| {threads}: {bug['title']} | {at[0]} | {printed[0]} | {found} | {mended} |")
    others = [f"- {', '.join(map(link, each['threads']))}: {each['why']}" for each in TABLE["other"]]
    return TABLE["page"].format(table="\n".join(rows), others="\n".join(others),
                                unreported="\n".join(recorded["unreported"]["wrong"]["printed"]), count=len(rows))


def main():
    """Run the rows that are named, or all, and write what was seen, and the page."""
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    for bug in (*TABLE["bug"], TABLE["unreported"]):
        for side in SIDES if bug["name"] in (sys.argv[1:] or [bug["name"]]) else ():
            outcome = run(bug[side]["with"], bug[side]["run"])
            print(f"{bug['name']}, {side}: {says(outcome) or 'no finding'}", flush=True)
            recorded.setdefault(bug["name"], {})[side] = outcome
            RECORDED.write_text(json.dumps(recorded, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    PAGE.write_text(page(recorded))


if __name__ == "__main__":
    main()
