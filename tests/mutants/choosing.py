"""Which tests are asked about a mutant, and in which order."""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from tests.mutants.judging import IMPORTS, Known
from tests.mutants.mutations import Mutant


class Choice:
    """What was learned, ready to choose from."""

    def __init__(self, tests: Sequence[Known]) -> None:
        self.at_import = next(test.runs for test in tests if test.name == IMPORTS)
        self.tests = promising([test for test in tests if test.name != IMPORTS])

    def takes_effect_later(self, mutant: Mutant) -> bool:
        """Whether nothing runs the mutant's line before a test does."""
        return mutant.begins > 0 and mutant.where not in self.at_import

    def noticing(self, mutant: Mutant) -> list[Known]:
        """The tests that run the mutant's function.

        If that has been run on import, so have its effects: then the others follow, first those that run its file.
        """
        running = [test for test in self.tests if mutant.where in test.runs]
        if self.takes_effect_later(mutant):
            return running
        others = [test for test in self.tests if mutant.where not in test.runs]
        nearby = [test for test in others if any(each.startswith(f"{mutant.module}:") for each in test.runs)]
        return running + nearby + [test for test in others if test not in nearby]


def promising(tests: Sequence[Known]) -> list[Known]:
    """Fastest first, but a second case of a test counts as twice as slow, a third one as three times, and so on."""
    cases: Counter[str] = Counter()
    slowness = {}
    for test in sorted(tests, key=lambda test: test.seconds):
        function = test.name.partition("[")[0]
        cases[function] += 1
        slowness[test.name] = test.seconds * cases[function]
    return sorted(tests, key=lambda test: slowness[test.name])


def affordable(tests: Sequence[Known], seconds: float) -> list[Known]:
    """As many of the tests, from the first, as take `seconds` together; the first in any case."""
    spent = accumulate(test.seconds for test in tests)
    return [test for place, (test, total) in enumerate(zip(tests, spent, strict=True)) if total <= seconds or not place]
