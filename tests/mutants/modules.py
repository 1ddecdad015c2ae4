"""Which files are changed: the whole package, but for what shows, starts or carries it."""

from fnmatch import fnmatch
from pathlib import Path

PACKAGE = "zerosim"
EXCLUDED = (
    "zerosim/__init__.py",
    "zerosim/__main__.py",
    "zerosim/allocation.py",
    "zerosim/cli.py",
    "zerosim/comm.py",
    "zerosim/errors.py",
    "zerosim/bench/*",
    "zerosim/commands/*",
    "zerosim/data/*",
    "zerosim/worlds/*",
    "zerosim/report/*_table.py",
    "zerosim/report/collectives.py",
    "zerosim/report/details.py",
    "zerosim/report/grid.py",
    "zerosim/report/progress.py",
    "zerosim/report/proof_text.py",
    "zerosim/report/schedule*.py",
    "zerosim/report/table.py",
    "zerosim/scenario/collective.py",
    "zerosim/scenario/load.py",
    "zerosim/scenario/origin.py",
    "zerosim/scenario/positions.py",
)


def mutated_modules(tree: Path) -> list[str]:
    """The files to change, relative to `tree`."""
    every = (path.relative_to(tree).as_posix() for path in tree.glob(f"{PACKAGE}/**/*.py"))
    return sorted(path for path in every if not any(fnmatch(path, pattern) for pattern in EXCLUDED))
