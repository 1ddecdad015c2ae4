"""The pictures of the repository and the commands that make them, as the tables of `docs/pictures/README.md` say.

    python -m tests.pictures             makes every picture anew
    python -m tests.pictures --record    and before, every record that pictures are drawn from
"""

import json
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from zerosim.commands.cli import main

ROOT = Path(__file__).parents[1]
TABLES = "docs/pictures/README.md"
LINE = re.compile(r"^\| \[([^]]+)\]\(([^)]+)\) \| `([^`]+)` \|$", re.MULTILINE)
MOST_BYTES = 60_000
"""Of a picture."""


def commands(root=ROOT):
    """The words of each command by the file that it makes, both relative to `root`."""
    return {f"docs/pictures/{link}": shlex.split(command)
            for _, link, command in LINE.findall((root / TABLES).read_text())}


def pictures(root=ROOT):
    return {name: words for name, words in commands(root).items() if not name.endswith(".json")}


def records(root=ROOT):
    return {name: words for name, words in commands(root).items() if name.endswith(".json")}


def made(name, words, folder, root=ROOT):
    """What a command makes, to a file in `folder` instead of the one it names."""
    stand_in = Path(folder) / Path(name).name
    absolute = [
        word.replace(name, str(stand_in)) if name in word else str(root / word) if (root / word).is_file() else word
        for word in words[1:]
    ]
    with redirect_stdout(StringIO()):
        assert main(absolute) == 0, words
    return stand_in.read_bytes()


def faults(folder, root=ROOT):
    """In words, what is wrong with the pictures under `root`; `folder` is for those that are made to compare."""
    table = pictures(root)
    here = {str(path.relative_to(root)) for form in ("svg", "png") for path in root.glob(f"docs/**/*.{form}")}
    found = [f"{name}: no command makes it" for name in sorted(here - set(table))]
    for name, words in table.items():
        if name not in here:
            found.append(f"{name}: is not there")
        elif (root / name).read_bytes() != made(name, words, folder, root):
            found.append(f"{name}: is not what its command makes")
        elif (root / name).stat().st_size > MOST_BYTES:
            found.append(f"{name}: more than {MOST_BYTES:,} bytes")
    return found


def record(name, words):
    """Run the command and write its document without line breaks; a script of PyTorch needs PyTorch."""
    start = words.index("zerosim")
    python = ROOT / ".venv-torch/bin/python" if words[start + 1] == "torch" else Path(sys.executable)
    launcher = [str(python.parent / words[0]), *words[1:start]] if start else []
    subprocess.run([*launcher, str(python), "-m", *words[start:]], cwd=ROOT, check=True)
    path = ROOT / name
    path.write_text(json.dumps(json.loads(path.read_text()), separators=(",", ":"), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    if "--record" in sys.argv[1:]:
        for name, words in records().items():
            record(name, words)
    for name, words in pictures().items():
        (ROOT / name).write_bytes(made(name, words, ROOT / "docs/pictures"))
