"""Shipped scenarios pass with the recorded bits in two steps, and fail where the opposite of a claim is claimed."""

import pytest

from tests.laws.digests import differences, shipped_left
from tests.laws.draws import RECORD, SAME
from tests.laws.runs import ran, shipped
from tests.sampling import one_in
from tests.small import SCENARIOS, small
from tests.training import claiming
from zerosim.scenario import load
from zerosim.verdict.judged_run import run_locally

RECORDED = shipped_left(RECORD["shipped"])
NUMBERS = {
    "largest_messages": "sends {:,} bytes in its largest message, not {:,}",
    "between_bytes": "sends {:,} bytes between hosts in a step, not {:,}",
    "kept_bytes": "keeps {:,} bytes between steps, not {:,}",
    "collective_bytes": "sends {:,} bytes a step by check.collectives, not {:,}",
    "activations": "holds {:,} bytes of activations at the peak, not {:,}",
    "beyond_peak": "needs {:,} bytes beyond the peak by first_fit, not {:,}",
    "beyond_peak_laid_out": "needs {:,} bytes beyond the peak by first_fit_laid_out, not {:,}",
    "volumes": "sends {:g} P (N−1)/N, not {:g}",
    "messages": "sends {} messages a step, not {}",
}


def opposites(check):
    """Each claim that a scenario makes of its rows, turned around, and what must then be found."""
    if check.same_weights is not None:
        found = "weights are the same" if check.same_weights else "weights are not the same"
        yield f"check.same_weights={str(not check.same_weights).lower()}", found
    for key, words in NUMBERS.items():
        for row, due in enumerate(claimed := getattr(check, key)):
            yield f"check.{key}={[*claimed[:row], due + 1, *claimed[row + 1:]]}", words.format(due, due + 1)


@pytest.mark.parametrize("name", one_in(4, RECORDED))
def test_a_shipped_scenario_passes_with_the_recorded_bits_and_fails_where_the_opposite_is_claimed(name):
    outcome = run_locally(shipped(name, small(name)))
    honest = ran(outcome)
    assert (honest.failures, differences(honest.rows, RECORDED[name], bits=SAME)) == ([], [])
    for opposite, due in opposites(outcome.scenario.check):
        again = claiming(outcome, load(SCENARIOS / name, small(name, opposite)).check)
        assert [what for _, what in again.failures] == [due]


def test_what_fits_after_all_fails():
    outcome = run_locally(shipped("fits_only_sharded.toml", ["train.steps=2", "model.hidden=[8]"]))
    assert outcome.failures == [("DDP", "fits after all")]


def test_a_claim_about_collectives_that_no_rank_calls_fails():
    name = "four_all_reduces.toml"
    misspelt = 'check.collectives=["tensor_all_reduc"]', "check.collective_bytes=[0, 0, 0]"
    outcome = run_locally(shipped(name, small(name, *misspelt)))
    assert len(outcome.failures) == 3
    assert all(words.startswith("calls none of check.collectives, tensor_all_reduc; name some of ")
               for _, words in outcome.failures)
