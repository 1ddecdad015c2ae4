"""Instruments by hand: a few callbacks in a row, and what an instrument then says."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerosim.core.allocation import allocate
from zerosim.observe import trace
from zerosim.observe.faults import Faults, flip
from zerosim.observe.ledger import Ledger
from zerosim.observe.observed import Observed, ObservedAllocator
from zerosim.observe.trace import COMPUTATION, IN, OUT, ClockOffset, RankStep, Span, Tracer, covered_ns, together
from zerosim.scenario.fault import Fault
from zerosim.stages.second_channel import SecondChannel
from zerosim.worlds.here import HERE, Location

# Memory.


def test_what_was_held_as_something_began_is_the_most_of_all_times():
    ledger = Ledger()
    for now, name in ((8, "update"), (3, "update"), (5, "update"), (99, "forward")):
        ledger.now = Counter(gradients=now)
        ledger.computing(name, "layers.0")
    assert ledger.held_at_beginning == {"update": {"gradients": 8}}


def test_part_of_a_larger_block_counts_for_as_long_as_itself():
    arena, ledger = np.empty(100, np.uint8), Ledger()
    allocator = ObservedAllocator(lambda shape, dtype, *, kind, owner: arena[:shape].view(dtype), ledger)
    array = allocator(8, np.uint8, kind="buffers", owner="unit")
    assert ledger.total == 8
    del array
    assert ledger.total == 0


def test_what_was_taken_before_is_there_from_the_beginning_in_every_step():
    ledger = Ledger()
    observed = ObservedAllocator(allocate, ledger)

    def lifetimes():
        return [(lifetime.since, lifetime.until) for lifetime in ledger.lifetimes]

    ledger.begin_curve()
    weights = observed(10, np.float32, kind="parameters", owner="unit")
    assert lifetimes() == [(1, None)]
    ledger.begin_curve()
    assert lifetimes() == [(0, None)]
    ledger.end_curve()
    del weights
    assert (lifetimes(), len(ledger.curve)) == ([(0, None)], 1)
    ledger.begin_curve()
    assert lifetimes() == []


# Time.

stretches = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=8).map(
    lambda pairs: [(begin, begin + length) for begin, length in pairs])


@given(stretches)
def test_each_moment_that_spans_cover_counts_once(given_stretches):
    moments = {moment for begin, end in given_stretches for moment in range(begin, end)}
    assert covered_ns([Span(0, COMPUTATION, 1, "forward", "", *stretch) for stretch in given_stretches]) == len(moments)


@pytest.fixture
def clock(monkeypatch):
    """One that goes on by a nanosecond whenever it is asked."""
    ticks = iter(range(100))
    monkeypatch.setattr(trace.time, "monotonic_ns", lambda: next(ticks))


def spans(tell):
    tracer = Tracer(0)
    tracer.begin()
    tell(tracer)
    return [(span.lane, span.what, span.begin_ns, span.end_ns, span.bytes, span.waited_ns)
            for span in tracer.end(1).spans]


def test_of_computations_within_each_other_the_outermost_is_noted(clock):
    def tell(tracer):
        for callback, name in (("computing", "backward"), ("computing", "update"), ("computed", "update"),
                               ("computed", "backward")):
            getattr(tracer, callback)(name, "unit")

    assert spans(tell) == [(COMPUTATION, "backward", 1, 3, 0, 0)]


def test_each_collective_has_the_bytes_that_were_sent_within_it(clock):
    def tell(tracer):
        comm = Observed(Post(), tracer)
        for name, size in (("all_gather", 8), ("reduce_scatter", 3)):
            comm.named(name, comm.send)("unit", np.empty(size, np.uint8), to=1)

    assert [(lane, what, carried) for lane, what, _, _, carried, _ in spans(tell)] == [
        (OUT, "all_gather", 8), ("collectives", "all_gather", 8),
        (OUT, "reduce_scatter", 3), ("collectives", "reduce_scatter", 3)]


@pytest.mark.parametrize(("came_ns", "waited_ns"), [(5, 4), (1, 0), (0, 0)])
def test_a_message_is_waited_for_until_it_came_and_not_at_all_if_it_was_there(clock, came_ns, waited_ns):
    def tell(tracer):
        tracer.receiving(np.empty(2), 1)
        tracer.came(np.empty(2), 1, came_ns)

    assert spans(tell) == [(IN, "message", 1, 2, 16, waited_ns)]


def test_a_trace_begins_with_the_earliest_of_all_ranks():
    late = RankStep(0, 1, 100, 150, [Span(0, COMPUTATION, 1, "forward", "", 110, 120)], [(105, {"buffers": 1})])
    found = together([ClockOffset(0, ""), ClockOffset(1, "", 1000, 5)], [late, RankStep(1, 1, 1090, 1140, [])])
    assert [(step.begin_ns, step.end_ns) for step in found.steps] == [(10, 60), (0, 50)]
    assert (found.steps[0].spans[0].begin_ns, found.steps[0].memory) == (20, [(15, {"buffers": 1})])


# Messages.


class Post:
    """A communicator that notes what is sent."""

    rank, size = 0, 2

    def __init__(self):
        self.sent = []

    def send(self, outgoing, *, to):
        self.sent.append(outgoing.tolist())


def test_a_thread_beside_the_step_is_where_its_work_was_begun(at_step_three):
    comm = Observed(Post())
    found = SecondChannel(comm, comm).begin(lambda comm: comm.named("all_gather", HERE.get)("b")).take()
    assert (str(found), str(HERE.get())) == ("in the all_gather of b, step 3 of Stage I", "in step 3 of Stage I")


@pytest.fixture
def at_step_three():
    before = HERE.set(Location(3, "Stage I"))
    yield
    HERE.reset(before)


def test_who_has_left_a_collective_is_where_it_was(at_step_three):
    comm, found = Observed(Post()), []

    def program():
        found.append(comm.named("all_gather", HERE.get)("b"))
        found.append(HERE.get())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        comm.named("all_reduce", program)("a")
    assert [str(each) for each in (*found, HERE.get())] == [
        "in the all_gather of b, step 3 of Stage I", "in the all_reduce of a, step 3 of Stage I",
        "in step 3 of Stage I"]


class Steps:
    """Sends messages in collectives of steps, as a rank on which faults strike."""

    def __init__(self, *faults):
        self.post = Post()
        self.faults = Faults(faults, None, None)
        self.comm = Observed(self.faults.around(self.post), self.faults)
        self.send = self.comm.named("reduce_scatter", self.comm.send)

    def run(self, step, *messages):
        self.faults.begin(step)
        before = HERE.set(Location(step))
        for message in messages:
            self.send("unit", np.array(message, np.uint8, ndmin=1, copy=None), to=1)
        HERE.reset(before)


@pytest.mark.parametrize(("kind", "sent"), [("drop", []), ("duplicate", [[7], [7]]), ("flip", [[3]])])
def test_a_message_is_counted_from_the_beginning_of_its_step(kind, sent):
    steps = Steps(Fault(kind=kind, step=2, collective="reduce_scatter", message=2, bit=2))
    for step in (1, 2, 3):
        steps.run(step, 5, 7)
    assert steps.post.sent == [[5], [7], [5], *sent, [5], [7]]
    assert steps.faults.missed == []


def test_who_is_slow_is_slow_from_its_step_on(monkeypatch):
    slept = []
    monkeypatch.setattr("zerosim.observe.faults.time.sleep", slept.append)
    steps = Steps(Fault(kind="slow", step=2, seconds=0.5))
    for step in (1, 2, 3):
        steps.run(step, 5, 7)
    assert slept == [0.5] * 4


def test_a_bit_beyond_the_end_counts_on_from_the_beginning():
    words = np.zeros(4, np.uint8)
    for bit in (0, 9, 31, 32 + 10):
        flip([words], bit)
    assert words.tolist() == [1, 2 + 4, 0, 128]


def test_a_bit_of_a_message_flips_in_a_copy_whose_elements_have_the_order_of_the_message():
    steps, words = Steps(Fault(kind="flip", step=3, collective="reduce_scatter", bit=9)), np.arange(4, dtype=np.uint8)
    steps.run(3, words[::-1])
    assert (steps.post.sent, words.tolist()) == ([[3, 0, 1, 0]], [0, 1, 2, 3])
