"""A step of a stage on symbols, recorded: what every rank holds after each round of messages.

The stage's own code runs with its own collectives, layouts and verbs in the local world. Each unit has one element per
chunk, and its arrays hold symbols. The gradient of a micro-batch is its `Term`, and so is its loss; their sums are
trees of terms. An update makes a `State` of one update more, which is right only if the gradient was complete and all
that it read was right.
"""

import inspect
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Number
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from zerosim.core.allocation import MODEL_STATES, Array, Kind
from zerosim.core.comm import Communicator, Payload, Reduction
from zerosim.core.errors import CollectiveError, UsageError
from zerosim.core.precisions import Precision
from zerosim.core.sharding import Mesh, chunk_length, owned
from zerosim.core.terms import Blank, Term, leaves
from zerosim.models.parameters import Parameter
from zerosim.models.units import Model, Unit
from zerosim.observe.observed import Observed, ObservedObject, observed
from zerosim.observe.record import MessageRecorder, Recording
from zerosim.proofs.contents import LOSS, Contents, Held, Moment, State, complete
from zerosim.stages.replica import Batch
from zerosim.stages.scaling import Scaling
from zerosim.training.build import on_rank
from zerosim.training.config import Config
from zerosim.worlds.local import spawn

SYMBOLS = Precision("symbols", np.dtype(object), scales_loss=False)
STEPS = 2
"""The steps that run: the contents are those of the last, when all states exist, or of the first if it goes wrong."""


@dataclass(frozen=True, slots=True)
class Activation:
    """What the tape passes on for a micro-batch, computed for this unit; right if all weights were that were read."""

    what: str
    unit: str
    micro_batch: int
    right: bool = True

    def __repr__(self) -> str:
        return f"x{self.micro_batch}"


@dataclass(frozen=True, slots=True)
class Scaled:
    """A content times a number."""

    factor: float
    content: Any


OTHER = Blank(-1) + Blank(-1)
"""The content that stands for anything but a sum of contributions, or one times a number."""


def result(operation: Any, *operands: Any) -> Any:
    """The product or quotient of a content and a number, or its sum with 0; `OTHER` for anything else.

    >>> result(np.true_divide, Term(2), 4), result(np.add, 0, Term(2)), result(np.maximum, Term(2), Term(1)) is OTHER
    (Scaled(factor=0.25, content=g2), g2, True)
    """
    numbers, contents = ([part for part in operands if isinstance(part, Number) == are] for are in (True, False))
    if len(numbers) != 1 or len(contents) != 1:
        return OTHER
    (number,), (content,) = numbers, contents
    if operation not in (np.multiply, np.true_divide):
        return content if operation is np.add and not number else OTHER
    factor = float(operation(1.0, number))
    return Scaled(content.factor * factor, content.content) if isinstance(content, Scaled) else Scaled(factor, content)


class Tolerant(np.ndarray[Any, Any]):
    """An array of symbols in which arithmetic that symbols refuse, as of a wrong program, has the `result` above."""

    def astype(self, dtype: Any, *_: Any, **__: Any) -> Any:
        """A copy: symbols stand for numbers of every dtype."""
        return self.copy()

    def __array_ufunc__(self, ufunc: Any, method: Any, *inputs: Any, out: Any = (), **how: Any) -> Any:
        plain = [np.asarray(given) for given in inputs]
        try:
            made = getattr(ufunc, method)(*plain, **how)
        except (CollectiveError, TypeError):
            made = np.empty(np.broadcast_shapes(*(given.shape for given in plain)), object)
            for place in np.ndindex(made.shape):
                made[place] = result(ufunc, *(given[place] for given in np.broadcast_arrays(*plain)))
        if not out:
            return made.view(Tolerant) if isinstance(made, np.ndarray) else made
        np.asarray(out[0])[...] = made
        return out[0]


def of_symbols(make: Callable[..., Any]) -> Callable[..., Any]:
    """A function of NumPy that allocates, with symbols in place of floating-point numbers."""

    def made(shape: Any, dtype: Any = float, **how: Any) -> Any:
        return make(shape, dtype if np.dtype(dtype).kind in "iub" else object, **how).view(Tolerant)

    return made


BUFFERS = {name: of_symbols(getattr(np, name)) for name in ("empty", "zeros", "ones")}
"""What the file of a wrong stage calls for memory of its own."""


