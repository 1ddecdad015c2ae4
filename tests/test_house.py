"""The house, module by module: no circle, a name for each thing, docstrings that stand alone."""

import ast
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import zerosim

ROOT = Path(zerosim.__file__).parent
TREES = {
    path.relative_to(ROOT.parent): ast.parse(path.read_text())
    for path in sorted(ROOT.rglob("*.py")) if (path.parent / "__init__.py").exists()
}
MOST_LINES = 420
FRAGMENTS = ("Of ", "As ", "The same ")
"""First words of docstrings that cannot be read without their neighbours."""

Trees = dict[Path, ast.Module]


def planted(**sources: str) -> Trees:
    """Modules of that text, by name."""
    return {Path(f"zerosim/{name}.py"): ast.parse(source) for name, source in sources.items()}


def module_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def imports(trees: Trees) -> dict[str, set[str]]:
    """The modules of the house that each of its modules imports, within functions too."""
    there = {module_of(path) for path in trees}
    found: dict[str, set[str]] = {}
    for path, tree in trees.items():
        names: list[str] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names += [f"{node.module}.{alias.name}" for alias in node.names]
        found[module_of(path)] = {name if name in there else name.rpartition(".")[0] for name in names} & there
    return found


def circle(trees: Trees) -> list[str]:
    """Modules of which each imports the one before, the first again the last; empty if there are none."""
    try:
        TopologicalSorter(imports(trees)).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def class_names_twice(trees: Trees) -> list[str]:
    names = Counter(node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return [name for name, count in names.items() if count > 1]


def documented(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The docstrings of a module, its classes, functions and fields, with their lines."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text.strip()


def docstrings_that_need_a_neighbour(trees: Trees) -> list[str]:
    return [f"{path}:{line} {text.splitlines()[0]}" for path, tree in trees.items() for line, text in documented(tree)
            if text.startswith(FRAGMENTS)]


def test_no_module_imports_itself_on_a_detour():
    assert circle(TREES) == []


def test_a_circle_is_found():
    one_way = planted(a="from zerosim.b import x", b="import zerosim.c", c="")
    assert circle(one_way) == []
    assert circle(one_way | planted(c="def f():\n    from zerosim import a")) != []


def test_a_class_name_stands_for_one_thing():
    assert class_names_twice(TREES) == []
    assert class_names_twice(planted(a="class X: ...", b="class X: ...\nclass Y: ...")) == ["X"]


def test_no_docstring_needs_its_neighbour():
    assert docstrings_that_need_a_neighbour(TREES) == []


@pytest.mark.parametrize("text", [
    '"""Of a."""', 'class C:\n    x: int\n    """As a."""', 'def f():\n    """The same b."""'])
def test_a_docstring_that_needs_its_neighbour_is_seen(text):
    assert len(docstrings_that_need_a_neighbour(planted(a=text))) == 1


def test_no_file_is_long():
    lines = {path: len((ROOT.parent / path).read_text().splitlines()) for path in TREES}
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}
