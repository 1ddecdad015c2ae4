"""The walk of a reader who follows each function where it is first called: from a file to its run, and to its verdict.

    stay      one or more functions of a module in a row
    return    a stay in a module that was left before

    python -m tests.walks [SCENARIO]

The steps on shapes and the recorded collectives, which `figures` calls, are programs of their own and not followed.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import zerosim
from tests.small import small
from zerosim.jobs import load_job
from zerosim.training.program import Silent, measure
from zerosim.verdict import flows, judged_run, shapes

ROOT = str(Path(zerosim.__file__).parent)
NOT_FOLLOWED = {shapes.expected.__code__, flows.flow.__code__}


def walked(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """The result of a call, and the modules in which it stays."""
    known, stays, within = set(), list[str](), list[FrameType]()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "return" and within == [frame]:
            within.clear()
        code = frame.f_code
        if event != "call" or within or not code.co_filename.startswith(ROOT):
            return
        within.extend([frame] if code in NOT_FOLLOWED else [])
        if code in known:
            return
        known.add(code)
        if not code.co_name.startswith("<") and stays[-1:] != [code.co_filename]:
            stays.append(code.co_filename)

    sys.setprofile(note)
    try:
        return call(), stays
    finally:
        sys.setprofile(None)


def counted(stays: list[str]) -> tuple[int, int]:
    """Stays and returns."""
    return len(stays), len(stays) - len(set(stays))


def walks(scenario: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Both walks of a shipped scenario."""
    job, to_its_run = walked(lambda: load_job(scenario))
    experiment = load_job(scenario, small(f"{scenario}.toml")).experiment
    run = judged_run.Run(job.local_world(), experiment, Silent())
    measured = run.world.run(lambda comm: list(measure(comm, run)))[0]
    judge = walked(lambda: judged_run.Outcome(
        experiment, [judged_run.judged(each, None) for each in measured]).failures)
    assert judge[0] == []
    return counted(to_its_run), counted(judge[1])


if __name__ == "__main__":
    for what, (stays, returns) in zip(("run", "verdict"), walks(*sys.argv[1:] or ["compare"]), strict=True):
        print(f"to its {what}: {stays} stays, {returns} returns")