@dataclass(eq=False)
class Memory:
    """The arrays of one rank that are alive. It allocates them, and finds the cells of an array by its length."""

    array: type[Array]
    size: int
    firsts: Mapping[str, int]
    """The first element of each unit."""
    meshes: Sequence[Mesh]
    element_bytes: Sequence[int]
    arrays: list[tuple[weakref.ref[Array], Kind, str]] = field(default_factory=list)
    loss: Any = Blank(LOSS)
    """The sum of losses that was computed last, or that a step returned."""
    between: list[Held] | None = None
    """What was held before each allocation since the last event; None within one."""

    def __call__(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike, *, kind: Kind, owner: str) -> Array:
        if self.between is not None:
            self.between.append(self.held())
        array = self.array(shape, object)
        array[...] = Blank(-1)
        self.arrays.append((weakref.ref(array), kind, owner))
        return array

    def alive(self) -> Iterator[tuple[Array, Kind, str, int]]:
        """The arrays of model states, each with the first cell that it fills."""
        self.arrays = [entry for entry in self.arrays if entry[0]() is not None]
        for reference, kind, owner in self.arrays:
            array = reference()
            if array is None or owner not in self.firsts or kind not in MODEL_STATES:
                continue
            starts = {self.size: 0} | {of.length: of.first for of in (owned(self.size, mesh) for mesh in self.meshes)}
            if array.size in starts:
                row = MODEL_STATES.index(kind) * len(self.element_bytes) + self.firsts[owner]
                yield array, kind, owner, row + starts[array.size]

    def held(self) -> Held:
        """What the rank holds now; where several arrays have a cell, a wrong content or else the latest."""
        contents, held_bytes = defaultdict[int, list[Any]](list), Counter[Kind]()
        for array, kind, owner, first in self.alive():
            held_bytes[kind] += array.size * self.element_bytes[self.firsts[owner]]
            for place, content in enumerate(array.tolist()):
                contents[first + place].append(content)
        cells = [None] * (len(MODEL_STATES) * len(self.element_bytes))
        return Held(tuple(shown(contents[cell]) if cell in contents else None for cell in range(len(cells))),
                    dict(held_bytes), self.loss)

    def place(self, payload: Payload) -> range:
        """The cells of which an array is a view."""
        root: Any = payload
        while isinstance(getattr(root, "base", None), np.ndarray):
            root = root.base
        for array, _, _, first in self.alive():
            if array is root and isinstance(payload, np.ndarray) and payload.size:
                start = first + (payload.ctypes.data - array.ctypes.data) // array.itemsize
                return range(start, start + payload.size)
        return range(0)


def shown(contents: Sequence[Any]) -> Any:
    """The content to be shown of those of several arrays."""
    filled = [content for content in contents if not isinstance(content, Blank)]
    states = [content for content in filled if isinstance(content, State)]
    if states:
        return min(states, key=lambda state: (state.right, -state.updates))
    return max(filled, key=lambda content: len([*leaves(content)]), default=contents[0])


@dataclass
class Event:
    """A computation, a collective or the rest between steps, with the recording of all ranks."""

    what: str
    unit: str
    recording: Recording
    before: dict[int, Held] = field(default_factory=dict)
    """What each rank held before it, once arrays of earlier events had been released."""


class StepRecorder(MessageRecorder):
    """One rank's part of a step: each of its events is a recording of its own, shared by all ranks."""

    def __init__(self, rank: int, memory: Memory) -> None:
        super().__init__(rank, None, Recording(0), "")
        self.memory, self._depth, self._alone = memory, 0, False

    def begin(self, events: list[Event]) -> None:
        """Begin a step, whose events are these."""
        self.events, self._number = events, 0
        self.rest()

    def rest(self) -> None:
        """The event before and after a step."""
        self.began("between steps", "")
        self.ended("between steps", "")

    def held(self) -> tuple[Any, ...]:
        return self.memory.held()

    def place(self, payload: Payload) -> range:
        return self.memory.place(payload)

    def began(self, name: str, owner: str) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        if self._number == len(self.events):
            size = self.memory.size
            self.events.append(Event(name, owner, Recording(size, vectors=[[] for _ in range(size)])))
        event = self.events[self._number]
        if (event.what, event.unit) != (name, owner):
            raise UsageError(f"rank {self.rank} does {name} {owner} where another rank does {event.what} {event.unit}")
        now, self.recording = self.memory.held(), event.recording
        self._round, self._sent, self._next_arrival = 0, 0, 1
        event.before[self.rank] = min(
            [*(self.memory.between or ()), now], key=lambda held: sum(held.held_bytes.values()))
        self.memory.between = None
        self.recording.vectors[self.rank].append((0, now))

    def ended(self, name: str, owner: str) -> None:
        self._depth -= 1
        if not self._depth:
            self.recording.vectors[self.rank].append((self._round, self.held()))
            self.memory.between = []
            self._number += 1

    computing, computed = began, ended

    def sending(self, outgoing: Payload, to: int) -> None:
        self._begin_alone()
        super().sending(outgoing, to)

    def receiving(self, into: Payload, source: int) -> None:
        self._begin_alone()
        super().receiving(into, source)

    def received(self, into: Payload, source: int, reduce: Reduction | None) -> None:
        super().received(into, source, reduce)
        self._end_alone()

    def sent(self, outgoing: Payload, to: int) -> None:
        super().sent(outgoing, to)
        self._end_alone()

    def _begin_alone(self) -> None:
        """Outside of a collective, a message is an event of its own."""
        if not self._depth:
            self.began("message", "")
            self._alone = True

    def _end_alone(self) -> None:
        if self._alone and not self._begun:
            self._alone = False
            self.ended("message", "")


