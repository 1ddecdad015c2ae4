"""Runs of split models: what tables, traces, faults and refusals say of their ranks and places."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.models.split import EVEN, GPT, LLAMA, MIXTURE, MLP, PIECES, outcome, read
from tests.observe.tracing import read_trace, span_faults
from zerosim.autograd import ring_attention
from zerosim.autograd.operations.shapes import reshape
from zerosim.autograd.tape_collectives import copy_to, own_rows
from zerosim.commands.cli import main
from zerosim.core.errors import ScenarioError
from zerosim.core.sharding import split
from zerosim.models import parallel, transformer
from zerosim.observe.trace import COLLECTIVES, Tracer
from zerosim.scenario.data import load_dataset
from zerosim.show.document import read as decoded
from zerosim.show.page import page as page_of
from zerosim.training.experiment import prepare
from zerosim.training.one_function import differences

SPLIT = "parallel.tensor_ranks=2"


def run(text, tmp_path, *flags):
    """The exit code of a run, and its document."""
    path, out = tmp_path / "scenario.toml", tmp_path / "out.json"
    path.write_text(text)
    code = main(["run", str(path), "--progress", "none", "--json", str(out), *flags])
    return code, json.loads(out.read_text()) if out.exists() else None


def words(*changes):
    return [word for each in changes for word in ("--set", each)]


def test_the_layout_is_said_in_terminal_page_and_rows(tmp_path, capsys):
    rows = 'variant=[{stage="ddp"}, {stage="zero1", tensor_ranks=2}, {name="four", stage="zero3", tensor_ranks=4}]'
    code, document = run(MLP, tmp_path, "--set", rows)
    due = ["", "tp2 × Stage I on 2", "tp4 × Stage III on 1"]
    assert (code, [row["layout"] for row in document["stages"]]) == (0, due)
    said, page = capsys.readouterr().out, page_of(decoded(json.dumps(document).encode(), "it"))
    assert [words in said and words in page for words in due] == [True] * 3


def test_kept_bytes_are_those_of_the_fullest_rank_where_ranks_have_different_layers(tmp_path, capsys):
    for ranks, due in ((1, False), (4, True)):
        assert run(MLP, tmp_path, *words('parallel.stages=["zero1"]', f"parallel.pipeline_ranks={ranks}"))[0] == 0
        assert ("on the rank with the highest peak" in " ".join(capsys.readouterr().out.split())) is due


def traced(tmp_path):
    _, document = run(GPT, tmp_path, *words(SPLIT, 'parallel.stages=["zero3"]'), "--trace", str(tmp_path / "t.json"))
    (row,) = document["stages"]
    return read_trace(row["trace"])


def test_collectives_of_a_model_are_not_hidden_behind_the_pass_that_waits_for_them(tmp_path, monkeypatch):
    found = traced(tmp_path)
    assert (span_faults(found), found.hidden) == ([], 0)
    assert any(span.what == "tensor_all_reduce" and span.lane == COLLECTIVES for span in found.steps[0].spans)

    def began(self, name, owner):
        self._open.collective_ns = self._began_ns

    monkeypatch.setattr(Tracer, "began", began)
    assert span_faults(traced(tmp_path))


@pytest.mark.parametrize(("rank", "index"), [(0, "[0, 3]"), (1, "[4, 3]")])
def test_a_flipped_weight_is_named_by_its_index_in_the_whole(rank, index, tmp_path, capsys):
    fault = f'fault=[{{kind="flip", rank={rank}, step=2, bit=96}}]'
    code, _ = run(MLP, tmp_path, *words(SPLIT, 'parallel.stages=["ddp"]', fault))
    assert code == 1
    assert f"after step 2, rank {rank} holds layers.0.weight{index} = " in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("text", "collective", "split"), [
    (MLP, "tensor_all_reduce", [SPLIT]), (MIXTURE, "tensor+context+expert_all_to_all", PIECES)])
def test_a_fault_strikes_in_a_collective_of_the_model(text, collective, split, tmp_path, capsys):
    fault = f'fault=[{{kind="flip", rank=1, step=2, collective="{collective}", message=2, bit=30}}]'
    split = words(*split, 'parallel.stages=["ddp"]', fault)
    assert run(text, tmp_path, *split)[0] == 1


DROPS = """
from zerosim.extend import Cut, Layer, Parameter, copy_to, dropout, linear, reduce_from, uniform

