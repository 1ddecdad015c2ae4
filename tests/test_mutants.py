"""The mutation tester itself: it catches what a test sees, and says what none does."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.choosing import Choice, affordable
from tests.mutants.judging import Known
from tests.mutants.mutations import Mutant, mutants, mutated_modules, sample
from tests.mutants.report import equivalents, stale

ROOT = Path(__file__).parents[1]
TINY = '''
def larger(a, b):
    """No test looks at equal numbers, and none could: either is the larger one."""
    if a > b:
        return a
    return b


def untested(a):
    return a + 1


def once(a):
    while a:
        break
    return a


LIMIT = 3


def limited():
    return lambda a: min(a, LIMIT)


limit = limited()
'''
ITS_TESTS = """
import subprocess
import sys

from zerosim.tiny import larger, limit


def test_larger():
    assert larger(1, 2) == larger(2, 1) == 2


def test_limit():
    assert limit(9) == 3


def test_in_another_process():
    done = subprocess.run([sys.executable, "-c", "from zerosim.tiny import once; assert once(3) == 3"])
    assert done.returncode == 0
"""
SAID = """
[[mutant]]
file = "tiny.py"
function = "larger"
before = "if a > b:"
after = "if a >= b:"
reason = "of two equal numbers either is the larger one"

[[mutant]]
file = "tiny.py"
function = "larger"
before = "return a"
after = "return None"
reason = "wrongly said"

