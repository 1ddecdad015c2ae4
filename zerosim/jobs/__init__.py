"""A scenario loaded, made ready, run and documented: what the command line and Python share.

Each kind of scenario has one class of job (`training`, `collectives`), and nobody else asks which kind a scenario is.
A job is given a `Request`: what is wanted beside the scenario, in types, so that nothing below the command line knows
of its flags. Jobs print nothing by themselves: whoever has a console hands it to `show`. `proofs` and `schedules` find
what `zerosim prove` and `zerosim show` print and notebooks draw.
"""

from collections.abc import Sequence
from contextlib import suppress

from zerosim.errors import ZerosimError
from zerosim.jobs.collectives import collectives_job
from zerosim.jobs.job import Job, Manner, Request
from zerosim.jobs.training import training_job
from zerosim.scenario import CollectiveScenario, Scenario, Source, load

__all__ = ["Job", "Manner", "Request", "load_job", "overrides_for"]


def load_job(path: Source, overrides: Sequence[str] = (), request: Request = Request()) -> Job:  # noqa: B008 - frozen
    """The scenario at `path`, or the shipped one of that name, after `overrides`, ready to run as requested.

    Raises `ScenarioError` for what is wrong in the scenario, `UsageError` for a request that it cannot serve.
    """
    scenario = load(path, overrides, python=request.python)
    if isinstance(scenario, CollectiveScenario):
        return collectives_job(scenario, request)
    saving = list(request.overrides)
    if saving:
        scenario = load(path, [*overrides, *saving], python=request.python)
    assert isinstance(scenario, Scenario)
    return training_job(scenario, request)


def overrides_for(
    ranks: int, path: Source, overrides: Sequence[str], request: Request, job: Job
) -> list[str]:
    """The further overrides with which the scenario runs on so many ranks, each tried; none if none were found."""
    for more in job.on_ranks(ranks):
        with suppress(ZerosimError):
            load_job(path, [*overrides, *more], request)
            return more
    return []