def passed(what: str, unit: str, micro_batch: int, right: bool = True) -> Array:
    array = np.empty(1, object)
    array[0] = Activation(what, unit, micro_batch, right)
    return array


@dataclass(eq=False)
class SymbolTape:
    """A tape on symbols: the gradient of a micro-batch is its term, if all weights that were read were right."""

    updates: int
    memory: Memory
    first_micro_batch: int
    loss_scale: float = 1.0

    def forward(self, unit: Unit, weights: Array, activations: Sequence[Any]) -> list[Array]:
        return self._passed("the output", unit.name, self._reads(unit, weights), activations)

    def recompute(self, unit: Unit, weights: Array) -> None: ...

    def loss(self, name: str, outputs: Sequence[Any], targets: Any, count: int, total: Any = None) -> Any:
        upstreams = self._passed("the upstream gradient of the loss", "", True, outputs)
        for number, (passed,) in enumerate(upstreams, self.first_micro_batch):
            loss = np.array([(Term if passed.right else Blank)(number, LOSS)]).view(self.memory.array)
            total = loss if total is None else total + loss
        self.memory.loss = total[0]
        return total, upstreams

    def backward(self, unit: Unit, weights: Array, upstreams: list[Any], earlier: Any = None) -> Any:
        total, first = earlier.pop(unit, None) if earlier else None, self.memory.firsts[unit.name]
        inputs = self._passed(
            "the upstream gradient from backward", unit.name, self._reads(unit, weights), upstreams)
        for number, (passed,) in enumerate(inputs, self.first_micro_batch):
            gradient = self.memory(self.memory.size, object, kind="gradients", owner=unit.name)
            gradient[:] = [(Term if passed.right else Blank)(number, first + chunk) for chunk in range(len(gradient))]
            total = gradient if total is None else total + gradient
            del gradient
        upstreams.clear()
        return inputs, total

    def _passed(self, what: str, unit: str, right: bool, given: Sequence[Any]) -> list[Array]:
        return [passed(what, unit, number, right and all(getattr(symbol, "right", False) for symbol in np.ravel(of)))
                for number, of in enumerate(given, self.first_micro_batch)]

    def _reads(self, unit: Unit, weights: Array) -> bool:
        first = self.memory.firsts[unit.name]
        return [*weights] == [State(first + chunk, self.updates) for chunk in range(self.memory.size)]


@dataclass(eq=False)
class SymbolUpdates:
    """An update rule on symbols with the slots of an optimizer."""

    micro_batches: int
    firsts: Mapping[str, int]
    slots: Sequence[str]
    precision = SYMBOLS

    def update(
        self, unit: Unit, start: int, weights: Array, gradient: Array, state: Mapping[str, Array], *, count: int,
        **about: Any,
    ) -> None:
        first = self.firsts[unit.name] + start
        for place, total in enumerate(gradient):
            read = [weights[place], *(slot[place] for slot in state.values())]
            right = {*read} == {State(first + place, count - 1)} and complete(total, first + place, self.micro_batches)
            for array in (weights, *state.values()):
                array[place] = State(first + place, count, right)


