"""Which tests are asked about a mutant, and in which order."""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, compress
from operator import not_

from tests.mutants.judging import IMPORTS, Known, case_of
from tests.mutants.mutations import Mutant


class Choice:
    """What was learned, and which tests have caught mutants of a file so far."""

    def __init__(self, tests: Sequence[Known]) -> None:
        self.at_import = frozenset().union(*(test.runs for test in tests if test.name == IMPORTS))
        self.slowness = slowness([test for test in tests if test.name != IMPORTS])
        self.caught: Counter[tuple[str, str]] = Counter()

    def takes_effect_later(self, mutant: Mutant) -> bool:
        """Whether nothing runs the mutant's line before a test does."""
        return mutant.begins > 0 and mutant.where not in self.at_import

    def noticing(self, mutant: Mutant) -> list[Known]:
        """The tests that run the mutant's function, fastest first; faster counts what has caught more in this file.

        If the function has been run on import, so have its effects: then the others follow, first those that run its
        file.
        """
        module = mutant.module
        cost = {test: slow / (1 + self.caught[module, case_of(test.name)]) for test, slow in self.slowness.items()}
        tests = sorted(cost, key=cost.__getitem__)
        running = [test for test in tests if mutant.where in test.runs]
        if self.takes_effect_later(mutant):
            return running
        others = [test for test in tests if mutant.where not in test.runs]
        nearby = [any(each.startswith(f"{module}:") for each in test.runs) for test in others]
        return [*running, *compress(others, nearby), *compress(others, map(not_, nearby))]

    def remember(self, mutant: Mutant, caught_by: str) -> None:
        self.caught[mutant.module, case_of(caught_by)] += 1


def slowness(tests: Sequence[Known]) -> dict[Known, float]:
    """Seconds, but a second case of a test counts as twice as slow, a third one as three times, and so on."""
    cases: Counter[str] = Counter()
    found = {}
    for test in sorted(tests, key=lambda test: test.seconds):
        cases[case_of(test.name)] += 1
        found[test] = test.seconds * cases[case_of(test.name)]
    return found


def affordable(tests: Sequence[Known], seconds: float) -> list[Known]:
    """As many of the tests, from the first, as take `seconds` together; the first in any case."""
    spent = accumulate(test.seconds for test in tests)
    return [test for place, (test, total) in enumerate(zip(tests, spent, strict=True)) if total <= seconds or not place]
