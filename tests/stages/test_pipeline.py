"""Pipelines: the bits of one process, the formulas, one function; what schedules hold, wait for and send."""

import itertools
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction

import pytest

from tests.models.split import GPT, MLP, outcome, read
from tests.stages.schedules import without_flush
from zerosim.autograd.player import Player
from zerosim.core.errors import ZerosimError
from zerosim.scenario.data import load_dataset
from zerosim.stages.pipeline import chunks_of
from zerosim.stages.replica import Replica
from zerosim.stages.schedules import SCHEDULES, Slot, gpipe
from zerosim.stages.square_sums import SquareSums
from zerosim.training import build, config
from zerosim.training.experiment import prepare
from zerosim.training.groups import RanksOfPipeline
from zerosim.training.one_function import differences
from zerosim.verdict.judged_run import run_locally
from zerosim.verdict.pipelines import bubble, bubble_due, held, held_due

ZB = 'parallel.schedule="zb_h1"'
STAGES = 'parallel.stages=["ddp", "zero1", "zero2"]'
TIED = "model.tied_embeddings=true"


def passes_of(schedule, ranks, micro_batches, chunks):
    return [SCHEDULES[schedule](rank, ranks, micro_batches, chunks) for rank in range(ranks)]


SHAPES = [(schedule, ranks, micro_batches, chunks)
          for schedule, many in (("gpipe", [1]), ("1f1b", [1]), ("zb_h1", [1]), ("interleaved_1f1b", [2, 3]))
          for chunks in many
          for ranks in (2, 3, 4, 8) for micro_batches in ((1, 2, 3, 4, 9) if chunks == 1 else (ranks, 3 * ranks))]


def messages(rank, ranks, chunks, slots):
    """What a rank sends to and receives from each other, in order: the micro-batch and the cut that it passes."""
    sent, came = defaultdict(list), defaultdict(list)
    for what, micro_batch, chunk in slots:
        piece = chunk * ranks + rank
        by = {"F": 1, "B": -1, "W": 0}[what]
        for found, other in ((came, piece - by), (sent, piece + by)):
            if by and 0 <= other < chunks * ranks:
                found[other % ranks].append((micro_batch, max(piece, other)))
    return sent, came


def test_the_law_of_schedules():
    """Every forward has its backward, and its W if backward is split; backward adds in the order of micro-batches;
    what a pass needs comes before it, and no rank waits for ever; waiting and memory are the formula's; and what two
    ranks send each other is received in that order, for there are no tags."""
    for schedule, ranks, micro_batches, chunks in SHAPES:
        passes = passes_of(schedule, ranks, micro_batches, chunks)
        kinds = "FBW" if schedule == "zb_h1" else "FB"
        everything = [Slot(*each) for each in itertools.product(kinds, range(micro_batches), range(chunks))]
        for mine in passes:
            assert sorted(mine) == sorted(everything)
            for chunk, what in itertools.product(range(chunks), kinds):
                order = [each.micro_batch for each in mine if (each.what, each.chunk) == (what, chunk)]
                assert order == sorted(order)
        assert bubble(passes) == bubble_due(ranks, micro_batches, chunks, schedule)     # or it raises: they wait
        assert [*map(held, passes)] == [
            held_due(schedule, rank, ranks, micro_batches, chunks) for rank in range(ranks)]
        found = [messages(rank, ranks, chunks, mine) for rank, mine in enumerate(passes)]
        assert all(sent == found[other][1][rank] for rank, mine in enumerate(found) for other, sent in mine[0].items())


def test_a_split_backward_waits_as_the_paper_says_if_w_is_the_shortest():
    """(p − 1)(F + B − W), from m = p on."""
    for ranks, more, f, b in itertools.product((2, 4), (0, 1, 5), (2, 3, 5), (2, 4)):
        passes = passes_of("zb_h1", ranks, ranks + more, 1)
        for w in range(1, 6):
            idle = (ranks - 1) * (f + b - w)
            due = Fraction(idle, (ranks + more) * (f + b + w) + idle)
            assert (bubble(passes, {"F": f, "B": b, "W": w}) == due) is (w <= min(f, b))


def test_a_schedule_that_holds_more_than_its_formula_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setitem(build.SCHEDULES, "1f1b", gpipe)
    assert outcome(MLP, tmp_path, "world.ranks=2", "parallel.pipeline_ranks=2", 'parallel.stages=["ddp"]').failures == [
        ("DDP", "activations held are not the formula's: rank 0 holds those of 4 micro-batches; expected 2")]


def test_passes_that_wait_for_each_other_are_refused():
    with pytest.raises(ZerosimError, match="wait for each other"):
        bubble([[Slot("B", 0, 0), Slot("F", 0, 0)], [Slot("F", 0, 0), Slot("B", 0, 0)]])


