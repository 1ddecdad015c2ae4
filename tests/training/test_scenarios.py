"""Where the opposite of a claim of a shipped scenario is claimed, it fails; the laws run them as they are."""

from functools import cache

import pytest

from tests.small import SCENARIOS, small
from tests.training import claiming
from zerosim.scenario import Scenario, load
from zerosim.scenario.data import load_dataset
from zerosim.training.experiment import prepare
from zerosim.verdict.judged_run import run_locally

NEEDS_PROCESSES = "fits_only_sharded.toml"
TRAINING = [path.name for path in sorted(SCENARIOS.glob("*.toml")) if isinstance(load(path), Scenario)]


@cache
def run(name, *overrides):
    scenario = load(SCENARIOS / name, small(name, *overrides))
    return run_locally(prepare(scenario, load_dataset(scenario)))


def what_fails(outcome):
    return [what for _, what in outcome.failures]


def judged_again(outcome, name, *overrides):
    """The same outcome, judged by the claims of the scenario with some of them changed."""
    return claiming(outcome, load(SCENARIOS / name, small(name, *overrides)).check)


NUMBERS = {
    "largest_messages": "sends {:,} bytes in its largest message, not {:,}",
    "between_bytes": "sends {:,} bytes between hosts in a step, not {:,}",
    "kept_bytes": "keeps {:,} bytes between steps, not {:,}",
    "collective_bytes": "sends {:,} bytes a step by check.collectives, not {:,}",
    "activations": "holds {:,} bytes of activations at the peak, not {:,}",
    "beyond_peak": "needs {:,} bytes beyond the peak by first_fit, not {:,}",
    "beyond_peak_laid_out": "needs {:,} bytes beyond the peak by first_fit_laid_out, not {:,}",
}


def opposites():
    """Each claim that a scenario makes of its rows, turned around, and what must then be found."""
    for name in TRAINING:
        check = load(SCENARIOS / name, small(name)).check
        if check.same_weights is not None:
            found = "weights are the same" if check.same_weights else "weights are not the same"
            yield name, f"check.same_weights={str(not check.same_weights).lower()}", found
        for row, wanted in enumerate(check.volumes):
            changed = [*check.volumes[:row], wanted + 1, *check.volumes[row + 1 :]]
            yield name, f"check.volumes={changed}", f"sends {wanted:g} P (N−1)/N, not {wanted + 1:g}"
        for row, wanted in enumerate(check.messages):
            changed = [*check.messages[:row], wanted + 1, *check.messages[row + 1 :]]
            yield name, f"check.messages={changed}", f"sends {wanted} messages a step, not {wanted + 1}"
        for key, words in NUMBERS.items():
            for row, wanted in enumerate(getattr(check, key)):
                changed = [*getattr(check, key)]
                changed[row] += 1
                yield name, f"check.{key}={changed}", words.format(wanted, wanted + 1)


@pytest.mark.parametrize(("name", "opposite", "found"), list(opposites()))
def test_whose_opposite_is_claimed_fails(name, opposite, found):
    assert what_fails(judged_again(run(name), name, opposite)) == [found]


def test_what_fits_after_all_fails():
    outcome = run(NEEDS_PROCESSES, "model.hidden=[8]")
    assert outcome.failures == [("DDP", "fits after all")]
