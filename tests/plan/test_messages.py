"""Messages of a plan: closed forms and SimGrid's answers; the lockstep world, whose ranks are vectors; machines."""

import json
import random

import numpy as np
import pytest

import zerosim as zs
from tests.oracles import simgrid_cases as simgrid
from tests.sampling import one_in
from zerosim.collectives import ring, tree
from zerosim.core.errors import Deadlock, Unlike
from zerosim.core.extents import Extent
from zerosim.core.sharding import split
from zerosim.plan.cluster import Cluster, Device, Link
from zerosim.plan.fluid import Links, last_end_ns, written_ns
from zerosim.verdict.flows import ReceiveFrom
from zerosim.worlds.lockstep import LockstepCommunicator, ranks

ANSWERS = json.loads(simgrid.ANSWERS.read_text())
CASES = {case.name: case for case in simgrid.cases()}


@pytest.mark.parametrize(("size", "chunk", "link"), [
    (2, 1_000_003, Link("", 1000, 10**9)), (64, 1_000_003, Link("", 1000, 10**9)), (64, 100, Link("", 0, 3 * 10**9))])
def test_the_ring_takes_its_closed_form_to_the_nanosecond(size, chunk, link):
    """Short messages are not off by a rounding each."""
    machine = Cluster(Device("", 1e12, 1e9, 1e11), size, link, link, pipelined=False, fused=False)
    one_way = (size - 1) * (link.latency_ns + chunk * 1e9 / link.bytes_per_second)
    assert written_ns(ring.all_gather, chunk * size, 1, machine, size) == round(one_way)
    assert written_ns(ring.all_reduce, chunk * size, 1, machine, size) == round(2 * one_way)


@pytest.mark.parametrize(
    "ranks", one_in(2, sorted({case.ranks for case in CASES.values() if case.ranks < 50} | {256})))
def test_messages_take_what_simgrid_says(ranks):
    """To the nearest nanosecond, as plans round, or to a part in 10⁹."""
    for case in CASES.values():
        if case.ranks == ranks:
            ours, answer = written_ns(case.function, case.bytes, 1, case.cluster, ranks), ANSWERS[case.name]
            assert abs(ours - answer) <= 0.5 + 1e-9 * answer, case.name


def test_simgrid_has_answered_every_case_and_another_answer_is_seen():
    """Of one schedule it answers otherwise when links are faster by a part in 10¹²: rounding decides who is first."""
    assert list(ANSWERS) == [*CASES]
    name, other = next(iter(CASES)), simgrid.HANGS_ON_THE_LAST_BIT
    assert simgrid.wrong({**ANSWERS, name: ANSWERS[name] * (1 + 1e-6)}, ANSWERS) == [name]
    assert abs(ANSWERS[simgrid.nudged(CASES[other]).name] / ANSWERS[other] - 1) > 1e-3


def test_a_message_that_nobody_sends_is_a_deadlock():
    with pytest.raises(Deadlock, match="rank 1 waits"):
        last_end_ns([[], [ReceiveFrom(0)]], Links([1.0], lambda source, to, port: (0, [0])))


@pytest.mark.parametrize("program", [
    lambda comm: tree.broadcast(comm, None, 0), lambda comm: comm.send(None, to=0),
    lambda comm: comm.exchange(None, to=0, into=None, source=0),
])
def test_ranks_in_lockstep_do_the_same_and_send_nothing(program):
    with pytest.raises(Unlike, match=r"ranks would do different things|the lockstep world carries no messages"):
        program(LockstepCommunicator(4))


def test_a_rank_that_is_a_vector_answers_what_is_true_of_all_and_cuts_equal_pieces():
    assert ranks(4) >= 0
    assert not ranks(4) > 3
    with pytest.raises(Unlike):
        bool(ranks(4) > 2)
    assert split(Extent(12, np.float32), 4)[(ranks(4) + 1) % 4].shape == (3,)
    with pytest.raises(Unlike, match="not equally long"):
        split(Extent(10, np.float32), 4)[ranks(4)]


BETTER = {"device.flops": 2, "device.memory_bandwidth": 2, "device.memory": 2, "device.launch_us": 0.5,
          **{f"{link}.{key}": factor for link in ("inside", "between", "host_memory")
             for key, factor in (("gigabytes_per_second", 2), ("latency_us", 0.5))}}
"""Ten figures of a machine, each with a factor by which it gets better."""
MACHINE = {"device": {"flops": 2e14, "memory_bandwidth": 1e12, "memory": 40e9, "launch_us": 4},
           "inside": {"latency_us": 3, "gigabytes_per_second": 100}, "devices_per_host": 4, "kernels": "fused",
           "between": {"latency_us": 9, "gigabytes_per_second": 20},
           "host_memory": {"latency_us": 5, "gigabytes_per_second": 10}}
ROWS = {"world.ranks": [8, 16], "parallel.tensor_ranks": [1, 2], "parallel.pipeline_ranks": [1, 2],
        "parallel.stages": [["zero1"], ["zero2"]], "parallel.recompute": [True, False],
        "parallel.overlap": [True, False],
        "parallel.offload_optimizer": ["none", "host"], "train.micro_batch": [1, 3], "cluster.software": ["", "fused"],
        "cluster.collectives": ["pipelined", "written"], "parallel.accumulation": ["boundary", "micro_batch"]}


def less_than_it_was(seed):
    """The figures whose improvement makes a drawn row slower, larger, or less likely to fit."""
    draw = random.Random(seed)
    keys = {key: draw.choice(values) for key, values in ROWS.items()}
    scenario = {"model.layers": 3, "model.width": draw.choice([512, 2048]), "model.sequence": 512, "model.inner": 1536,
                "train.micro_batches": 48, "check.mfu": [], "check.fits": [], "check.does_not_fit": [], **keys}

    def row(machine):
        cluster = {f"cluster.{key}": value for key, value in machine.items()}
        (planned,) = zs.plan("llama3_8b", set=scenario | cluster).subject.rows
        return planned.step_seconds, planned.peak_bytes, not planned.fits

    before, worse = row(MACHINE), []
    for figure, factor in BETTER.items():
        part, name = figure.split(".")
        after = row(MACHINE | {part: MACHINE[part] | {name: MACHINE[part][name] * factor}})
        worse += [figure] * any(new > old for new, old in zip(after, before, strict=True))
    return worse


@pytest.mark.parametrize("seed", range(4))
def test_a_better_machine_makes_no_row_slower_or_larger(seed):
    assert less_than_it_was(seed) == []


def test_a_link_that_is_slower_the_wider_it_is_would_be_noticed(monkeypatch):
    monkeypatch.setattr(Link, "transfer_ns", lambda self, count: round(count * self.bytes_per_second / 1e8))
    assert {"inside.gigabytes_per_second"} <= {*less_than_it_was(0), *less_than_it_was(1)}
