"""A copy of the tree, in which one file at a time is changed."""

import compileall
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.mutants import tracing
from tests.mutants.mutations import Mutant


@contextmanager
def copied(tree: Path) -> Iterator[Path]:
    """A copy of the tree that may be changed, without what is hidden or built; its processes trace when asked to."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder).resolve() / "tree"
        shutil.copytree(tree, copy, ignore=shutil.ignore_patterns(".*", "build", "__pycache__", "*.egg-info"))
        (copy / "tests" / "mutants").mkdir(parents=True, exist_ok=True)
        for file in Path(__file__).parent.glob("*.py"):
            shutil.copy(file, copy / "tests" / "mutants")
        (copy / "sitecustomize.py").write_text(tracing.STARTUP)
        compileall.compile_dir(copy, quiet=2)
        yield copy


@contextmanager
def planted(copy: Path, mutant: Mutant) -> Iterator[None]:
    """The mutant is in the copy, and no bytecode of the file that it replaces."""
    path = copy / mutant.module
    original = path.read_bytes()
    for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        cached.unlink()
    path.write_text(mutant.source, encoding="utf-8")
    try:
        yield
    finally:
        path.write_bytes(original)
