"""A check from its first to its last step, around a script or within one."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

from zerosim.errors import UsageError, ZerosimError
from zerosim.files import write_text
from zerosim.torch.patching import patched
from zerosim.torch.verdicts.findings import NOT_JUDGED, lines, merged
from zerosim.torch.verdicts.hooks import listening
from zerosim.torch.verdicts.judging import Judge
from zerosim.torch.verdicts.ranks import SECONDS, CheckRanks, OverGloo, OverMpi
from zerosim.torch.verdicts.reference import Chances
from zerosim.torch.verdicts.session import Followed, Session, parameters_of
from zerosim.torch.watching import WATCH

FAILING = 5.0
"""The seconds in which all ranks must fail, if one does."""


class CheckFailed(ZerosimError):
    """The check has failed on one rank, for which others may wait."""


@dataclass(frozen=True)
class CheckOptions:
    """The options of a check: the steps from `first` to `last`, and 64-bit arithmetic."""

    first: int = 1
    last: int | None = None
    double: bool = False
    seconds: float = SECONDS
    """How long a rank waits for the others at an update."""


class TrainingCheck:
    """A check in progress; `ours` says that zerosim's collectives carry the script."""

    def __init__(self, asked: CheckOptions, ours: bool) -> None:
        self.session = Session(asked.first, asked.last)
        self.document: dict[str, Any] | None = None
        self._asked, self._ours = asked, ours
        self._judge: Judge | None = None
        self._meetings = self._apart = 0
        self._judged = False
        self._steps: set[int] = set()

    @contextmanager
    def around(self) -> Iterator["TrainingCheck"]:
        """A context in which everything that trains is checked; models and optimizers are found by themselves."""
        default, making, ending = torch.get_default_dtype(), dist.init_process_group, dist.destroy_process_group

        @wraps(making)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            found = making(*args, **kwargs)
            self.connect()
            return found

        @wraps(ending)
        def destroy_process_group(group: Any = None) -> Any:
            if group is None:
                self.conclude()
            return ending(group)

        if self._asked.double:
            torch.set_default_dtype(torch.float64)
        try:
            with patched(
                    *((module, "init_process_group", init_process_group)
                      for module in (dist, distributed_c10d, device_mesh)),
                    *((module, "destroy_process_group", destroy_process_group) for module in (dist, distributed_c10d))):
                with self.listening():
                    yield self
                self.conclude()
        finally:
            torch.set_default_dtype(default)

    def listening(self) -> AbstractContextManager[None]:
        """A context in which steps are recorded and judged, once the ranks are connected."""
        return listening(self.session, self.on_step, self.on_stepped, self.on_skipped)

    def connect(self) -> None:
        """Join the ranks; all of them call this, when their process group has been made."""
        if self._judge is None:
            transport = OverMpi() if self._ours else OverGloo()
            self._judge = Judge(self.session, CheckRanks(transport, self._asked.seconds), self._ours)

    @contextmanager
    def _alone(self, judge: Judge) -> Iterator[None]:
        """A context in which the check computes. Only its time is recorded, and nothing is left behind.

        Raises `CheckFailed` if it fails on this rank alone, since the others wait for its messages.
        """
        chances, grad, parts = Chances(), torch.is_grad_enabled(), WATCH.parts
        WATCH.enter("check")
        self.session.asleep, WATCH.parts = True, None
        try:
            with torch.enable_grad():
                yield
        except ZerosimError:
            raise
        except Exception as error:
            # A model unlike any other must not end the script: all ranks fail alike. One that fails alone ends all.
            text = f"{type(error).__name__}: {(str(error) or '.').splitlines()[0]}"
            alone = not judge.ranks.meet(f"failure {self._meetings}", FAILING)
            if alone and not judge.ranks.first("failure"):
                time.sleep(SECONDS)  # the launcher ends this rank, whose error follows from another's
            if alone:
                raise CheckFailed(f"the check failed on this rank alone: {text}") from error
            self.session.book.judge("gradient", NOT_JUDGED, f"the check failed: {text}")
            self._judged = False
        finally:
            torch.set_grad_enabled(grad)
            chances.restore()
            self.session.asleep = False
            WATCH.parts = parts
            WATCH.leave()

    def on_step(self, optimizer: Any) -> None:
        """Judge the gradients before an update, or after each closure that an update calls."""
        followed = self.session.followed(optimizer)
        self._judged = self.session.active and self._meet(followed)
        if self._judged and self._judge is not None:
            with self._alone(self._judge):
                self._judge.before(followed)

    def on_stepped(self, optimizer: Any) -> None:
        followed = self.session.followed(optimizer)
        if self._judged and self._judge is not None:
            with self._alone(self._judge):
                self._judge.after(followed)
            self._steps.add(followed.updates + 1)
        followed.updates += 1
        self.session.forget(followed)

    def on_skipped(self, optimizer: Any) -> None:
        """GradScaler has skipped the update."""
        followed = self.session.followed(optimizer)
        if self.session.active:
            self._meet(followed, skipped=True)
        followed.updates += 1
        self.session.forget(followed)

    def _meet(self, followed: Followed, skipped: bool = False) -> bool:
        """Whether all ranks have arrived at the same update, and none has skipped it."""
        judge, book = self._judge, self.session.book
        if judge is None:
            book.judge("gradient", NOT_JUDGED, "the script has made no process group")
            return False
        self._meetings += 1
        if self.session.joins:
            book.judge("gradient", NOT_JUDGED, "a Join lets the ranks have unequal numbers of steps")
            return False
        if not judge.ranks.meet(f"update {self._meetings}"):
            book.judge("gradient", NOT_JUDGED, judge.ranks.apart)
            self._apart = self._apart or followed.updates + 1
            return False
        told = judge.ranks.everyone(skipped)
        if any(told) and not all(told):
            book.find("update", followed.updates + 1, told.index(True), "fp16 overflow skipped on one rank",
                              "GradScaler skipped the update here, other ranks made it", line=followed.line)
            book.judge("gradient", NOT_JUDGED, "a rank skipped the update")
        return not any(told)

    def conclude(self) -> None:
        """Compare what is known at the end, and put the findings of all ranks together. All ranks call this."""
        if self.document is not None:
            return
        steps = len(self._steps)
        judge = self._judge
        if judge is None:
            self.session.book.judge("gradient", NOT_JUDGED, "the script has made no process group")
            self.document = merged([self.session.book], steps)
            return
        judge.ranks.apart = ""
        if not judge.ranks.meet("the end"):
            self.document = merged([self.session.book], steps)
            return
        of_all = judge.ranks.everyone([each.updates for each in self.session.optimizers])
        first = max(judge.ranks.everyone(self._apart)) or min(map(max, of_all)) + 1
        for rank, counts in enumerate(of_all):
            if counts != of_all[0] and not self.session.joins:
                self.session.book.find("update", first, rank, "unequal numbers of updates",
                                       f"optimizer.step() was called {counts} times, on rank 0 {of_all[0]}")
                break
        self._unregistered(judge)
        self.document = merged(judge.ranks.everyone(self.session.book), steps)

    def _unregistered(self, judge: Judge) -> None:
        """Parameters that get gradients, and that no optimizer has."""
        held = {id(each) for followed in self.session.optimizers for each in parameters_of(followed.optimizer)}
        for model in self.session.models:
            named = model.parameters()
            lost = [name for name, each in named.items() if each.grad is not None and id(each) not in held]
            if lost and any(id(each) in held for each in named.values()):
                self.session.book.find("parameters", 1, judge.ranks.rank, "a parameter that no optimizer has",
                    f"{lost[0]} gets gradients and is never updated ({len(lost)} such)", lost[0],
                    named[lost[0]].numel())
        self.session.book.judge("parameters", "same bits", "an optimizer has each parameter that gets a gradient")


