"""The pictures of the documents and the commands that make them, as `docs/pictures/README.md` lists them.

    python -m tests.documents.pictures    makes the runs, in build/pictures, and every picture anew
"""

import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from zerosim.commands.cli import main

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"^- \[?([\w./]+)\]?(?:\([\w.]+\))?: `([^`]+)`$", re.MULTILINE)


def commands(page):
    """The words of each command of a list by the name of the file that it makes."""
    return {name: shlex.split(command) for name, command in LINE.findall(page)}


def page():
    return (ROOT / "docs/pictures/README.md").read_text()


def pictures():
    return {name: words for name, words in commands(page()).items() if name.endswith(".svg")}


def runs():
    return {name: words for name, words in commands(page()).items() if name.endswith(".json")}


def make(words, stand_in=("", "")):
    """Run a command in the project's folder, with one word in its arguments replaced."""
    start = words.index("zerosim")
    arguments = [word.replace(*stand_in) if stand_in[0] else word for word in words[start + 1:]]
    if start:
        launcher = [str(Path(sys.executable).with_name(words[0])), *words[1:start]]
        subprocess.run([*launcher, sys.executable, "-m", "zerosim", *arguments], cwd=ROOT, check=True)
        return
    paths = [str(ROOT / word) if (ROOT / word).is_file() else re.sub(r"(?<==)(?=docs/)|^(?=build/)", f"{ROOT}/", word)
             for word in arguments]
    with redirect_stdout(StringIO()):
        assert main(paths) == 0, words


if __name__ == "__main__":
    (ROOT / "build/pictures").mkdir(parents=True, exist_ok=True)
    for words in [*runs().values(), *pictures().values()]:
        print(shlex.join(words), flush=True)
        make(words)
