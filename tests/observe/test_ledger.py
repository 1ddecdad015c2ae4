"""The ledger of memory: the life of every array, held against Python's tracemalloc, and against planted leaks."""

import gc
import threading
import tracemalloc
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training import only_row, run, sabotaged, scenario
from zerosim.core.allocation import allocate
from zerosim.core.sharding import padded
from zerosim.observe import process
from zerosim.observe.ledger import MEMORY_KINDS, Ledger
from zerosim.observe.observed import Observed, ObservedAllocator
from zerosim.stages import STAGES
from zerosim.stages.optimizers import PIECE
from zerosim.training.build import initial_weights
from zerosim.training.build import replica as replica_of
from zerosim.worlds.local import spawn

FLOAT_BYTES = 4
SCRATCH = 3 * PIECE * FLOAT_BYTES  # the optimizer's, for one piece at a time
PYTHON = 1 << 15  # what is no array's: frames, lists, the arrays' headers


def row_for(stage, ranks, precision="fp32"):
    return only_row(scenario(
        ranks=ranks, micro_batches=ranks, steps=2, stages=(stage,), hidden=(300, 500), precision=precision))


def arrays_alive():
    """Bytes of all of NumPy's arrays that were made since tracing began."""
    only = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([only]).traces)


def traced(experiment, config):
    """The bytes of one ledger for all ranks, and Python's: after the first step, and at most in the second."""
    ledger = Ledger()
    stage, ranks = config.stage, config.directions.data
    of_rank = [list(experiment.of_rank(config, rank)) for rank in range(ranks)]

    def first_step(comm):
        replica = replica_of(config, Observed(comm), ObservedAllocator(allocate, ledger))
        replica.begin(initial_weights(config))
        stage.step(replica, of_rank[comm.rank][0])
        return replica

    def second_step(comm):
        replicas[comm.rank].comm = comm
        stage.step(replicas[comm.rank], of_rank[comm.rank][1])

    with process.traced():
        before = arrays_alive()
        replicas = spawn(first_step, ranks)
        resting = ledger.total, arrays_alive() - before
        beside, _ = tracemalloc.get_traced_memory()
        ledger.begin_peak()
        tracemalloc.reset_peak()
        spawn(second_step, ranks)
        peak = ledger.peak_total, tracemalloc.get_traced_memory()[1] - beside + resting[1]
    return resting, peak


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("stage", STAGES)
def test_between_steps_every_byte_of_numpys_is_in_the_ledger(stage, ranks, precision):
    (counted, python), _ = traced(*row_for(stage, ranks, precision))
    assert counted == python > 0


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("stage", STAGES)
def test_at_the_peak_the_ledger_misses_only_what_is_gone_at_once(stage, ranks, precision):
    """A piece of scratch, messages on their way, and in mixed precision one layer's weights and gradients widened."""
    experiment, config = row_for(stage, ranks, precision)
    _, (counted, python) = traced(experiment, config)
    largest = max(padded(unit.count, ranks) for unit in config.model.units) * FLOAT_BYTES
    passing = SCRATCH + PYTHON + (largest if ranks > 1 else 0) + (2 * largest if precision == "fp16" else 0)
    assert counted <= python <= counted + passing


def test_an_array_that_the_ledger_does_not_know_is_seen(monkeypatch):
    hoard = []

    def step(replica, batch):
        hoard.append(np.ones(100))
        return honest.step(replica, batch)

    honest = STAGES["zero2"]
    monkeypatch.setitem(STAGES, "zero2", sabotaged(STAGES, "zero2", step=step))
    (counted, python), _ = traced(*row_for("zero2", 1))
    assert python == counted + 800


# The life of an array.


def handed_out(ledger, count=6, kind="buffers", owner="unit"):
    return ObservedAllocator(allocate, ledger)(count, np.float32, kind=kind, owner=owner)


HOLDS = {
    "itself": lambda array: array,
    "a slice of a slice": lambda array: array[1:][::2],
    "a reshape": lambda array: array.reshape(2, 3).T,
    "a view of other bytes": lambda array: array.view(np.uint8)[5:6],
    "a memoryview": memoryview,
    "a closure": lambda array: lambda: array,
    "an iterator": iter,
}


