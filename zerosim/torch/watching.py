"""Observations of a script while it trains: its steps, each collective and the line that called it, spans, memory.

A step ends when `optimizer.step()` returns, or when the script calls `zerosim.torch.step()`: from the first such call
on optimizers end no step. In a trace the parts of a step are forward, backward and update; DDP's waits in C++ at
the end of backward count as backward.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from zerosim.comm import Communicator, Payload
from zerosim.instruments.faults import Faults
from zerosim.instruments.location import Locator
from zerosim.instruments.memory import Ledger
from zerosim.instruments.trace import WAIT, RankStep, Tracer
from zerosim.instruments.traffic import Traffic
from zerosim.torch.memory import held_by, whole_bytes

Result = TypeVar("Result")


@dataclass
class Call:
    """One call of a collective in a step: the line that called it, the tensors that it fills, the bytes that this rank
    sent, and the time for which it waited for messages."""

    collective: str
    by: str
    tensors: str = ""
    sent_bytes: int = 0
    messages: int = 0
    waited_ns: int = 0


class Open(threading.local):
    """The present calls of this thread, innermost last."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.since_ns = 0


class Calls:
    """An instrument that records each call of the step."""

    def __init__(self) -> None:
        self.made: list[Call] = []
        self._open = Open()

    def began(self, name: str, owner: str) -> None:
        call = Call(name, owner)
        self.made.append(call)
        self._open.calls.append(call)

    def ended(self, name: str, owner: str) -> None:
        self._open.calls.pop()

    def describing(self, do: Callable[[Communicator], None], tensors: Sequence[Any]) -> Callable[[Communicator], None]:
        """`do`, which first records the shapes and dtypes of `tensors` for the present call."""
        def call(comm: Communicator) -> None:
            shown = [f"{str(each.dtype).removeprefix('torch.')} {list(each.shape)}" for each in tensors]
            for present in self._open.calls[-1:]:
                present.tensors = ", ".join(shown[:1]) + (f" and {len(shown) - 1} more" if len(shown) > 1 else "")
            do(comm)

        return call

    def receiving(self, into: Payload, source: int) -> None:
        self._open.since_ns = time.monotonic_ns()

    def came(self, into: Payload, source: int, at_ns: int) -> None:
        for call in self._open.calls:
            call.waited_ns += max(at_ns - self._open.since_ns, 0)

    def sent(self, outgoing: Payload, to: int) -> None:
        for call in self._open.calls:
            call.sent_bytes += outgoing.nbytes
            call.messages += 1


