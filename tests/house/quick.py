"""`make quick`: ruff on the files that git says have changed, their modules' examples, and the tests of their rooms.

    python -m tests.house.quick

What names a changed module comes first, then the rest of its room; nothing that needs MPI or is long. It stops at the
first failure, or after `SECONDS` and says so: `make check` runs all.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from signal import SIGINT

ROOT = Path(__file__).parents[2]
SECONDS = 10.0
NO_TESTS = 5
"""The exit code of pytest where nothing is to be run."""
EXAMPLES = "tests/house/test_house.py::test_examples_in_docstrings_run"


def changed() -> list[Path]:
    """The Python files of the package and its tests that differ from the last commit, or are new."""
    names = {name for command in (["diff", "--name-only", "HEAD"], ["ls-files", "--others", "--exclude-standard"])
             for name in subprocess.check_output(["git", *command], cwd=ROOT, text=True).splitlines()}
    return sorted(path for path in map(Path, names)
                  if path.suffix == ".py" and path.parts[0] in ("zerosim", "tests") and (ROOT / path).exists())


def tests_of(paths: Sequence[Path]) -> list[str]:
    """What pytest runs for these files, the nearest tests first."""
    modules = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths]
    texts = {path.relative_to(ROOT): path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py"))}
    own = [path for path in paths if path in texts]
    naming = [path for path, text in texts.items() for module in modules
              if f"{module} import" in text or "{} import {}".format(*module.rpartition(".")[::2]) in text]
    rooms = {path.parts[1] for path in paths if len(path.parts) > 2}
    rest = [path for path in texts if len(path.parts) > 2 and path.parts[1] in rooms]
    examples = [f"{EXAMPLES}[{module}]" for module in modules if module.startswith("zerosim.") and "__" not in module]
    return list(dict.fromkeys([*examples, *map(str, [*own, *naming, *rest])]))


def answer(tests: Sequence[str], seconds: float = SECONDS) -> int:
    """1 if one of these tests fails or cannot be imported within so many seconds, otherwise 0."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:xdist", "-m", "not (mpi or long)", *tests]
    with subprocess.Popen(command, cwd=ROOT) as running:
        try:
            return int(running.wait(seconds) not in (0, NO_TESTS))
        except subprocess.TimeoutExpired:
            running.send_signal(SIGINT)
            running.wait()
    print(f"stopped after {seconds:g} s without a failure; `make check` runs all")
    return 0


def main() -> int:
    """0 if nothing that was tried is wrong."""
    paths = changed()
    if not paths:
        print("nothing has changed since the last commit")
        return 0
    wrong = subprocess.run([sys.executable, "-m", "ruff", "check", *map(str, paths)], cwd=ROOT, check=False).returncode
    return wrong or answer(tests_of(paths))


if __name__ == "__main__":
    sys.exit(main())
