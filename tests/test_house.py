"""The house, module by module: no circle, one name for each thing, nothing private touched."""

import ast
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import zerosim
from tests.conftest import in_sample

ROOT = Path(zerosim.__file__).parent
TREES = {
    path.relative_to(ROOT.parent): ast.parse(path.read_text())
    for path in sorted(ROOT.rglob("*.py")) if (path.parent / "__init__.py").exists()
}
MOST_LINES = 420
OF_PYTHON = {"_asdict", "_replace", "_exit", "_current_frames", "_getframe"}
"""Names with an underscore that Python documents."""
OF_PYTORCH = {
    "_cdata", "_compute_bucket_assignment_by_size", "_plugins", "_DEFAULT_FIRST_BUCKET_BYTES", "_get_default_store",
    "_get_fsdp_state", "_fsdp_param_groups", "_fully_shard", "_mp_policy", "_param_fqn", "_reduce_dtype",
    "_all_reduce_hook", "_comm_hooks", "_buffers", "_modules", "_parameters", "_pytree", "_version",
    "_module_info", "_sequence_nr", "_BatchNorm", "_backward_hooks", "_unsharded_param", "_C",
    "_to_dlpack_versioned", "_handle", "_params", "_shapes", "_param_infos", "_shared_param_infos",
    "_shard_param_infos", "_numels_with_padding", "_is_padding_mask", "_sharded_size", "_fwd_bwd_param_dtype",
    "_is_root", "_sync_gradients", "_comm_hook", "_device_mesh", "_compiled_call_impl",
}
"""What PyTorch's extensions and its own tests use, and has no other name."""