class Parts:
    """Notifies a tracer of the parts of a step; a part is interrupted while its thread communicates or waits."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._thread = threading.get_ident()
        self._open: list[str] = []

    def enter(self, part: str) -> None:
        """Begin `part`, within the present one if there is one."""
        if threading.get_ident() == self._thread:
            self.began()
            self._open.append(part)
            self._tracer.computing(part, "")

    def leave(self) -> None:
        """End the last part that was entered."""
        if threading.get_ident() == self._thread:
            self._tracer.computed(self._open.pop(), "")
            self.ended()

    def began(self, *collective: str) -> None:
        if self._open and threading.get_ident() == self._thread:
            self._tracer.computed(self._open[-1], "")

    def ended(self, *collective: str) -> None:
        if self._open and threading.get_ident() == self._thread:
            self._tracer.computing(self._open[-1], "")


@dataclass
class Watch:
    """The instruments of this process and their observations. Before `begin` they only know the step."""

    locator: Locator = field(default_factory=Locator)
    step: int = 1
    steps_end_by_call: bool = False
    begun: bool = False
    traffic: Traffic = field(default_factory=Traffic)
    calls: Calls = field(default_factory=Calls)
    last_calls: list[Call] = field(default_factory=list)
    """The calls of the last finished step."""
    losses: list[float] = field(default_factory=list)
    """The loss of each step: the sum of the tensors on which `backward` was called."""
    resting: dict[str, int] = field(default_factory=dict)
    """The bytes by kind at the end of the last step."""
    curve: list[tuple[int, int]] = field(default_factory=list)
    """The nanoseconds since the last step began and the bytes that were alive, after each change."""
    whole_bytes: int = 0
    """The bytes of all parameters, on all ranks."""
    ledger: Ledger = field(default_factory=Ledger)
    spans: list[RankStep] = field(default_factory=list)
    """The spans of the last finished step."""
    sent_bytes: list[int] = field(default_factory=list)
    """The bytes that this rank had sent when each step ended."""
    seconds: float = 0.0
    faults: Faults | None = None
    failure: BaseException | None = None
    """The first exception of an asynchronous collective, which C++ code turns into text."""
    note_location: Callable[[], None] = lambda: None
    """Writes the location of the calling thread where other ranks can read it."""
    tracer: Tracer | None = None
    parts: Parts | None = None
    _loss: float = 0.0
    _began: float = 0.0
    _step_began_ns: int = 0

    @property
    def instruments(self) -> list[object]:
        """The observers of each channel."""
        injected = [self.faults] if self.faults else []
        if not self.begun:
            return [self.locator, *injected]
        traced = [self.parts, self.tracer] if self.tracer else []
        return [self.locator, *injected, self.traffic, self.calls, *traced]

    def begin(self, rank: int) -> None:
        """Observe everything from here on."""
        self.begun, self._began = True, time.monotonic()
        self.tracer = Tracer(rank)
        self.parts = Parts(self.tracer)
        self.tracer.begin()
        self._step_began_ns = self.ledger.begin_curve()
        watch_parts(self)

    def enter(self, part: str) -> None:
        if self.parts is not None:
            self.parts.enter(part)

    def leave(self) -> None:
        if self.parts is not None:
            self.parts.leave()

    def waiting(self, wait: Callable[[], Result]) -> Result:
        """The result of `wait`, traced as a wait for another channel."""
        self.enter(WAIT)
        try:
            return wait()
        finally:
            self.leave()

    def noting_failure(self, do: Callable[[], None]) -> Callable[[], None]:
        """`do`, which keeps its exception in `failure` if that is the first."""
        def call() -> None:
            try:
                do()
            except BaseException as error:
                self.failure = self.failure or error
                raise

        return call

    def end_step(self, optimizer: Any = None) -> None:
        """End the step; the next one begins."""
        if self.tracer is not None:
            self.last_calls, self.calls.made = self.calls.made, []
            self.losses.append(self._loss)
            self._loss = 0.0
            self.sent_bytes.append(self.traffic.sent_bytes)
            self.seconds = time.monotonic() - self._began
            self.spans = [self.tracer.end(self.step)]
            self.tracer.begin()
            began = self._step_began_ns
            self.curve = [(at - began, sum(alive.values())) for at, alive in self.ledger.curve_so_far()]
            self._step_began_ns = self.ledger.begin_curve()
        if self.begun and optimizer is not None:
            self.resting, self.whole_bytes = held_by(optimizer), whole_bytes(optimizer)
        self.step += 1
        self.locator.begin(self.step)
        self.note_location()
        if self.faults is not None:
            self.faults.begin(self.step)

    def add_loss(self, loss: Any) -> None:
        if loss.numel() == 1:
            self._loss += float(loss.detach())


WATCH = Watch()
"""The watch of this process."""
WATCH.locator.begin(1)


def step() -> None:
    """End a step of training, where `optimizer.step()` does not: with several optimizers, or another library's."""
    WATCH.steps_end_by_call = True
    WATCH.end_step()


class Updating:
    """Tracks nested optimizers, as in ZeroRedundancyOptimizer: the outermost ends the step."""

    def __init__(self) -> None:
        self._depth = 0

    def began(self, optimizer: Any, *_: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            WATCH.enter("update")

    def ended(self, optimizer: Any, *_: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            WATCH.leave()
            if not WATCH.steps_end_by_call:
                WATCH.end_step(optimizer)


UPDATING = Updating()
register_optimizer_step_pre_hook(UPDATING.began)
register_optimizer_step_post_hook(UPDATING.ended)


def watch_parts(watch: Watch) -> None:
    """Notify `watch`, from here on, of forward of the outermost module, and of backward."""
    depth = [0]
    run, backward = torch.nn.Module.__call__, torch.Tensor.backward

    @wraps(run)
    def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
        depth[0] += 1
        if depth[0] == 1:
            watch.enter("forward")
        try:
            return run(module, *args, **kwargs)
        finally:
            depth[0] -= 1
            if depth[0] == 0:
                watch.leave()

    @wraps(backward)
    def backward_of(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        watch.add_loss(tensor)
        watch.enter("backward")
        try:
            return backward(tensor, *args, **kwargs)
        finally:
            watch.leave()

    torch.nn.Module.__call__ = forward
    torch.Tensor.backward = backward_of
