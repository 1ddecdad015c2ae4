"""Wire formats of one's own: laws with planted faults, the bits of one process, bytes by the declared length."""

import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import zerosim as zs
from tests.test_rehearsal import CLUSTER
from tests.test_whole_steps import outcome_of
from tests.training import labelled
from zerosim.cli import main
from zerosim.collectives import narrow
from zerosim.errors import ScenarioError, UsageError
from zerosim.extend import wire_format
from zerosim.figures.shapes import expected
from zerosim.figures.traffic import due
from zerosim.numerics.own import wrong
from zerosim.numerics.wires import CODES, wire
from zerosim.parts.loading import function_of
from zerosim.plan.rehearsal import rehearse
from zerosim.training.build import alone
from zerosim.training.experiment import Batches

ROOT = Path(__file__).parents[1]
TOP_K = function_of(str(ROOT / "scenarios/examples/top_k/top_k.py"), "top_k")
LOW_RANK = function_of(str(ROOT / "scenarios/examples/low_rank/low_rank.py"), "low_rank")


def undo(coded, out, *, block):
    """Multiples of each block's power of two, which stands first."""
    blocks, block = -(-len(out) // (block or len(out))), block or len(out)
    out[:] = coded[4 * blocks :].view(np.int8) * np.repeat(coded[: 4 * blocks].view("<f4"), block)[: len(out)]
    out[coded[4 * blocks :] == 0x80] = np.nan


def stochastic_bytes(count, *, block):
    return 4 * -(-count // (block or count)) + count


@wire_format(decode=undo, encoded_bytes=stochastic_bytes)
def stochastic(x, out, *, block):
    """Up or down with a chance by nearness: from a declared seed and the numbers themselves."""
    block = block or len(x)
    blocks, finite = -(-len(x) // block), np.isfinite(x)
    padded = np.zeros(blocks * block, np.float32)
    padded[: len(x)] = np.where(finite, x, 0)
    largest = np.abs(padded).reshape(blocks, block).max(axis=1)
    scales = np.exp2(np.ceil(np.log2(np.where(largest > 0, largest, 1) / 127))).astype(np.float32)
    chances = np.random.default_rng([7, zlib.crc32(x)]).random(len(x))
    out[: 4 * blocks].view("<f4")[:] = scales
    codes = np.floor(padded[: len(x)].astype(np.float64) / np.repeat(scales, block)[: len(x)] + chances)
    out[4 * blocks :].view(np.int8)[:] = np.where(finite, codes, -128)


MINE = (TOP_K, LOW_RANK, stochastic)

# Laws.


def halved(x, out):
    out.view(np.float16)[:] = x


def widened(coded, out):
    out[:] = coded.view(np.float16)


def two(count):
    return 2 * count


FAULTS = {
    "encode writes byte 0 differently the second time": (
        lambda x, out: halved(x + np.random.default_rng().random(len(x)), out), widened, two),
    "encode changes its argument x": (lambda x, out: halved(np.multiply(x, 0.5, out=x), out), widened, two),
    "encode leaves byte 2 of 3 unwritten": (
        lambda x, out: halved(x, out[:-1]), lambda coded, out: widened(coded[:-1], out), lambda count: 2 * count + 1),
    "; encoded_bytes declares a message of 3 bytes": (halved, widened, lambda count: 3 * count),
    "encoded_bytes is 2.0: return the whole number": (halved, widened, lambda count: 2.0 * count),
    "decode leaves element 0 unwritten": (halved, lambda coded, out: widened(coded[:-2], out[:-1]), two),
    "decoded values change by 0.67 of the largest": (lambda x, out: halved(x / 3, out), widened, two),
    "residual keeps 0 of element 0": (halved, widened, two, lambda x, coded: x.fill(0)),
    "inf at element 0 is lost": (lambda x, out: halved(np.where(np.isfinite(x), x, 0), out), widened, two),
    "element 0 is 0 and arrives as nan": (lambda x, out: halved(x / np.abs(x).max(), out), widened, two),
}


@pytest.mark.parametrize("words", FAULTS)
def test_a_planted_fault_is_named_before_the_run_in_one_line(words):
    encode, decode, length, *lost = FAULTS[words]
    made = wire_format(decode=decode, encoded_bytes=length, residual=lost[0] if lost else None)(encode)
    assert words in wrong(made)
    with pytest.raises(ScenarioError) as raised:
        zs.Parallel(quantized_gradients=made)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("block", [0, 3, 256])
@pytest.mark.parametrize("name", CODES)
def test_the_shipped_formats_keep_the_same_laws(name, block):
    assert wrong(wire(name, block)) is None


def test_a_file_is_checked(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("""
from zerosim.extend import wire_format

def encode(x, out): out.view("<f4")[:] = x * 2
def decode(coded, out): out[:] = coded.view("<f4")
doubled = wire_format(decode=decode, encoded_bytes=lambda count: 4 * count)(encode)
""")
    assert main(["check", str(tmp_path / "mine.py")]) == 1
    assert "doubled: with count = 1: decoded values change by 1 of the largest" in capsys.readouterr().out
    assert main(["grade", f"{tmp_path / 'mine.py'}:doubled"]) == 1


@pytest.mark.parametrize("wrong", [{"encoded_bytes": 4}, {"decode": None}, {"residual": 3}, {"rounding": "no"}])
def test_what_is_no_function_or_rounding_is_refused(wrong):
    with pytest.raises(UsageError, match=rf"@wire_format takes .*{next(iter(wrong))}"):
        wire_format(**{"decode": widened, "encoded_bytes": two, **wrong})


# Training.

FED = {"error_feedback": True}
CASES = (
    *((mine, keys) for mine in MINE for keys in ({"order": "ring"}, FED | {"order": "rank", "clip_norm": 0.1})),
    (TOP_K, FED | {"order": "rank", "precision": "bf16", "accumulation": "micro_batch"}),
    (LOW_RANK, FED | {"order": "two_hop", "ranks_per_host": 2, "ranks": 4, "micro_batches": 4}),
    (stochastic, {"order": "two_level", "ranks_per_host": 2, "ranks": 4, "micro_batches": 4}),
    (LOW_RANK, FED | {"precision": "fp16", "loud": 300, "steps": 14, "activation": "relu", "learning_rate": 1.0}),
    *((mine, {"quantized_gradients": "int8", "secondary_ranks": 3}) for mine in MINE),
)


@pytest.mark.parametrize(("mine", "keys"), CASES, ids=lambda each: getattr(each, "name", str(each)))
def test_it_has_the_bits_of_one_process_and_the_bytes_of_the_declared_length(mine, keys):
    """Units of 35, 24 and 15 elements have padding on 3 and 4 ranks, which top-k counts and low rank fills."""
    whose = "quantized_weights" if "quantized_gradients" in keys else "quantized_gradients"
    outcome = outcome_of(**{whose: mine, "quantized_block": 4, **keys})
    assert outcome.failures == []
    if "loud" in keys:
        assert all(0 < row.measured.updates < 14 for row in outcome.trained)


@pytest.mark.parametrize(("name", "other"), [
    ("_take", lambda self, coded, into, reduce: np.copyto(into, reduce(self._decoded(coded, into), into))),
    ("_encoded", narrow.Narrowed._encoded),
])
def test_padding_that_is_filled_and_residuals_that_are_dropped_are_noticed(name, other, monkeypatch):
    monkeypatch.setattr(narrow.FedBack, name, other)
    outcome = outcome_of(quantized_gradients=LOW_RANK, error_feedback=True)
    assert any("bits differ" in what for _, what in outcome.failures)


def test_a_plan_holds_and_sends_what_a_run_does():
    for keys in ({"order": "rank"}, {"quantized_weights": stochastic, "error_feedback": True}):
        outcome = outcome_of(quantized_gradients=TOP_K, **keys)
        for row in outcome.trained:
            planned = rehearse(row.config, CLUSTER)
            assert +planned.peak == +Counter(expected(row.config).peak_bytes)
            assert planned.sent(0)["bytes"] == sum(each.sent_bytes for each in due(row.config, 0, 3).values()) // 3
            sent = row.traffic[0].counts.by_collective["reduce_scatter"]["sent_bytes"]
            assert sent == 3 * 2 * 8 * sum(-(-chunk // 10) for chunk in (12, 8, 5)) * row.config.reductions


def test_what_is_lost_is_reported():
    row, *_ = outcome_of(quantized_gradients=TOP_K, error_feedback=True, order="rank", steps=1).trained
    *_, (last,) = alone(Batches(row.config, labelled()))
    lost, whole = (np.linalg.norm(np.concatenate(each).astype(np.float64)) for each in (
        [each for mine in last.residuals.values() for each in mine],
        [each.unquantised for each in last.gradients.values()]))
    found = row.measured.wire_errors["gradients"]
    assert np.isclose(found["residual"], lost / whole)
    assert 0.1 < found["relative"] < 1
    row, *_ = outcome_of(quantized_gradients=TOP_K, steps=1).trained
    assert row.measured.wire_errors["gradients"]["residual"] is None
