"""Which files are changed, all the changes of a file, and a sample that depends on a seed and the lines alone.

The whole package is changed, but for what shows, starts or carries it.
"""

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from tests.mutants.operators import IMMATERIAL, OPERATORS, Source

PACKAGE = "zerosim"
EXCLUDED = (
    "zerosim/__init__.py",
    "zerosim/__main__.py",
    "zerosim/core/allocation.py",
    "zerosim/commands/cli.py",
    "zerosim/core/comm.py",
    "zerosim/core/errors.py",
    "zerosim/commands/benches/*",
    "zerosim/commands/*",
    "zerosim/scenario/data/*",
    "zerosim/worlds/*",
    "zerosim/show/collectives.py",
    "zerosim/show/film.py",
    "zerosim/show/grid.py",
    "zerosim/show/proofs.py",
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


@dataclass(frozen=True)
class Mutant:
    """One changed line: its number, the function around it, and its text before and after, without indentation."""

    module: str
    line: int
    function: str
    """Qualified; empty for what is executed when the module is imported."""
    begins: int
    """The line at which the function begins, decorators included; 0 for the module."""
    before: str
    after: str
    source: str
    """The whole file, changed."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What it is known by when lines or files have moved."""
        return PurePosixPath(self.module).name, self.function, self.before, self.after

    @property
    def where(self) -> str:
        """The function, as a trace names it."""
        return f"{self.module}:{self.begins}"

    def __str__(self) -> str:
        within = f" {self.function}" if self.function else ""
        return f"{self.module}:{self.line}{within}\n    - {self.before}\n    + {self.after}"


def mutants(tree: Path, module: str) -> list[Mutant]:
    """Every mutant of a module that is still Python, each once, in the order of lines."""
    text = (tree / module).read_bytes()
    source = Source(text.splitlines(keepends=True))
    found: dict[tuple[int, str], Mutant] = {}
    for node, function, begins in nodes(ast.parse(text), "", 0):
        for operator in OPERATORS:
            for edit in operator(node, source):
                before = source.lines[edit.line - 1]
                after = before[: edit.start] + edit.text.encode() + before[edit.stop :]
                changed = b"".join([*source.lines[: edit.line - 1], after, *source.lines[edit.line :]]).decode()
                if after != before and is_python(changed):
                    mutant = Mutant(
                        module, edit.line, function, begins, before.strip().decode(), after.strip().decode(), changed
                    )
                    found.setdefault((edit.line, mutant.after), mutant)
    return sorted(found.values(), key=lambda mutant: mutant.line)


def nodes(node: ast.AST, function: str, begins: int) -> Iterator[tuple[ast.AST, str, int]]:
    """Each node that does something, with the function that does it and the line at which that begins."""
    if immaterial(node):
        return
    yield node, function, begins
    if isinstance(node, ast.Raise):
        return
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        qualified = f"{function}.{node.name}" if function else node.name
        inside = (qualified, begins)
        if isinstance(node, ast.FunctionDef):
            inside = (qualified, min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]))
            for default in [*node.args.defaults, *(each for each in node.args.kw_defaults if each)]:
                yield from nodes(default, function, begins)
        for child in node.body:
            yield from nodes(child, *inside)
        return
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from nodes(child, function, begins)


def immaterial(node: ast.AST) -> bool:
    """Whether nothing that the package promises can depend on it."""
    match node:
        case ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Subscript(value=ast.Name("Literal")) | ast.If(test=ast.Name("TYPE_CHECKING")):
            return True
        case ast.keyword():
            return node.arg in IMMATERIAL
    return False


def is_python(source: str) -> bool:
    try:
        compile(source, "", "exec")
    except SyntaxError:
        return False
    return True


def sample(every: dict[str, list[Mutant]], count: int, seed: str) -> list[Mutant]:
    """`count` or some more: of each module its share, and at least 6; a line twice only when all had one."""
    total = sum(len(each) for each in every.values())
    chosen = []
    for found in every.values():
        share = min(len(found), max(6, -(-count * len(found) // total)))
        chosen += sorted(spread(found, seed)[:share], key=lambda mutant: mutant.line)
    return chosen


def spread(found: list[Mutant], seed: str) -> list[Mutant]:
    """As if shuffled: first one mutant of every line, then a second one of those that have it, and so on."""
    shuffled = sorted(found, key=lambda mutant: hashlib.sha256("\0".join([seed, *mutant.key]).encode()).digest())
    turn: Counter[int] = Counter()
    turns = []
    for mutant in shuffled:
        turns.append(turn[mutant.line])
        turn[mutant.line] += 1
    return [mutant for _, mutant in sorted(zip(turns, shuffled, strict=True), key=lambda pair: pair[0])]