MOST_DEFINITIONS = 4
"""The most modules of the package that may define the same public name."""
SHARED_NAMES = {
    "main": "the entry of a program", "add_arguments": "a command's options",
    "MOST_RANKS": "a limit of what the module makes", "MOST_BYTES": "a limit of what the module reads",
    "declared": "a user's function as a part", "step": "a stage",
    **dict.fromkeys(("all_reduce", "reduce_scatter", "all_gather", "broadcast"), "a collective, by each algorithm"),
}
"""Names that many modules define on purpose, with what each of them is there."""
SAYS_NOTHING = {
    "apart", "borrowed", "common", "handed", "handler", "helper", "helpers", "lawful", "lives", "manager",
    "mends", "misc", "quickly", "slopes", "stuff", "things", "told", "tried", "untouched", "util", "utils", "witness",
}
"""Names of files that do not say what is in them."""

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
    """The names of classes that another class, or an alias of a type, has too."""
    classes = Counter(node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    aliases = {written(target) for tree in trees.values() for node in tree.body if isinstance(node, ast.Assign)
               for target in node.targets if "TypeVar" not in written(node.value)}
    return [name for name, count in classes.items() if count > 1 or name in aliases]


def defined(node: ast.stmt) -> Iterator[str]:
    """The public names that a statement at module level defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        names = [node.name]
    else:
        targets = getattr(node, "targets", [node.target] if isinstance(node, ast.AnnAssign) else [])
        names = [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
    return (name for name in names if not name.startswith("_"))


def names_of_many_things(trees: Trees) -> dict[str, int]:
    """The names that more than `MOST_DEFINITIONS` modules define, and how many do; without `SHARED_NAMES`."""
    counts = Counter(name for tree in trees.values() for name in {name for node in tree.body for name in defined(node)})
    return {name: count for name, count in counts.items() if count > MOST_DEFINITIONS and name not in SHARED_NAMES}


def is_private(name: str) -> bool:
    """Not `__init__`, and not `_repr_html_`, which IPython documents."""
    return name.startswith("_") and not name.startswith("__") and not name.endswith("_")


def private_names(scope: ast.AST) -> set[str]:
    """The private attributes that a class, or a module, defines: methods, fields, what `self` is given."""
    found = set()
    for node in ast.walk(scope):
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and written(node.value) == "self":
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Call) and written(node.func) == "self.__dict__.update":
            found |= {each.arg for each in node.keywords if each.arg}
    return {name for name in found if is_private(name)}


def written(node: ast.expr) -> str:
    return ast.unparse(node)


def private_attributes_of_others(trees: Trees) -> list[str]:
    """Where a module names a private attribute that none of its own classes defines."""
    return [
        f"{path}:{node.lineno} {written(node)}"
        for path, tree in trees.items()
        for own in [private_names(tree) | OF_PYTHON | (OF_PYTORCH if "torch" in path.parts else set())]
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own
    ]


def private_attributes_overridden(trees: Trees) -> list[str]:
    """Which classes define a private attribute of a class of another module from which they inherit."""
    classes = {node.name: (path, node) for path, tree in trees.items() for node in ast.walk(tree)
               if isinstance(node, ast.ClassDef)}

    def ancestors(name: str) -> Iterator[str]:
        for base in classes[name][1].bases:
            parent = written(base).partition("[")[0].rpartition(".")[2]
            if parent in classes and parent != name:
                yield parent
                yield from ancestors(parent)

    return [
        f"{name} overrides {parent}.{each}"
        for name, (path, node) in classes.items()
        for parent in ancestors(name) if classes[parent][0] != path
        for each in sorted(private_names(node) & private_names(classes[parent][1]))
    ]


def test_no_module_imports_itself_on_a_detour():
    assert circle(TREES) == []


def test_a_circle_is_found():
    one_way = planted(a="from zerosim.b import x", b="import zerosim.c", c="")
    assert circle(one_way) == []
    assert circle(one_way | planted(c="def f():\n    from zerosim import a")) != []


def test_a_class_name_stands_for_one_thing():
    assert class_names_twice(TREES) == []
    assert class_names_twice(planted(a="class X: ...", b="class X: ...\nclass Y: ...")) == ["X"]
    assert class_names_twice(planted(a="class X: ...", b="X = dict[str, int]")) == ["X"]


def test_a_name_at_module_level_stands_for_few_things():
    assert names_of_many_things(TREES) == {}
    assert all(why for why in SHARED_NAMES.values())
    text = "told: int = 3\nKEYS = VALUES = 1\ndef main(): ...\ndef _own(): ...\nclass X: ..."
    many = planted(**{f"m{number}": text for number in range(MOST_DEFINITIONS)})
    assert names_of_many_things(many) == {}
    assert names_of_many_things(many | planted(last=text)) == dict.fromkeys(("told", "KEYS", "VALUES", "X"), 5)


def test_the_names_that_many_modules_share_are_shared_by_many():
    every = Counter(name for tree in TREES.values() for node in tree.body for name in defined(node))
    assert [name for name in SHARED_NAMES if every[name] <= MOST_DEFINITIONS] == []


def test_a_file_is_named_for_what_is_in_it():
    assert [path for path in TREES if path.stem in SAYS_NOTHING] == []
    assert [path.stem for path in planted(utils="", ring="") if path.stem in SAYS_NOTHING] == ["utils"]


def test_no_module_reads_what_is_private_to_a_class_of_another():
    assert private_attributes_of_others(TREES) == []


@pytest.mark.parametrize("text", ["x = thing._b", "class D(C):\n    def f(self):\n        return self._b"])
def test_reading_what_is_private_is_seen(text):
    own = planted(a="class C:\n    def __init__(self):\n        self._b = 1\n    def f(self, c):\n        return c._b")
    assert private_attributes_of_others(own) == []
    assert len(private_attributes_of_others(own | planted(b=text))) == 1


def test_no_class_overrides_what_is_private_to_one_of_another_module():
    assert private_attributes_overridden(TREES) == []


@pytest.mark.parametrize("text", ["def _g(self): ...", "def __init__(self):\n        self._g = 1"])
def test_overriding_what_is_private_is_seen(text):
    own = planted(a="class C:\n    def _g(self): ...\nclass E(C):\n    def _g(self): ...")
    assert private_attributes_overridden(own) == []
    assert private_attributes_overridden(own | planted(b=f"class D(a.E):\n    {text}")) == [
        "D overrides E._g", "D overrides C._g"]


def test_no_file_is_long():
    lines = {path: len((ROOT.parent / path).read_text().splitlines()) for path in TREES}
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


@pytest.mark.parametrize(("cases", "kept"), [(1, [0]), (2, [0, 1]), (3, [0, 2]), (20, [0, 19])])
def test_of_a_long_table_the_ends_are_tried_and_the_rest_is_left_to_make_whole(cases, kept):
    found = in_sample(range(cases))
    assert [case for case, _ in found] == [*range(cases)]
    assert [case for case, taken in found if taken] == kept


def test_make_test_and_make_whole_try_every_case_together():
    makefile = (ROOT.parent / "Makefile").read_text()
    assert '-m "not (long or rest)"' in makefile
    assert '-m "long or rest"' in makefile
    assert "WHOLE=1 $(BIN)/python -m pytest --numprocesses 2 -m hypothesis" in makefile
