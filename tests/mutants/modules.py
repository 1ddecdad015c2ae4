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
    "zerosim/commands/benches/*",
    "zerosim/commands/*",
    "zerosim/data/*",
    "zerosim/worlds/*",
    "zerosim/show/*_table.py",
    "zerosim/show/collectives.py",
    "zerosim/show/details.py",
    "zerosim/show/grid.py",
    "zerosim/show/progress.py",
    "zerosim/teach/proofs/printed.py",
    "zerosim/show/schedule*.py",
    "zerosim/show/table.py",
    "zerosim/scenario/collective.py",
    "zerosim/scenario/load.py",
    "zerosim/scenario/origin.py",
    "zerosim/scenario/positions.py",
)


def mutated_modules(tree: Path) -> list[str]:
    """The files to change, relative to `tree`."""
    every = (path.relative_to(tree).as_posix() for path in tree.glob(f"{PACKAGE}/**/*.py"))
    return sorted(path for path in every if not any(fnmatch(path, pattern) for pattern in EXCLUDED))
