"""The wheel of `make dist`, installed in fresh environments, one without extras and one with MPICH and reports.

    python -m tests.house.dist WHEEL

Each environment has nothing but the wheel and what it requires. In an empty folder it runs a scenario, under `mpirun`
too if it has one, and every cell of the notebooks that its extras allow.
"""

import argparse
import os
import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.documents.notebooks import NOTEBOOKS, read

NEEDS_REPORT = {"1_all_reduce.ipynb", "2_the_stages.ipynb"}
SHORT = ["--set", "train.steps=2", "--set", "check.test_accuracy=0", "--progress", "none"]


def script(notebook):
    """The code cells of a notebook as one program."""
    cells = [each for each in read(notebook)["cells"] if each["cell_type"] == "code"]
    return "\n\n".join("".join(each["source"]) for each in cells)


def installed(place, what):
    """The command that installs a wheel with extras."""
    return [place / "pip", "install", "--quiet", what]


def commands(place, extras):
    """What must end with exit code 0 in an environment at `place`."""
    yield [place / "zerosim", "run", "compare", *SHORT]
    if "mpich" in extras:
        yield [place / "mpirun", "-n", "2", place / "zerosim", "run", "ddp", *SHORT]
    for notebook in NOTEBOOKS:
        if "report" in extras or notebook.name not in NEEDS_REPORT:
            yield [place / "python", "-c", script(notebook)]


def faults(wheel, extras):
    """In words, the first command that fails in a fresh environment with the wheel and these extras."""
    with TemporaryDirectory() as folder:
        place, empty = Path(folder, "fresh", "bin"), Path(folder, "empty")
        empty.mkdir()
        venv.create(place.parent, with_pip=True)
        clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        for command in (installed(place, f"{wheel}{extras}"), *commands(place, extras)):
            ended = subprocess.run(
                command, cwd=empty, env=clean, check=False, capture_output=True, text=True, timeout=300)
            if ended.returncode:
                words = " ".join(map(str, command))
                yield f"{extras or 'no extras'}: {words[:200]}: {ended.returncode}\n{ended.stdout}{ended.stderr}"
                break


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    wheel = parser.parse_args().wheel.resolve()
    found = [*faults(wheel, ""), *faults(wheel, "[mpich,report]")]
    sys.exit("\n".join(found) or None)