[[mutant]]
file = "tiny.py"
function = "gone"
before = "x"
after = "y"
reason = "stale"
"""


def tiny_tree(folder):
    (folder / "zerosim").mkdir()
    (folder / "zerosim" / "tiny.py").write_text(TINY.lstrip())
    (folder / "tests" / "mutants").mkdir(parents=True)
    (folder / "tests" / "test_tiny.py").write_text(ITS_TESTS)
    (folder / "tests" / "mutants" / "equivalent.toml").write_text(SAID)
    return folder


def hunted(tree, *options):
    """What the tool prints about the tiny tree, and its exit code."""
    command = [sys.executable, "-m", "tests.mutants", "--tree", str(tree), *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, check=False)
    assert done.stderr == ""
    return done.stdout, done.returncode


def unindented(text):
    return "\n".join(line.strip() for line in text.strip().splitlines())


@pytest.mark.long
def test_what_is_caught_what_survives_and_what_changes_nothing(tmp_path):
    tree = tiny_tree(tmp_path)
    (tree / "notes").mkdir()
    (tree / "notes" / "2020-01-01-mutants.md").write_text("the last one")
    said, code = hunted(tree, "--count", "99", "--grace", "3", "--note", str(tree / "notes"))
    for expected in [
        """
        zerosim/tiny.py:3 larger
            - if a > b:
            + if True:
            caught: tests/test_tiny.py::test_larger
        """,
        """
        zerosim/tiny.py:3 larger
            - if a > b:
            + if a >= b:
            equivalent: of two equal numbers either is the larger one
        """,
        """
            - return a
            + return None
            caught: tests/test_tiny.py::test_larger; so it is no equivalent
        """,
        """
        zerosim/tiny.py:9 untested
            - return a + 1
            + return a - 1
            survivor: 0 of 0 tests asked
        """,
        """
            - return a
            + return None
            caught: tests/test_tiny.py::test_in_another_process
        """,
        """
            - LIMIT = 3
            + LIMIT = 4
            caught: tests/test_tiny.py::test_limit
        """,
        """
            - return lambda a: min(a, LIMIT)
            + return lambda a: max(a, LIMIT)
            caught: tests/test_tiny.py::test_limit
        """,
        """
            - break
            + continue
            caught: tests/test_tiny.py::test_in_another_process (timeout)
        """,
    ]:
        assert unindented(expected) in unindented(said), said
    assert "no line becomes this any more: ('tiny.py', 'gone', 'x', 'y')" in said
    assert code == 1
    [page] = (tree / "notes").iterdir()
    assert "`return a + 1` → `return a - 1`" in page.read_text()
    assert (tree / "zerosim" / "tiny.py").read_text() == TINY.lstrip()


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("a < b", {"a <= b"}),
        ("a is not b", {"a is b"}),
        ("a not in b", {"a in b"}),
        ("a and b or c", {"a or b or c", "a and b and c"}),
        ("not a", {"(a)"}),
        ("-a @ b", {"(a) @ b", "-a * b"}),
        ("a // b", {"a / b"}),
        ("a += b", {"a -= b", "a = b", "pass"}),
        ("7", {"8", "6"}),
        ("0.5", {"0.25"}),
        ("True", {"False"}),
        ("np.float32", {"np.float64"}),
        ("'gradients'", {'"buffers"'}),
        ("'any other text'", set()),
        ("min(a, b)", {"max(a, b)", "pass"}),
        ("f(a, b, c)", {"f(b, a, c)", "pass"}),
        ("f(a, out=b)", {"f(a)", "pass"}),
        ("f(out=a, to=b)", {"f(to=b)", "f(out=a)", "pass"}),
        ("a = b.copy()", {"a = b"}),
        ("a[b:c]", {"a[b + 1:c]", "a[b:c + 1]"}),
        ("a if b else c", {"a if True else c", "a if False else c"}),
        ("[a for a in b if a]", {"[a for a in b if True]", "[a for a in b if False]"}),
        ("a.b = c", {"pass"}),
        ("raise ValueError(1 + 1)", {"pass"}),
        ("assert a < b", set()),
        ("if TYPE_CHECKING: f(a)", set()),
        ("open(a, encoding='u1')", {"pass"}),
        ("é = 'é' if a else 'ü'", {"é = 'é' if True else 'ü'", "é = 'é' if False else 'ü'"}),
        ("a: Literal['weights'] = c < d", {"a: Literal['weights'] = c <= d"}),
    ],
)
def test_what_becomes_of_a_line(line, becomes, tmp_path):
    (tmp_path / "m.py").write_text(line + "\n", encoding="utf-8")
    assert {mutant.after for mutant in mutants(tmp_path, "m.py")} == becomes


def test_a_sample_depends_on_the_seed_and_the_lines_alone(tmp_path):
    lines = [f"def f{i}(a, b):\n    return a + {i} * b\n" for i in range(10)]
    (tmp_path / "here.py").write_text("".join(lines))
    (tmp_path / "moved.py").write_text("import sys\n\n\n" + "".join(reversed(lines)))
    here, moved = (mutants(tmp_path, name) for name in ("here.py", "moved.py"))
    first, again, other = (sample({"here.py": here}, 10, seed) for seed in ("0", "0", "1"))
    assert first == again != other
    assert len({mutant.line for mutant in first}) == 10
    there = sample({"moved.py": [replace(mutant, module="here.py") for mutant in moved]}, 10, "0")
    assert {mutant.key for mutant in there} == {mutant.key for mutant in first}


def test_other_tests_come_before_more_cases_of_the_same_and_what_has_caught_before_them():
    names = {"a[1]": 1, "a[2]": 1.1, "a[3]": 1.2, "b": 2, "c": 3, "d": 9}
    tests = [Known(name, seconds, frozenset({"m.py:3"})) for name, seconds in names.items()]
    choice = Choice([Known("imports", 1, frozenset()), *tests])
    mutant = Mutant("m.py", 5, "f", 3, "before", "after", "")
    asked = choice.noticing(mutant)
    assert [test.name for test in asked] == ["a[1]", "b", "a[2]", "c", "a[3]", "d"]
    assert affordable(asked, 4.1) == asked[:3]
    assert affordable(asked, 0.5) == asked[:1]
    assert affordable([], 1) == []
    for _ in range(9):
        choice.remember(mutant, "d")
    choice.remember(replace(mutant, module="n.py"), "c")
    assert [test.name for test in choice.noticing(mutant)] == ["d", "a[1]", "b", "a[2]", "c", "a[3]"]


def test_what_takes_effect_on_import_is_shown_to_all_tests():
    def mutant(begins):
        return Mutant("m.py", 5, "f" if begins else "", begins, "before", "after", "")

    tests = [
        Known("imports", 1, frozenset()),
        Known("imports", 1, frozenset({"m.py:7"})),
        Known("runs_3", 3, frozenset({"m.py:3"})),
        Known("runs_7", 2, frozenset({"m.py:7"})),
        Known("runs_another", 1, frozenset({"n.py:3"})),
    ]
    choice = Choice(tests)
    assert [test.name for test in choice.noticing(mutant(3))] == ["runs_3"]
    assert [test.name for test in choice.noticing(mutant(7))] == ["runs_7", "runs_3", "runs_another"]
    assert [test.name for test in choice.noticing(mutant(0))] == ["runs_7", "runs_3", "runs_another"]


def test_every_module_gives_some(tmp_path):
    (tmp_path / "small.py").write_text("a = 1 + 1\n")
    (tmp_path / "large.py").write_text("a = b + c\n" * 400)
    every = {name: mutants(tmp_path, name) for name in ("small.py", "large.py")}
    chosen = [mutant.module for mutant in sample(every, 100, "0")]
    assert chosen.count("small.py") == len(every["small.py"]) == 5
    assert chosen.count("large.py") >= 95


def test_what_counts_is_mutated_and_what_shows_is_not():
    names = {Path(module).stem for module in mutated_modules(ROOT)}
    assert {"ring", "fixed_point", "digests", "proof", "judged_run", "traffic"} <= names
    assert not {"cli", "mpi", "errors"} & names


def test_each_mutant_that_changes_nothing_is_one_of_a_line_that_is_there():
    said = equivalents(ROOT)
    files = {file for file, *_ in said}
    every = [each for module in mutated_modules(ROOT) if Path(module).name in files for each in mutants(ROOT, module)]
    assert stale(said, every) == []
    assert stale([("ring.py", "", "a = 1", "a = 2"), *said], every) == [("ring.py", "", "a = 1", "a = 2")]
