"""Wrappers that notify instruments: of a communicator, of an allocator, and of an object that computes.

An instrument is any object with some of these methods. They are looked up once, so that a missing one costs
nothing. They are called on the thread that sends, receives or frees.

    sending(outgoing, to)               before a message is sent; in an exchange, also before it is received
    receiving(into, source)             before the wait for a message
    came(into, source, at_ns)           once it is in `into`: when the last wait for one ended, by the world's clock
    received(into, source, reduce)      the same, next
    sent(outgoing, to)                  after the call that sent it has succeeded; last in an exchange
    began(name, owner)                  before a call of a collective that is `named`
    ended(name, owner)                  after it, even if it raises
    computing(name, owner)              before a call of a method of an `observed` object
    computed(name, owner)               after it, even if it raises
    moving(name, owner)                 before an array is copied to another memory
    moved(name, owner, moved_bytes)     after it
    taken(array)                        after an array has been allocated, whose `Lifetime` this is
    given_back(array)                   when the last reference to it, or to a view of it, is gone

Rules and trade-offs:

- Nothing else in the project forwards a communicator's methods in order to observe them. Algorithms never log, count or
  time.
- The four events of an exchange have the order sending, receiving, received, sent. That distinguishes an exchange from
  a send and a receive in sequence: a message received between `sending` and `sent` arrives in the same round.
- Instruments change nothing, except by raising: an error propagates to the program, so a fault injector needs no other
  hook. `given_back` alone cannot raise, because Python calls it wherever the last reference is dropped; there an
  error is a warning.
- Several channels of a rank notify the same instruments. An instrument that depends on threads keeps its own state for
  each thread.
- Only the world knows how long a receiver waited, because one call here covers waiting and copying. Communicators
  therefore have `came_ns`; one without it counts as never waiting.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, TypeVar, cast

import numpy.typing as npt

from zerosim.core.allocation import Allocator, Array, Kind
from zerosim.core.comm import Communicator, Exchange, Payload, Reduction
from zerosim.observe.ledger import Lifetime
from zerosim.worlds.here import HERE

Callback = Callable[..., None]
Thing = TypeVar("Thing")


def callbacks(instruments: Sequence[object], name: str) -> tuple[Callback, ...]:
    """The methods `name` of those instruments that have one, in their order."""
    return tuple(getattr(instrument, name) for instrument in instruments if hasattr(instrument, name))


def tell(listeners: Sequence[Callback], *about: Any) -> None:
    """Call each of these methods."""
    for listener in listeners:
        listener(*about)


class Observed:
    """A communicator that notifies its instruments of every message.

    Several channels of a rank may notify the same instruments.

    >>> import numpy as np
    >>> from zerosim.worlds.local import spawn
    >>> class Post:
    ...     def sent(self, outgoing, to):
    ...         print("to", to, outgoing)
    >>> def program(comm):
    ...     observed = Observed(comm, Post())
    ...     observed.exchange(np.ones(2), to=0, into=np.empty(2), source=0)
    >>> spawn(program, ranks=1)
    to 0 [1. 1.]
    [None]
    """

    def __init__(self, comm: Communicator, *instruments: object) -> None:
        self.rank = comm.rank
        self.size = comm.size
        self.instruments = instruments
        self._comm = comm
        self._sending, self._sent, self._receiving, self._came, self._received, self._began, self._ended = (
            callbacks(instruments, name)
            for name in ("sending", "sent", "receiving", "came", "received", "began", "ended"))

    def exchange(
        self, outgoing: Payload, *, to: int, into: Payload, source: int, reduce: Reduction | None = None
    ) -> None:
        tell(self._sending, outgoing, to)
        tell(self._receiving, into, source)
        self._comm.exchange(outgoing, to=to, into=into, source=source, reduce=reduce)
        self._tell_received(into, source, reduce)
        tell(self._sent, outgoing, to)

    def exchange_all(self, exchanges: Sequence[Exchange]) -> None:
        for exchange in exchanges:
            tell(self._sending, exchange.outgoing, exchange.to)
        for exchange in exchanges:
            tell(self._receiving, exchange.into, exchange.source)
        self._comm.exchange_all(exchanges)
        for exchange in exchanges:
            self._tell_received(exchange.into, exchange.source, exchange.reduce)
        for exchange in exchanges:
            tell(self._sent, exchange.outgoing, exchange.to)

    def send(self, outgoing: Payload, *, to: int) -> None:
        tell(self._sending, outgoing, to)
        self._comm.send(outgoing, to=to)
        tell(self._sent, outgoing, to)

    def recv(self, *, into: Payload, source: int, reduce: Reduction | None = None) -> None:
        tell(self._receiving, into, source)
        self._comm.recv(into=into, source=source, reduce=reduce)
        self._tell_received(into, source, reduce)

    def _tell_received(self, into: Payload, source: int, reduce: Reduction | None) -> None:
        tell(self._came, into, source, getattr(self._comm, "came_ns", 0))
        tell(self._received, into, source, reduce)

    def around(self, comm: Communicator) -> "Observed":
        """`comm`, some ranks of this communicator, with its instruments; they observe the messages here, not twice."""
        if comm is self:
            return self
        part = copy(self)
        part.rank, part.size, part._comm = comm.rank, comm.size, comm
        part._sending = part._sent = part._receiving = part._came = part._received = ()
        return part

    def named(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A wrapper of `function` that notifies the instruments when `name` began and ended; meanwhile `HERE` says so.

        Its first argument is the owner, the name of a unit or other words; the arguments of `function` follow.
        """
        def call(owner: str, *args: Any, **kwargs: Any) -> Any:
            before = HERE.set(HERE.get().within(name, owner))
            try:
                with between(self._began, self._ended, name, owner):
                    return function(*args, **kwargs)
            finally:
                HERE.reset(before)

        return call