def net(task):
    tensor, begins = task.parallel.tensor, uniform(0.1)
    parameters = (Parameter("up", (tensor.of(8), task.inputs), begins, cut=Cut(tensor, 0)),
                  Parameter("down", (task.outputs, tensor.of(8)), begins, cut=Cut(tensor, 1)))
    def layer(w, x):
        piece = dropout(linear(copy_to(x, group=tensor), w["up"]), probability=0.5)
        return reduce_from(linear(piece, w["down"]), group=tensor)
    return [Layer("a", "a.", parameters, layer)]
"""


def test_dropout_of_ones_own_on_pieces_is_refused(tmp_path, capsys):
    (tmp_path / "drops.py").write_text(DROPS)
    text = MLP.replace("hidden = [8, 6, 8]", 'kind = "drops.py:net"')
    assert run(text, tmp_path, *words('parallel.stages=["ddp"]'))[0] == 0
    assert run(text, tmp_path, *words(SPLIT))[0] == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "model.kind: dropout is drawn for whole arrays, and ranks that share a micro-batch have pieces" in said


# Transformers split over context ranks and by vocabulary: bits, bytes by hand, and what the law of one function finds.


ALL_TO_ALL = 'parallel.context_by="all_to_all"'
VOCABULARY = ("parallel.vocabulary_parallel=true", "parallel.tensor_ranks=2", *EVEN)


@pytest.mark.parametrize(("changes", "due"), [
    ([], {"shift": 3 * 3}),
    ([ALL_TO_ALL], {"all_to_all": 2 * 2}),
    (LLAMA, {"shift": 3 * 3}),
])
def test_the_collectives_of_a_blocks_attention_by_hand(changes, due, tmp_path):
    """On C = 4 ranks a ring sends (C − 1)/C of keys and values in forward, and twice as much in backward, with the
    gradients; an all-to-all (C − 1)/C of queries, keys and values, and of the output, in both."""
    (row,) = outcome(GPT, tmp_path, "parallel.context_ranks=4", 'parallel.stages=["ddp"]', *changes).trained
    steps, blocks, micro_batches, size, batch, tokens, width = 2, 2, 4, 4, 2, 8, 16
    passes, found = steps * blocks * micro_batches, row.measured.traffic[1].by_collective
    ((name, calls),) = due.items()
    whole = batch * tokens * 4
    keys_and_values = 2 * whole * (width // 2 if changes == LLAMA else width)
    sent = {"shift": 3 * keys_and_values * (size - 1) // size,
            "all_to_all": 2 * 4 * whole * width // size * (size - 1) // size}
    assert found[f"context_{name}"].calls == passes * calls
    assert found[f"context_{name}"].sent_bytes == passes * sent[name]


def test_a_vocabulary_in_pieces_sends_three_numbers_of_each_position(tmp_path):
    (row,) = outcome(GPT, tmp_path, 'parallel.stages=["ddp"]', *VOCABULARY).trained
    passes, batch, tokens, width = 2 * 2, 2, 8, 16
    found = row.measured.traffic[0].by_collective
    assert found["tensor_all_gather"].sent_bytes == passes * 3 * batch * tokens * 4
    assert found["tensor_all_reduce"].sent_bytes == passes * (2 * 4 + 2) * batch * tokens * width * 4


def hidden_too_late(tokens, dtype):
    return np.triu(np.full((tokens, tokens), -np.inf, dtype), 2)


def rows_of_the_next(indices, *, empty, group, count):
    rows = np.subtract(indices, (group.place + 1) % group.size * count, out=empty(indices.shape, np.int64))
    np.copyto(rows, -1, where=(rows < 0) | (rows >= count))
    return rows


def untransposed(x, context):
    return reshape(x, shape=(x.shape[0], x.shape[1] // context.size, x.shape[2] * context.size))


def copied_twice(w, group):
    return {name: copy_to(copy_to(each, group=group), group=group) for name, each in w.items()}


@pytest.mark.parametrize(("module", "name", "wrong", "changes", "said"), [
    (ring_attention, "hidden", hidden_too_late, ["parallel.context_ranks=2"],
     "loss: not the value of the model in one piece"),
    (transformer, "own_rows", replace(own_rows, forward=rows_of_the_next), VOCABULARY, "loss: "),
    (parallel, "to_sequence", untransposed, ["parallel.context_ranks=2", ALL_TO_ALL], "loss: "),
    (transformer, "on_pieces", lambda w, group: w, ["parallel.context_ranks=2"],
     "lm_head.weight: place 1 and place 0 have different gradients"),
    (transformer, "on_pieces", copied_twice, ["parallel.context_ranks=2"],
     "lm_head.weight: 2 times the gradient of the model in one piece"),
])
def test_a_wrong_split_is_named(module, name, wrong, changes, said, tmp_path, monkeypatch):
    scenario = read(GPT, tmp_path, *changes)
    config = prepare(scenario, load_dataset(scenario)).rows[0]
    assert differences(config) == []
    monkeypatch.setattr(module, name, wrong)
    config = prepare(scenario, load_dataset(scenario)).rows[0]
    assert differences(config)[0].startswith(said)


@pytest.mark.parametrize(("changes", "message"), [
    (["parallel.expert_ranks=2"], "a transformer is split over tensor and context ranks; remove parallel.expert_ranks"),
    (["parallel.vocabulary_parallel=true", "parallel.tensor_ranks=2"], "must divide vocabulary = 65; set it to a"),
    (["parallel.context_ranks=4", "parallel.tensor_ranks=2", "world.ranks=8", ALL_TO_ALL], "the 8 ranks that cut"),
    (["parallel.context_ranks=2", "model.dropout=0.1"], "these ranks have pieces of them; set it to 0"),
])
def test_a_transformer_that_cannot_be_split_is_refused(changes, message, tmp_path):
    with pytest.raises(ScenarioError, match=message):
        outcome(GPT, tmp_path, *changes)


# P_a: kept inputs divided by the tensor ranks, with the bits, the bytes and the memory that are due.


KEPT = ["parallel.tensor_ranks=2", 'parallel.stages=["zero3"]', "parallel.recompute=[1, 2]"]
DIVIDED = [*KEPT, "parallel.partition_activations=true"]
OFFLOADED = [*DIVIDED, "parallel.offload_activations=true"]


def test_a_twelfth_of_the_traffic_halves_the_kept_inputs(tmp_path):
    whole, divided, offloaded = (
        outcome(GPT, tmp_path, *changes).trained[0].measured for changes in (KEPT, DIVIDED, OFFLOADED))
    inputs = 2 * 8 * 16 * 4                                        # b·s·h·w of a block
    sent, more, same = ({name: each.sent_bytes for name, each in row.traffic[0].by_collective.items()
                         if "tensor" in name} for row in (whole, divided, offloaded))
    assert more == same == sent | {"tensor_all_gather": sent["tensor_all_reduce"] // 12}
    assert more["tensor_all_gather"] == 2 * 2 * 2 * inputs // 2      # steps · micro-batches · blocks, (N − 1)/N of each
    assert sum(more.values()) < 1.1 * sum(sent.values())
    peaks = [row.memory[0].peak_bytes["activations"] for row in (whole, divided)]
    assert peaks[0] - peaks[1] == inputs // 2
    there = [row.memory[0].host_peak_bytes.get("activations", 0) for row in (divided, offloaded)]
    assert there == [0, 2 * inputs // 2]


def test_a_piece_of_a_different_rank_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr("zerosim.autograd.shelf.split", lambda flat, size: list(split(flat, size))[::-1])
    assert ("Stage III", "bits differ") in outcome(GPT, tmp_path, *DIVIDED).failures