def contents_of(config: Config, limit_seconds: float | None = None, *, tolerant: bool = False) -> Contents:
    """The contents of every rank in the last of `STEPS` steps of a row, or in an earlier one that goes wrong.

    Raises `UsageError` for ranks that do different things, and the exception of code that does not run on symbols:
    these can only be added. If `tolerant`, results of other arithmetic are wrong contents instead, and what the stage's
    file allocates by itself holds symbols of any dtype.
    """
    size, block, units = config.directions.data, config.block, config.model.units
    names = [unit.name for unit in units]
    places = [config.placement.of_rank(rank) for rank in range(size)]
    meshes = [[mesh for mesh in (place.mesh, place.secondary) if mesh] for place in places]
    firsts = {name: size * number for number, name in enumerate(names)}
    element_bytes = [chunk_length(unit.count, size) * config.precision.state.itemsize
                     for unit in units for _ in range(size)]
    on_symbols = replace(config, model=model_of_symbols(config.model, size))
    events = [list[Event]() for _ in range(STEPS)]

    def program(comm: Communicator) -> None:
        memory = Memory(Tolerant if tolerant else np.ndarray, size, firsts, meshes[comm.rank], element_bytes)
        recorder = StepRecorder(comm.rank, memory)
        here = Observed(comm, recorder)
        replica, step, _ = on_rank(on_symbols, here, memory)
        rule: Any = SymbolUpdates(size * block, firsts, config.rule.slots)
        replica.rule = observed(rule, [recorder], update="update")
        replica.state.scaling = Scaling()    # symbols have no norm
        replica.arithmetic = replace(
            config.arithmetic, compute=SYMBOLS.weights, wire=SYMBOLS.weights, accumulates_in_float32=False)
        replica.reduces_to_all = False
        replica.begin(lambda unit: np.array([State(firsts[unit.name] + chunk, 0) for chunk in range(size)]))
        for unit, slots in replica.state.optimizer.items():
            first = firsts[unit.name] + replica.state.placement.of(unit, "optimizer").start
            for slot in slots.values():
                slot[:] = [State(first + place, 0) for place in range(len(slot))]
        micro_batches = range(comm.rank * block, (comm.rank + 1) * block)
        for number, events_of_step in enumerate(events, 1):
            memory.loss = Blank(LOSS)
            recorder.begin(events_of_step)
            tape: Any = SymbolTape(number - 1, memory, comm.rank * block)
            replica.tape = observed(tape, [recorder], forward="forward", loss="loss", backward="backward")
            inputs, targets = ([passed(what, "", of) for of in micro_batches] for what in ("the inputs", "the targets"))
            returned: Any = step(Batch(number, inputs, targets, counted=size * block, first=micro_batches.start))
            memory.loss = [*np.ravel(returned), Blank(LOSS)][0]
            recorder.rest()

    file: dict[str, Any] = getattr(inspect.unwrap(config.stage.step), "__globals__", {})
    numpy = [name for name, value in file.items() if tolerant and value is np]
    with patch.dict(file, dict.fromkeys(numpy, ObservedObject(np, BUFFERS))):
        spawn(program, size, limit_seconds=limit_seconds)
    steps = [
        Contents(size, block, names, config.stage.sharded, [mesh.owned for mesh, *_ in meshes],
                 [[chunk for mesh in more for chunk in mesh.owned] for _, *more in meshes], config.rule.slots,
                 element_bytes, number, [*moments_of(of_step, size)]) for number, of_step in enumerate(events, 1)]
    return next(of_step for of_step in reversed(steps) if of_step is steps[0] or not any(
        of_step.wrong(cell, content) for held in of_step.moments[0].ranks for cell, content in enumerate(held.cells)))


def model_of_symbols(model: Model, size: int) -> Model:
    """The model whose units have one element for each of `size` chunks, and the names of its own."""
    def fill(random: np.random.Generator, array: Array) -> None: ...

    chunks = Parameter("chunks", (size,), fill)
    return replace(model, units=tuple(replace(unit, computations={}, layers=tuple(
        replace(layer, borrows=(), parameters=(chunks,) * (not number)) for number, layer in enumerate(unit.layers)))
        for unit in model.units))


def moments_of(events: Sequence[Event], size: int) -> Iterator[Moment]:
    """The moments of recorded events."""
    last: list[Any] = []
    for event in events:
        if last and any(event.before[rank].held_bytes != held.held_bytes for rank, held in enumerate(last)):
            yield Moment(event.what, event.unit, 0, 0, [event.before[rank] for rank in range(size)])
        rounds = max(event.recording.rounds, 1)
        for number in range(1, rounds + 1):
            last = [event.recording.holds(rank, number) for rank in range(size)]
            messages = [message for message in event.recording.messages if message.round == number]
            yield Moment(event.what, event.unit, number, rounds, last, sorted(messages, key=lambda sent: sent.to))
