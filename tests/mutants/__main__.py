"""`python -m tests.mutants`: judge a sample of mutants, print who caught each, and write a report."""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date
from fnmatch import fnmatch
from pathlib import Path

from tests.mutants.choosing import Choice, affordable
from tests.mutants.copying import copied, planted
from tests.mutants.judging import Known, noticed_by
from tests.mutants.learning import learned
from tests.mutants.mutations import Mutant, mutants, mutated_modules, sample
from tests.mutants.report import FILE, Judged, Key, equivalents, note, stale


def main() -> int:
    options = arguments()
    every = {module: mutants(options.tree, module) for module in mutated_modules(options.tree)}
    possible = [mutant for found in every.values() for mutant in found]
    reasons = equivalents(options.tree)
    for key in stale(reasons, possible):
        print(f"{FILE}: no line becomes this any more: {key}")
    chosen = [mutant for mutant in sample(every, options.count, options.seed) if fnmatch(mutant.module, options.only)]
    tests = learned(options.tree, options.tree / "build" / "mutants")

    results = []
    for result in judged(options.tree, chosen, tests, reasons, options.seconds, options.grace):
        print(f"{result.mutant}\n    {said(result)}", flush=True)
        results.append(result)
    counts = Counter(result.what for result in results)
    print(f"{len(results)} mutants: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    if options.note:
        for last in options.note.glob("*-mutants.md"):
            last.unlink()
        page = note(results, len(possible), options.seed, date.today())
        (options.note / f"{date.today()}-mutants.md").write_text(page, encoding="utf-8")
    return 1 if counts["survivor"] else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--tree", type=Path, default=Path(), help="where the package and its tests are")
    parser.add_argument("--count", type=int, default=400, help="how many mutants, at least, over all modules")
    parser.add_argument("--seed", default="0", help="of the sample")
    parser.add_argument("--only", default="*", help="a pattern for the files of which the sample's mutants are judged")
    parser.add_argument("--seconds", type=float, default=60, help="of tests that are asked about one mutant")
    parser.add_argument("--grace", type=float, default=10, help="seconds a test may take beyond five times its time")
    parser.add_argument("--note", type=Path, help="a folder for the report, DATE-mutants.md; the last one there goes")
    return parser.parse_args()


def judged(
    tree: Path, chosen: Sequence[Mutant], tests: Sequence[Known], reasons: dict[Key, str], seconds: float, grace: float
) -> Iterator[Judged]:
    """Each mutant with the first test that notices it."""
    choice = Choice(tests)
    with copied(tree) as copy:
        for mutant in chosen:
            running = choice.noticing(mutant)
            asked = affordable(running, seconds)
            with planted(copy, mutant):
                caught_by = noticed_by(copy, asked, grace)
            if caught_by:
                choice.remember(mutant, caught_by)
            yield Judged(mutant, caught_by, len(asked), len(running), reasons.get(mutant.key, ""))


def said(result: Judged) -> str:
    if result.caught_by:
        wrong = "; so it is no equivalent" if result.reason else ""
        return f"caught: {result.caught_by}{wrong}"
    return f"{result.what}: {result.reason or f'{result.asked} of {result.running} tests asked'}"


if __name__ == "__main__":
    sys.exit(main())