class ObservedAllocator:
    """An allocator that notifies its instruments of each array and of its end.

    >>> import numpy as np
    >>> from zerosim.core.allocation import allocate
    >>> class Account:
    ...     def given_back(self, array):
    ...         print(array.held_bytes, "bytes of", array.owner)
    >>> weights = ObservedAllocator(allocate, Account())(10, np.float32, kind="parameters", owner="layers.0")
    >>> view = weights[:2]
    >>> del weights
    >>> del view
    40 bytes of layers.0
    """

    def __init__(self, allocate: Allocator, *instruments: object) -> None:
        self.instruments = instruments
        self._allocate = allocate
        self._taken = callbacks(instruments, "taken")
        self._given_back = callbacks(instruments, "given_back")

    def __call__(
        self, shape: int | tuple[int, ...], dtype: npt.DTypeLike, *, kind: Kind, owner: str
    ) -> Array:
        array = self._allocate(shape, dtype, kind=kind, owner=owner)
        lifetime = Lifetime(kind, owner, array.nbytes)
        tell(self._taken, lifetime)
        for given_back in self._given_back:
            weakref.finalize(array, given_back, lifetime).atexit = False
        return array


class ObservedObject:
    """A proxy of `thing` that replaces some of its methods; all other attributes are the object's own."""

    def __init__(self, thing: object, methods: dict[str, Callable[..., Any]]) -> None:
        self.__dict__.update(_thing=thing, **methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._thing, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._thing, name, value)


Name = str | Callable[[Any], str]


def observed(thing: Thing, instruments: Sequence[object], **names: Name) -> Thing:
    """A proxy of `thing` that notifies instruments of calls of the methods in `names`, each under its given name.

    The owner of a call is the name of its first argument, if that has one. If the given name is a function of that
    argument, calls for which it returns an empty string are not reported. Without an interested instrument the result
    is `thing` itself.

    >>> class Tape:
    ...     def forward(self, unit):
    ...         return 1
    >>> class Post:
    ...     def computed(self, name, owner):
    ...         print(name, repr(owner))
    >>> observed(Tape(), [Post()], forward="forward").forward("unit 0")
    forward ''
    1
    """
    before, after = callbacks(instruments, "computing"), callbacks(instruments, "computed")
    if not before and not after:
        return thing

    def reported(name: Name, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            activity = name if isinstance(name, str) else name(args[0])
            if not activity:
                return method(*args, **kwargs)
            with between(before, after, activity, getattr(args[0], "name", "")):
                return method(*args, **kwargs)

        return call

    methods = {method: reported(name, getattr(thing, method)) for method, name in names.items()}
    return cast("Thing", ObservedObject(thing, methods))


def carrying(*instruments: object) -> Callable[[str, str, Array, Array], None]:
    """A function that copies an array to another memory, and notifies the instruments.

    >>> import numpy as np
    >>> class Post:
    ...     def moved(self, name, owner, moved_bytes):
    ...         print(name, moved_bytes)
    >>> carrying(Post())("gradients, device to host", "layers.0", np.empty(2), np.ones(2))
    gradients, device to host 16
    """
    moving, moved = callbacks(instruments, "moving"), callbacks(instruments, "moved")

    def carry(what: str, owner: str, into: Array, source: Array) -> None:
        tell(moving, what, owner)
        into[...] = source
        tell(moved, what, owner, source.nbytes)

    return carry


@contextmanager
def between(before: Sequence[Callback], after: Sequence[Callback], name: str, owner: str) -> Iterator[None]:
    """Call `before` at the beginning of this block, and `after` at its end, even if it raises."""
    tell(before, name, owner)
    try:
        yield
    finally:
        tell(after, name, owner)