def of_the_wrong_micro_batch(rank, ranks, micro_batches, chunks):
    """GPipe whose first rank runs the backward of the second micro-batch with the gradient of the first."""
    slots = gpipe(rank, ranks, micro_batches, chunks)
    first = micro_batches
    return slots if rank else [*slots[:first], slots[first + 1], slots[first], *slots[first + 2 :]]


def test_what_the_weights_need_is_not_freed_before_their_backward(tmp_path, monkeypatch):
    honest = Player.backward
    monkeypatch.setattr(Player, "backward", lambda player, kept, upstream, contribution, steps: honest(
        player, kept, upstream, contribution, [replace(step, stays=False) for step in steps]))
    found, failures = judged(tmp_path, "parallel.pipeline_ranks=2", "world.ranks=2", ZB, text=GPT)
    assert any("the gradient of the model in one piece" in str(each) for each in found)
    assert failures


def judged(tmp_path, *changes, text=MLP):
    """The differences that are found before a run, and the failures of the run."""
    scenario = read(text, tmp_path, 'parallel.stages=["ddp"]', *changes)
    experiment = prepare(scenario, load_dataset(scenario))
    found = [str(each) for each in differences(experiment.rows[0])]
    return found, run_locally(experiment).failures


@pytest.mark.parametrize(("schedule", "wrong", "said"), [
    ("1f1b", without_flush, "times the gradient of the model in one piece"),
    ("gpipe", of_the_wrong_micro_batch, "the gradient of the model in one piece"),
])
def test_a_wrong_schedule_is_found_before_the_run_and_by_its_bits(schedule, wrong, said, tmp_path, monkeypatch):
    monkeypatch.setitem(build.SCHEDULES, schedule, wrong)
    found, failures = judged(
        tmp_path, "world.ranks=2", "parallel.pipeline_ranks=2", f'parallel.schedule="{schedule}"')
    assert any(said in each for each in found)
    assert failures


def test_a_wrong_order_of_pieces_is_found_before_the_run_and_by_its_bits(tmp_path, monkeypatch):
    def swapped(*args):
        first, second, third, last = chunks_of(*args)
        return [first, replace(second, units=third.units), replace(third, units=second.units), last]

    monkeypatch.setattr(config, "chunks_of", swapped)
    found, failures = judged(tmp_path, "model.hidden=[8, 8, 8]", "parallel.pipeline_ranks=4")
    assert "loss: " in found[0]
    assert failures


def at_the_first_end_only(honest):
    def added(self, *args):
        honest(self, *args)
        add, last = self.add_over_ends, self.place == self.size - 1
        self.add_over_ends = lambda flat: add(flat.copy() if last else flat)
    return added


FORGOTTEN = "wte.weight: the first and the last rank of the pipeline have different sums of its gradient"
FAULTS_AT_ENDS = {
    "no addition": (Replica, "sums", lambda honest: lambda self, unit: [], FORGOTTEN),
    "a norm of twice the sums": (SquareSums, "of_gradients", lambda honest: lambda *given: [
        2 * each for each in honest(*given)], "norm: 1.41 times the norm of all gradients of the model in one piece"),
    "on the first rank only": (RanksOfPipeline, "__init__", at_the_first_end_only, FORGOTTEN),
}


def test_the_ends_of_tied_embeddings_send_what_each_keeps_of_their_gradient(tmp_path):
    """By hand, of 65 · 16 + 8 · 16 + 2 · 16 float32 in each of 3 steps: all, or the half of a data rank."""
    found = outcome(GPT, tmp_path, "parallel.pipeline_ranks=3", TIED, STAGES, "world.ranks=6", "train.micro_batches=4",
                    "train.steps=3")
    for stage, due in zip(found.trained, (4800, 2400, 2400), strict=True):
        of_ranks = [rank.by_collective for rank in stage.measured.traffic]
        sent = [kinds["ends_all_reduce"].sent_bytes if "ends_all_reduce" in kinds else 0 for kinds in of_ranks]
        assert sent == [3 * due, 3 * due, 0, 0, 3 * due, 3 * due]


@pytest.mark.parametrize("fault", FAULTS_AT_ENDS)
def test_a_fault_at_the_ends_of_tied_embeddings_is_named_before_the_run_and_by_its_bits(fault, tmp_path, monkeypatch):
    owner, name, planted, said = FAULTS_AT_ENDS[fault]
    monkeypatch.setattr(owner, name, planted(getattr(owner, name)))
    found, failures = judged(tmp_path, "parallel.pipeline_ranks=2", TIED, "train.clip_norm=0.01", text=GPT)
    assert said in found[0]
    assert failures
