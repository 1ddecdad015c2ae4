"""Faults written by hand: `python -m tests.mutants.by_hand` plants each in a copy of the tree and asks its tests.

    by_hand.jsonl    one fault a line: `file`, `old` and `new` text, and either `noticed`, the test that must fail, or
                     `equivalent`, the reason why none can
    group            the tests that notice faults of one file: all that the list names for it

The test that is named runs first, and the rest of the group after it. With `--list` another list is tried, whose faults
may leave out both.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from tests.mutants.copying import copied, planted
from tests.mutants.judging import Known, case_of, noticed_by
from tests.mutants.mutations import Mutant, is_python
from tests.mutants.report import Judged

FILE = Path("tests/mutants/by_hand.jsonl")
SECONDS_FOR_A_TEST = 60.0


@dataclass(frozen=True)
class Fault:
    """One replacement in one file, and the test that notices it, or why it changes no behaviour."""

    file: str
    old: str
    new: str
    noticed: str = ""
    equivalent: str = ""


def main() -> int:
    options = arguments()
    faults = [fault for fault in read(options.list or options.tree / FILE) if fnmatch(fault.file, options.only)]
    groups = grouped(read(options.tree / FILE))
    counts = Counter[str]()
    with copied(options.tree) as copy:
        for fault in faults:
            result = judged(copy, fault, groups.get(fault.file, []))
            counts[said(fault, result)] += 1
            why = result.caught_by or fault.equivalent
            print(f"{result.mutant}\n    {said(fault, result)}{': ' if why else ''}{why}", flush=True)
    print(f"{len(faults)} faults: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    return 0 if counts.keys() <= {"caught", "equivalent"} else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.by_hand", description=__doc__)
    parser.add_argument("--tree", type=Path, default=Path(), help="where the package and its tests are")
    parser.add_argument("--list", type=Path, help=f"faults, instead of {FILE}")
    parser.add_argument("--only", default="*", help="a pattern for the files of which faults are planted")
    return parser.parse_args()


def read(path: Path) -> list[Fault]:
    """The faults of a list."""
    fields = Fault.__dataclass_fields__
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [Fault(**{key: value for key, value in row.items() if key in fields}) for row in rows]


def grouped(faults: Sequence[Fault]) -> dict[str, list[str]]:
    """The tests that notice faults of each file."""
    groups: dict[str, dict[str, None]] = {}
    for fault in faults:
        if fault.noticed:
            groups.setdefault(fault.file, {})[fault.noticed] = None
    return {file: list(names) for file, names in groups.items()}


def mutant(tree: Path, fault: Fault) -> Mutant:
    """The fault in the file as it stands now; raises `ValueError` where `old` is not there, or not once alone."""
    text = (tree / fault.file).read_text(encoding="utf-8")
    if (times := text.count(fault.old)) != 1:
        raise ValueError(f"{fault.file} has this {times} times, not once; plant the same fault in the code as "
                         f"it is now, in {FILE}: {fault.old!r}")
    line = text[: text.index(fault.old)].count("\n") + 1
    return Mutant(fault.file, line, "", 0, fault.old.strip(), fault.new.strip(), text.replace(fault.old, fault.new))


def judged(copy: Path, fault: Fault, group: Sequence[str]) -> Judged:
    """The first test that fails with the fault: the one that must notice it, or another one of the group."""
    first = [fault.noticed] if fault.noticed else []
    names = list(dict.fromkeys([*first, *group]))
    tests = [Known(name, 0.0, frozenset()) for name in names]
    changed = mutant(copy, fault)
    with planted(copy, changed):
        caught_by = noticed_by(copy, tests, SECONDS_FOR_A_TEST)
    return Judged(changed, caught_by, len(tests), len(tests), fault.equivalent)


def said(fault: Fault, result: Judged) -> str:
    """What came of it, in a word or some more."""
    if result.caught_by and fault.equivalent:
        return "no equivalent, but caught"
    if result.caught_by and fault.noticed and case_of(result.caught_by) != case_of(fault.noticed):
        return "caught by another test than it should be"
    return result.what


def wrong(tree: Path) -> Iterator[str]:
    """What does not hold of the list, as the tree is now: each fault can be planted, and says what is to come of it."""
    for fault in read(tree / FILE):
        try:
            changed = mutant(tree, fault)
        except (ValueError, OSError) as error:
            yield str(error)
            continue
        if changed.before == changed.after or not is_python(changed.source):
            yield f"{changed} is no fault"
        if bool(fault.noticed) == bool(fault.equivalent):
            yield f"{changed} has both or none of `noticed` and `equivalent`"
        file, _, test = case_of(fault.noticed).partition("::")
        if fault.noticed and f"\ndef {test}(" not in (tree / file).read_text(encoding="utf-8"):
            yield f"{changed} is to be noticed by {fault.noticed}, which is not there"


if __name__ == "__main__":
    sys.exit(main())
