"""Runs of split models: what tables, traces, faults and refusals say of their ranks and places."""

import json

import pytest

from tests.pages import page_of
from tests.test_split_models import GPT, MLP
from tests.tracing import span_faults
from zerosim.cli import main
from zerosim.instruments.trace import COLLECTIVES, Tracer
from zerosim.show.document import read_trace

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
    said, page = capsys.readouterr().out, page_of(document)
    assert [words in said and words in page for words in due] == [True] * 3


def traced(tmp_path):
    _, document = run(GPT, tmp_path, *words(SPLIT, 'parallel.stages=["zero3"]'), "--trace", str(tmp_path / "t.json"))
    (row,) = document["stages"]
    return read_trace(row["trace"])


def test_collectives_of_a_model_are_not_hidden_behind_the_pass_that_waits_for_them(tmp_path, monkeypatch):
    found = traced(tmp_path)
    assert (span_faults(found), found.hidden) == ([], 0)
    assert any(span.what == "tensor_all_reduce" and span.lane == COLLECTIVES for span in found.steps[0].spans)

    def began(self, name, owner):
        self._open.collectives.append((name, owner, self._began_ns))

    monkeypatch.setattr(Tracer, "began", began)
    assert span_faults(traced(tmp_path))


@pytest.mark.parametrize(("rank", "index"), [(0, "[0, 3]"), (1, "[4, 3]")])
def test_a_flipped_weight_is_named_by_its_index_in_the_whole(rank, index, tmp_path, capsys):
    fault = f'fault=[{{kind="flip", rank={rank}, step=2, bit=96}}]'
    code, _ = run(MLP, tmp_path, *words(SPLIT, 'parallel.stages=["ddp"]', fault))
    assert code == 1
    assert f"after step 2, rank {rank} holds layers.0.weight{index} = " in " ".join(capsys.readouterr().out.split())


def test_a_fault_strikes_in_a_collective_of_the_model(tmp_path, capsys):
    fault = 'fault=[{kind="flip", rank=2, step=1, collective="tensor_all_reduce", bit=30}]'
    split = words(SPLIT, 'parallel.stages=["ddp"]', fault)
    assert run(MLP, tmp_path, *split)[0] == 1
    assert run(MLP, tmp_path, *split, *words("check.checksums=true"))[0] == 3
    assert "in the tensor_all_reduce of tape" in capsys.readouterr().err


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


def test_what_every_row_replaces_is_not_judged(tmp_path):
    every = 'variant=[{stage="ddp", tensor_ranks=1, shard_ranks=4}, {stage="zero1", tensor_ranks=4, shard_ranks=1}]'
    assert run(MLP, tmp_path, *words("parallel.tensor_ranks=2", "parallel.shard_ranks=4", every))[0] == 0


@pytest.mark.parametrize(("changes", "said"), [
    (["parallel.shard_ranks=4"], "parallel.shard_ranks = 4 does not divide 2 data ranks; give a divisor (1, 2), or 0"),
    (["parallel.shard_ranks=2", "parallel.replicas=2"], "is 4, but world.ranks / 2 that share a micro-batch is 2"),
    (["parallel.order=tree", "world.ranks=6", "train.micro_batches=6"], "for world.ranks / 2 that share each and"),
    (["parallel.bucket_mb=0.000001"], "hold an element for each of 2 data ranks, 16 bytes"),
    (["parallel.reduce_scatter=halving", "world.ranks=6", "train.micro_batches=6"], "not 3 data ranks; use a"),
])
def test_refusals_count_data_ranks(changes, said, tmp_path, capsys):
    assert run(MLP, tmp_path, *words(SPLIT, *changes))[0] == 2
    assert said in capsys.readouterr().err