@contextmanager
def checking(*found: Any, asked: CheckOptions = CheckOptions()) -> Iterator[TrainingCheck]:
    """A context within a script whose process group has been made: what trains in it is checked.

    Findings are printed on rank 0 at its end; `document` of the returned check has all of them. Models and optimizers
    may be named; others are found by themselves.
    """
    ours = dist.get_backend() == "zerosim"
    with TrainingCheck(asked, ours).around() as check:
        check.connect()
        for each in found:
            if hasattr(each, "param_groups"):
                check.session.followed(each)
            elif type(each).__name__ == "DistributedDataParallel":
                check.session.wrappers.append(each)
        yield check
    say(check.document, dist.get_rank())


def steps_of(text: str) -> tuple[int, int | None]:
    """The first and last step to check, as on the command line; None is the end.

    >>> steps_of("1..3"), steps_of("2"), steps_of("3..")
    ((1, 3), (2, 2), (3, None))
    """
    first, dots, last = text.partition("..")
    try:
        found = int(first), (int(last) if last else None) if dots else int(first)
    except ValueError:
        found = 0, None
    if found[0] < 1 or (found[1] is not None and found[1] < found[0]):
        raise UsageError(f"--check-steps has {text!r}; give the first and the last step as 1..3, from 1 on")
    return found


def say(document: dict[str, Any] | None, rank: int, file: str | None = None) -> int:
    """Print the document on rank 0, and write it to `file` if there is one; the exit code, on every rank."""
    if document is None:
        return 0
    if rank == 0:
        with suppress(BrokenPipeError):
            print("\n".join(lines(document)), file=sys.stderr, flush=True)
        if file:
            write_text(file, json.dumps(document, indent=1) + "\n")
    return int(bool(document["findings"]))
