"""Jobs: a scenario loaded, prepared, run and documented, for the command line and for Python.

Each kind of scenario has one class of job (`training`, `collectives`), and no other code has a branch for the kind. A
job gets a `Request`: typed options besides the scenario, so that nothing below the command line knows
of its flags. Jobs print nothing by themselves: a caller with a console passes it to `show`. `proofs` and `schedules`
compute the results that `zerosim prove` and `zerosim show` print and notebooks draw.
"""

from collections.abc import Sequence
from contextlib import suppress

from zerosim.core.errors import ZerosimError
from zerosim.jobs.job import Job, Request
from zerosim.jobs.training import training_job
from zerosim.scenario import CollectiveScenario, Scenario, Source, load

__all__ = ["Job", "Request", "load_job", "overrides_for"]


def load_job(path: Source, overrides: Sequence[str] = (), request: Request = Request()) -> Job:  # noqa: B008 - frozen
    """The scenario at `path`, or the shipped one of that name, after `overrides`, ready to run as requested.

    Raises `ScenarioError` for errors in the scenario, `UsageError` for a request that it does not support.
    """
    scenario = load(path, overrides, python=request.python)
    if isinstance(scenario, CollectiveScenario):
        from zerosim.jobs.collectives import collectives_job  # noqa: PLC0415 - most scenarios train

        return collectives_job(scenario, request)
    saving = list(request.overrides)
    if saving:
        scenario = load(path, [*overrides, *saving], python=request.python)
    assert isinstance(scenario, Scenario)
    return training_job(scenario, request)


def overrides_for(
    ranks: int, path: Source, overrides: Sequence[str], request: Request, job: Job
) -> list[str]:
    """Further overrides with which the scenario runs on `ranks` ranks, each tested; empty if none were found."""
    for more in job.on_ranks(ranks):
        with suppress(ZerosimError):
            load_job(path, [*overrides, *more], request)
            return more
    return []
