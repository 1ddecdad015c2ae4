"""Plans over directions of the mesh: closed forms, shipped volumes, the ZeRO paper's rows, and refusals."""

from fractions import Fraction
from math import inf

import pytest

import zerosim as zs
from zerosim.commands.cli import main
from zerosim.core.sharding import Directions
from zerosim.models.units import Task
from zerosim.plan import directions
from zerosim.plan.cluster import Cluster, Device, Link
from zerosim.plan.rehearsal import rehearse
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import Check, ModelKeys, Parallel, Train, WorldKeys
from zerosim.training.config import configured
from zerosim.verdict.pipelines import bubble_due

AT_ONCE = Link("", 0, inf)
ONLY_PRODUCTS = Cluster(Device("", 8.192e12, 1e12, inf), 64, AT_ONCE, AT_ONCE, pipelined=True, fused=False)
"""A device on which products alone take time; those of a vocabulary of 1 take less than half a nanosecond."""
SCHEDULES = {"gpipe": {"schedule": "gpipe"}, "1f1b": {"schedule": "1f1b"}, "zb_h1": {"schedule": "zb_h1"},
             "interleaved": {"schedule": "interleaved_1f1b", "model_chunks": 2}}


def pipelined(ranks, micro_batches, **keys):
    """A row of blocks alone that take time, as many on each rank of a pipeline."""
    chunks = ranks * keys.get("model_chunks", 1)
    scenario = Scenario(
        world=WorldKeys(ranks), check=Check(reference=False),
        model=ModelKeys(kind="transformer", layers=chunks, width=512, heads=4, vocabulary=1, sequence=1),
        train=Train(micro_batch=1, micro_batches=micro_batches, optimizer="sgd"),
        parallel=Parallel(("ddp",), pipeline_ranks=ranks, pipeline_layers=(2, *[1] * (chunks - 2), 2), **keys))
    return configured(scenario.rows[0], Task(1, 1, "cross_entropy", tokens=True))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 2), (3, 30), (4, 1000)])
def test_equal_stages_wait_for_the_bubble_of_the_formula_exactly(schedule, ranks, micro_batches):
    keys = SCHEDULES[schedule]
    found = rehearse(pipelined(ranks, micro_batches, **keys), ONLY_PRODUCTS)
    idle = sum(each.clock.idle_ns + found.clock.now_ns - each.clock.now_ns for each in found.stages)
    due = bubble_due(ranks, micro_batches, keys.get("model_chunks", 1), schedule)
    assert Fraction(idle, found.clock.now_ns * ranks) == due


@pytest.mark.parametrize("name", ["four_all_reduces", "ring_attention", "all_to_all_of_experts"])
def test_published_volumes_are_planned_as_they_are_measured(name):
    for row in zs.plan(name).subject.rows:
        check = row.config.check
        sent_by = row.rehearsal.clock.counts["bytes"]
        assert sum(sent_by[name] for name in check.collectives) == sum(check.collective_bytes), row.name


def test_a_pipeline_sends_each_cut_forward_and_back():
    *rows, _ = zs.plan("pipeline", set={"parallel.pipeline_ranks": 4, "model.layers": 6}).subject.rows
    sent = 8 * 4 * 32 * 16 * 4                                     # b·s·h numbers of 4 bytes, 8 times
    for row in rows:
        found = [[each.clock.counts["bytes"][f"send_{what}"] for what in ("activation", "gradient")]
                 for each in row.rehearsal.stages]
        assert found == [[sent, 0], [sent, sent], [sent, sent], [0, sent]]


def test_the_papers_100_billion_parameters_fit_with_divided_checkpoints_alone():
    """24.9 GB with P_a and 87.3 GB without; 38 teraflops of a V100's 125 (Rajbhandari et al., 2020, figure 2)."""
    alone, without = zs.plan("zero_100b", sweep={"parallel.partition_activations": [True, False]}).subject.rows
    assert [(round(row.peak_bytes / 1e9, 1), row.fits) for row in (alone, without)] == [(24.9, True), (87.3, False)]
    assert 0.38 <= alone.hfu <= 0.43
    assert 125e12 * alone.mfu == pytest.approx(38e12, rel=0.05)


def test_queues_that_are_longer_than_the_tokens_need_no_more_operations():
    """A token meets the experts that are chosen for it, and only the operations done grow with `capacity_factor`."""
    keys = {"check.collective_bytes": [], "model.vocabulary": 68, "model.experts": 8}
    found = [zs.plan("all_to_all_of_experts", set={**keys, "model.capacity_factor": factor}).subject.rows[0]
             for factor in (1.0, 2.0)]
    needed, done = ([getattr(row, name) * row.step_seconds for row in found] for name in ("mfu", "hfu"))
    assert needed[0] == pytest.approx(needed[1])
    assert done[0] < done[1]


def test_bytes_of_each_direction_and_memory_of_each_rank_are_shown(capsys):
    assert main(["plan", "pipeline", "--set", "parallel.tensor_ranks=2"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "GPipe, DDP: sends" in said
    assert "over tensor ranks" in said
    assert "memory along the pipeline: " in said
    assert "bubble" in said


def test_a_traced_step_has_micro_batches_for_an_interleaved_schedule():
    keys = {"world.ranks": 3, "parallel.pipeline_ranks": 3, "model.layers": 4, "train.micro_batches": 30}
    *_, row = zs.plan("pipeline", set=keys).subject.rows
    (step,) = row.trace.steps
    assert [span.what for span in step.spans].count("forward") == 6 * 2      # 6 micro-batches of 2 chunks
    assert step.memory


@pytest.mark.parametrize(("mesh", "name", "due_ns"), [
    ({"tensor": 4}, "tensor", 5 + 3000),                               # inside a host
    ({"tensor": 2, "context": 2}, "context", 5 + 3000),
    ({"tensor": 4, "context": 2}, "context", 7 + 4 * 30_000),          # four rings side by side share a host's link
    ({"tensor": 2, "expert": 4}, "expert", 7 + 2 * 30_000),
    ({"tensor": 2, "context": 2, "expert": 2}, "tensor+context", 5 + 3000),
    ({"tensor": 2, "context": 2, "expert": 2}, "context+expert", 7 + 2 * 30_000),
    ({"tensor": 2, "context": 2, "expert": 2}, "tensor+context+expert", 7 + 30_000),
])
def test_ranks_of_a_direction_have_the_links_between_them(mesh, name, due_ns):
    cluster = Cluster(Device("", 1, 1, 1), 4, Link("", 5, 1e9), Link("", 7, 1e8), pipelined=True, fused=False)
    costs = directions.DirectionCosts(Directions(**mesh), cluster)
    assert costs.price(directions.TapeCall(name, "shift", 3000, 1, (1,))).ns == due_ns
