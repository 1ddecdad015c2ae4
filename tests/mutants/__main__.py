"""Plants each fault of `by_hand.jsonl` in a copy of the tree, and says which test notices it.

    python -m tests.mutants [--only 'zerosim/stages/*'] [TESTS …]

A fault is a `file`, the `old` text in it and the `new` one; `equivalent` says why no test can notice it. Without tests
these are the laws and the independent trainers, then the tests that import the file or mirror its folder. It ends with
1 where a fault is not noticed or has no place.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from fnmatch import fnmatch
from pathlib import Path

FAULTS = Path(__file__).with_name("by_hand.jsonl")
ROOT = Path(__file__).parents[2]
LAWS = ("tests/laws/test_runs.py", "tests/independent", "tests/laws", "tests/training/test_scenarios.py")
SECONDS = 300


def faults():
    return [json.loads(line) for line in FAULTS.read_text(encoding="utf-8").splitlines()]


def misplaced(fault, tree=ROOT):
    """Why a fault cannot be planted, in words; None if it can."""
    path = tree / fault["file"]
    times = path.read_text(encoding="utf-8").count(fault["old"]) if path.is_file() else 0
    return None if times == 1 else f"{fault['file']} has this {times} times, not once: {fault['old']!r}"


def near(file, tree=ROOT):
    """The tests that import a file of the package, the shortest first, and then the others of its room."""
    parent, _, name = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__").rpartition(".")
    parent = re.escape(parent)
    imports = re.compile(rf"{parent}\.{name}\b|from {parent} import .*\b{name}\b")
    importing = {path for path in tree.glob("tests/**/test_*.py") if imports.search(path.read_text(encoding="utf-8"))}
    room = tree.glob(f"tests/{file.split('/')[1]}/test_*.py")
    return [str(path.relative_to(tree)) for path in sorted(
        {*importing, *room}, key=lambda path: (path not in importing, path.stat().st_size))]


def noticed_by(fault, tree, tests, number):
    """The first test that fails or does not end in the tree with the fault planted; None if all pass."""
    path = tree / fault["file"]
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(fault["old"], fault["new"]), encoding="utf-8")
    os.utime(path, (time.time() + 10 * number,) * 2)
    try:
        for test in tests:
            done = subprocess.run([sys.executable, "-m", "pytest", "-xq", "--tb=no", "-p", "no:cacheprovider", test],
                                  cwd=tree, capture_output=True, text=True, timeout=SECONDS, check=False)
            if done.returncode not in (0, 5):
                return next(iter(re.findall(r"(?:FAILED|ERROR) (\S+)", done.stdout)), f"{test} ends with an error")
    except subprocess.TimeoutExpired:
        return f"{test} does not end"
    finally:
        path.write_text(text, encoding="utf-8")
        os.utime(path, (time.time() + 10 * number + 5,) * 2)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="a pattern for the files of which faults are planted")
    parser.add_argument("tests", nargs="*")
    options, missed = parser.parse_args(), 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "build", "__pycache__", "*.egg-info"))
        for number, fault in enumerate(faults(), start=1):
            if fnmatch(fault["file"], options.only):
                what = misplaced(fault) or noticed_by(
                    fault, tree, options.tests or [*LAWS, *near(fault["file"])], number) or fault.get("equivalent")
                missed += what is None or what.startswith(fault["file"])
                print(f"{number} {fault['file']}: {what or 'not noticed'}", flush=True)
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
