"""What observes: instruments are told all, in order, on the thread where it happens, and change nothing."""

import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from tests.conformance import CHECKS
from zerosim.core.allocation import allocate
from zerosim.core.comm import left, right
from zerosim.core.errors import Deadlock
from zerosim.observe.ledger import Ledger
from zerosim.observe.observed import Observed, ObservedAllocator, observed
from zerosim.observe.traffic import Count, Traffic
from zerosim.worlds.local import spawn

CALLBACKS = ("sending", "receiving", "received", "sent", "began", "ended", "came", "taken", "given_back")

QUIET = SimpleNamespace(**dict.fromkeys(CALLBACKS, lambda *about: None))


class Diary:
    """Has every callback, or those named, and writes down what it is told."""

    def __init__(self, *names, told=None):
        self.told = [] if told is None else told
        for name in names or CALLBACKS:
            setattr(self, name, partial(self.write, name))

    def write(self, name, *about):
        numbers = [each.tolist() if isinstance(each, np.ndarray) else each for each in about]
        self.told.append((name, *numbers))


class Broken:
    def __init__(self, callback):
        setattr(self, callback, self.fail)

    def fail(self, *about):
        raise ZeroDivisionError("planted")


@pytest.mark.parametrize("make", [list, lambda: [Traffic()], lambda: [Traffic(), QUIET, object()]],
                         ids=["none", "one", "several"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_an_observed_world_conforms(check, make):
    for ranks in (1, 3):
        spawn(lambda comm: check(Observed(comm, *make())), ranks)


def test_instruments_are_told_of_every_message_in_the_order_in_which_it_goes():
    def program(comm):
        diary = Diary()
        observed = Observed(comm, diary)
        mine, into = np.array([comm.rank + 1]), np.array([10])
        observed.exchange(mine, to=right(comm), into=into, source=left(comm), reduce=np.add)
        observed.send(into, to=left(comm))
        observed.recv(into=mine, source=right(comm))
        return [(name, *about[:2]) if name == "came" else (name, *about) for name, *about in diary.told]

    assert spawn(program, ranks=2) == [[
        ("sending", [1], 1), ("receiving", [10], 1), ("came", [12], 1), ("received", [12], 1, np.add), ("sent", [1], 1),
        ("sending", [12], 1), ("sent", [12], 1),
        ("receiving", [1], 1), ("came", [11], 1), ("received", [11], 1, None),
    ], [
        ("sending", [2], 0), ("receiving", [10], 0), ("came", [11], 0), ("received", [11], 0, np.add), ("sent", [2], 0),
        ("sending", [11], 0), ("sent", [11], 0),
        ("receiving", [2], 0), ("came", [12], 0), ("received", [12], 0, None),
    ]]


def test_several_instruments_are_told_in_their_order_what_has_happened():
    told = []
    first, second = Diary("sent", told=told), Diary("sending", "sent", told=told)
    spawn(lambda comm: Observed(comm, first, second).exchange(np.ones(1), to=0, into=np.ones(1), source=0), ranks=1)
    assert [name for name, *_ in told] == ["sending", "sent", "sent"]
    with pytest.raises(Deadlock):
        spawn(lambda comm: Observed(comm, Diary("received", told=told)).recv(into=np.ones(1), source=0), ranks=1)
    assert len(told) == 3, "what has not happened is told"


def all_of_it(observed, allocator):
    into = np.ones(1)
    observed.exchange(into, to=0, into=into, source=0)
    observed.named("sum", np.sum)("unit", into)
    return allocator(3, np.float32, kind="buffers", owner="unit")


@pytest.mark.parametrize("callback", CALLBACKS[:-1])
def test_what_an_instrument_raises_ends_the_program(callback):
    def program(comm):
        return all_of_it(Observed(comm, Broken(callback)), ObservedAllocator(allocate, Broken(callback)))

    with pytest.raises(ZeroDivisionError, match="planted"):
        spawn(program, ranks=1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_an_instrument_raises_when_an_array_ends_does_not_stop_the_next():
    ledger = Ledger()
    ObservedAllocator(allocate, Broken("given_back"), ledger)(3, np.float32, kind="buffers", owner="unit")
    assert ledger.total == 0


def test_an_instrument_with_one_callback_is_told_of_that_alone():
    only = Diary("sent")
    assert len(spawn(lambda comm: all_of_it(Observed(comm, only), ObservedAllocator(allocate, only)), ranks=1)[0]) == 3
    assert [name for name, *_ in only.told] == ["sent"]


class Machine:
    setting = 0

    def work(self, part):
        return self.setting

    def rest(self, part):
        return "rested"


def test_what_nobody_listens_to_is_not_wrapped():
    machine = Machine()
    assert observed(machine, [Traffic()], work="works") is machine


def test_calls_of_some_methods_are_told_and_all_else_is_the_things_own():
    diary, machine = Diary("computing", "computed"), Machine()
    watched = observed(machine, [diary], work=lambda part: "works" if part.name == "first" else "")
    watched.setting = 3
    first, second = (SimpleNamespace(name=name) for name in ("first", "second"))
    assert (watched.work(first), watched.rest(first), machine.setting, watched.work(second)) == (3, "rested", 3, 3)
    assert diary.told == [("computing", "works", "first"), ("computed", "works", "first")]


def test_a_name_begins_and_ends_around_its_function_even_if_that_raises():
    diary = Diary()
    observed = Observed(spawn(lambda comm: comm, ranks=1)[0], diary)
    assert observed.named("sum", np.sum)("unit", [1, 2]) == 3
    with pytest.raises(ValueError, match="planted"):
        observed.named("fail", fails)("other")
    assert diary.told == [
        ("began", "sum", "unit"), ("ended", "sum", "unit"), ("began", "fail", "other"), ("ended", "fail", "other")]


def fails():
    raise ValueError("planted")


def test_an_array_is_told_when_it_is_taken_and_when_nobody_holds_it():
    diary = Diary()
    array = ObservedAllocator(allocate, diary)(3, np.float32, kind="gradients", owner="unit")
    ((name, lifetime),) = diary.told
    assert (name, lifetime.kind, lifetime.owner, lifetime.held_bytes) == ("taken", "gradients", "unit", 12)
    view = array[1:]
    del array
    assert len(diary.told) == 1
    del view
    assert diary.told[1:] == [("given_back", lifetime)]


# The traffic ledger.


def test_messages_count_under_the_collectives_of_their_own_thread_and_channel():
    """Two channels tell one ledger: what the other thread sends meanwhile is none of this thread's collective."""
    traffic, inside, sent = Traffic(), threading.Event(), threading.Event()

    class Channel:
        rank, size = 0, 1

        def send(self, outgoing, *, to):
            pass

        exchange = recv = None

    here, there = Observed(Channel(), traffic), Observed(Channel(), traffic)

    def collective(name, channel):
        def waits():
            inside.set()
            assert sent.wait(60)
            channel.send(np.zeros(5, np.uint8), to=0)
        return partial(channel.named(name, waits), "unit")

    thread = threading.Thread(target=collective("there", there))
    thread.start()
    assert inside.wait(60)
    here.named("outer", here.named("inner", here.send))("unit", "unit", np.zeros(3, np.uint8), to=0)
    here.send(np.zeros(1, np.uint8), to=0)
    sent.set()
    thread.join()
    assert (traffic.messages, traffic.sent_bytes) == (3, 9)
    assert traffic.by_collective == {
        name: Count(1, size, 1, largest_message_bytes=size)
        for name, size in (("there", 5), ("outer", 3), ("inner", 3))}