@pytest.mark.parametrize("hold", HOLDS.values(), ids=HOLDS)
def test_an_array_is_alive_for_as_long_as_anything_holds_it(hold):
    ledger = Ledger()
    held = hold(handed_out(ledger))
    assert ledger.total == ledger.now["buffers"] == 24
    del held
    assert ledger.total == ledger.now["buffers"] == 0


def test_threads_share_a_ledger():
    ledger, together = Ledger(), threading.Barrier(4)

    def work():
        together.wait()
        for _ in range(500):
            held = [handed_out(ledger, kind=kind) for kind in MEMORY_KINDS]
            ledger.owners("buffers")
            del held

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.total == sum(ledger.now.values()) == 0
    assert 5 * 24 <= ledger.peak_total <= 4 * 5 * 24


OWNERS = st.sampled_from(["layers.0", "layers.1"])
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["take", "view", "drop", "begin"]), st.integers(0, 5), st.sampled_from(MEMORY_KINDS),
              OWNERS), max_size=40)


@settings(max_examples=100, deadline=None)
@given(OPERATIONS)
def test_any_history_is_kept_as_by_hand(operations):
    """Beside the ledger, a list: what was handed out, with a number, and an array or a view that holds it."""
    ledger, held, peak, most = Ledger(), [], Counter(), 0
    began = ledger.begin_curve()
    for number, (operation, choice, kind, owner) in enumerate(operations):
        if operation == "take":
            held.append(((number, kind, owner, 4 * choice), handed_out(ledger, choice, kind, owner)))
        elif operation == "begin":
            ledger.begin_peak()
            peak, most, began = Counter(), 0, ledger.begin_curve()
        elif held and operation == "view":
            handed, array = held[choice % len(held)]
            held.append((handed, array[1:]))
        elif held:
            del held[choice % len(held)]
        array = None
        now, owners = Counter(), defaultdict(Counter)
        for _, each, whose, size in {handed for handed, _ in held}:
            now[each] += size
            owners[each][whose] += size
        peak, most = peak | now, max(most, now.total())
        assert +ledger.now == +now
        assert +ledger.peak == +peak
        assert (ledger.total, ledger.peak_total) == (now.total(), most)
        assert {each: ledger.owners(each) for each in MEMORY_KINDS} == {each: +owners[each] for each in MEMORY_KINDS}
        times, last = [at for at, _ in ledger.curve], ledger.curve[-1][1]
        assert (times, times[0], +Counter(last)) == (sorted(times), began, +now)


def test_what_is_collected_while_owners_are_counted_does_no_harm():
    class Collecting(str):
        def __hash__(self):
            gc.collect()
            return 0

    ledger, owner = Ledger(), Collecting("layers.0")
    held = handed_out(ledger, owner=owner)
    circle = [handed_out(ledger)]
    circle.append(circle)
    del circle
    assert ledger.owners("buffers")[owner] == held.nbytes
    assert ledger.total == 24


# Planted leaks, in a whole run.


def gathering(replica, done):
    """Let `done` see every gathered unit of `replica`."""
    gather = replica.gather

    def watched(unit):
        full = gather(unit)
        done(unit, full)
        return full

    replica.gather = watched


def test_a_gathered_layer_that_is_never_released_fails_the_run_and_is_named(monkeypatch):
    hoard, replicas = [], {}

    def step(replica, batch):
        replicas[replica.comm.rank] = replica
        gathering(replica, lambda unit, full: hoard.append(full) if unit.name == "layers.1" else None)
        return honest.step(replica, batch)

    honest = STAGES["zero3"]
    monkeypatch.setitem(STAGES, "zero3", sabotaged(STAGES, "zero3", step=step))
    outcome = run(steps=1, stages=("zero2", "zero3"))
    assert any(what.startswith("bytes kept") and "layers.1's parameters" in what for _, what in outcome.failures)
    assert {name for name, _ in outcome.failures} == {"Stage III"}
    measured, due = outcome.trained[1].memory[0]
    kept = {unit.name: 4 * padded(unit.count, 3) for unit in outcome.experiment.rows[0].model.units}
    (ledger,) = replicas[0].allocate.instruments
    held = ledger.owners("parameters")
    surplus = {name: held[name] - kept[name] // 3 for name in kept}
    gathered = 2 * 2 * kept["layers.1"]                      # forward and backward, of two micro-batches
    assert surplus == {"layers.0": 0, "layers.1": gathered, "layers.2": 0}
    assert measured.resting_bytes["parameters"] - due.resting_bytes["parameters"] == surplus["layers.1"]
