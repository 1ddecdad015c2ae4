"""The fastest layouts of a search, against all layouts planned one by one."""

import json
import re

import pytest

import zerosim as zs
from tests.pages import refused
from tests.sampling import one_in
from zerosim.commands.cli import main
from zerosim.core.errors import UsageError, ZerosimError
from zerosim.plan import search
from zerosim.plan.planned_row import PlannedRow
from zerosim.plan.reading import scenario_of
from zerosim.plan.search import fastest, layouts_of, least_bytes_and_seconds, space, written

PINNED = {f"parallel.{name}": 1 for name in (
    "tensor_ranks", "pipeline_ranks", "model_chunks", "context_ranks", "expert_ranks")}
SMALL = {"model.layers": 1, "model.sequence": 2048, "world.ranks": 16, "train.micro_batches": 32,
         "check.mfu": [], "check.fits": [], "check.does_not_fit": [],
         "cluster.between": {"latency_us": 5, "gigabytes_per_second": 20}}
CASES = [
    {"cluster.figures": {"memory": 25e9}, "model.sequence": 4096, "train.micro_batches": 64,
     "cluster.between": {"latency_us": 5, "gigabytes_per_second": 200}},
    {"cluster.figures": {"memory": 15.5e9}, "parallel.overlap": False, "train.micro_batches": 16},
    {"cluster.figures": {"memory": 17.5e9}, "parallel.param_dtype": "bf16", "train.precision": "fp32",
     "parallel.accumulation": "micro_batch", "train.clip_norm": 1.0, "parallel.stages": ["zero3"]},
    {"cluster.figures": {"memory": 9e9}, "cluster.software": "eager", "parallel.offload_activations": True,
     "parallel.recompute": True, "parallel.offload_optimizer": "host", "parallel.shard_ranks": 0},
    {"cluster.figures": {"memory": 12e9}, "parallel.stages": ["zero1"], "parallel.shard_ranks": 0, "model.layers": 3,
     "parallel.schedule": "zb_h1", "parallel.tensor_ranks": [1, 4], "parallel.pipeline_ranks": [1, 4],
     "parallel.recompute": False},
    {"cluster.figures": {"memory": 18e9}, "parallel.quantized_gradients": "int8", "parallel.quantized_weights": "int8",
     "parallel.shard_ranks": 0, "parallel.secondary_ranks": 0},
    {"cluster.figures": {"memory": 9.7e9}, "cluster.software": "fused", "parallel.shard_ranks": 0,
     "model.kind": "mixture", "model.experts": 4, "model.experts_per_token": 2, "model.sequence": 512,
     "model.queue_tokens": 256, "parallel.expert_ranks": [1, 2, 4], "parallel.context_ranks": [1, 2],
     "parallel.recompute": False, **{f"cluster.{link}": {"latency_us": 1, "gigabytes_per_second": 5000}
                                     for link in ("inside", "between")}},
    {"cluster.figures": {"memory": 10e9}, "parallel.stages": ["zero1"], "parallel.shard_ranks": 0, "model.layers": 6,
     "parallel.pipeline_ranks": [1, 2, 4], "parallel.model_chunks": [1, 2], "parallel.recompute": False},
    {"cluster.figures": {"memory": 15.4e9}, "parallel.shard_ranks": 0, "model.kind": "mixture", "model.experts": 4,
     "model.experts_per_token": 2, "parallel.expert_ranks": [1, 2, 4],
     "parallel.stages": ["zero1"], "parallel.tensor_ranks": [1, 2]},
    {"cluster.figures": {"memory": 30e9}, "parallel.shard_ranks": 0, "model.kind": "mixture", "model.experts": 2,
     "model.layers": 8, "model.dense_layers": 2, "model.dense_inner": 4096, "model.width": 1024, "model.heads": 8,
     "model.key_value_heads": 0, "model.inner": 1024, "parallel.stages": ["zero1"], "parallel.pipeline_ranks": [1, 2],
     "parallel.accumulation": "boundary"},
]


def layouts(changes):
    tried = {key: changes[key] for key in PINNED if key in changes}
    scenario = scenario_of("llama3_8b", SMALL | {key: value for key, value in changes.items() if key not in tried})
    values = {key: found for key, found in space(scenario).items() if key not in (PINNED | changes)} | tried
    return [*layouts_of(scenario, values).values()]


@pytest.mark.parametrize("changes", one_in(5, CASES), ids=range(len(CASES)))
def test_the_fastest_layouts_are_those_of_an_exhaustive_search_and_none_is_below_its_bounds(changes):
    found = layouts(changes)
    rows, known = [layout.planned() for layout in found], {}
    assert len({row.name for row in rows}) == len(rows) > 7
    for layout, row in zip(found, rows, strict=True):
        bytes_, seconds = least_bytes_and_seconds(layout, known)
        assert bytes_ <= row.peak_bytes, row.name
        assert seconds <= row.step_seconds, row.name
    seconds = sorted(row.step_seconds for row in rows if row.fits)
    for most in (1, 5, 10**6):
        searched = fastest(found, most)
        assert [row.step_seconds for row in searched.rows] == seconds[:most] != []
        assert searched.planned + searched.too_large + searched.slower == searched.layouts == len(rows)
        assert searched.planned < len(rows) or not searched.slower + searched.too_large


@pytest.mark.parametrize("more", [(0, 9), (1e12, 0)])
def test_a_bound_that_is_too_high_loses_a_layout(more, monkeypatch):
    found = layouts(CASES[0] | {"parallel.secondary_ranks": 0, "parallel.shard_ranks": 0})
    right, proved = fastest(found, 1).rows[0].layout, least_bytes_and_seconds
    assert fastest(found, 1).slower > 0
    monkeypatch.setattr(search, "least_bytes_and_seconds", lambda row, known: tuple(
        bound + wrong * (row.layout == right) for bound, wrong in zip(proved(row, known), more, strict=True)))
    assert fastest(found, 1).rows[0].layout != right


@pytest.mark.parametrize("changes", CASES, ids=range(len(CASES)))
def test_what_is_plainly_no_layout_is_none_and_nothing_else(changes, monkeypatch):
    few = {layout.layout for layout in layouts(changes)}
    monkeypatch.setattr(search, "is_none", lambda *given: False)
    assert {layout.layout for layout in layouts(changes)} == few


def test_a_refused_layout_only_drops_out(monkeypatch):
    found, planned = layouts(CASES[4]), PlannedRow.planned
    first, second = fastest(found, 2).rows

    def refused(self):
        if self.layout in names:
            raise UsageError(self.layout)
        return planned(self)

    names = {first.layout}
    monkeypatch.setattr(PlannedRow, "planned", refused)
    searched = fastest(found, 1)
    assert ([row.layout for row in searched.rows], searched.layouts) == ([second.layout], len(found) - 1)
    names = {each.layout for each in found}
    with pytest.raises(UsageError):
        fastest(found[:3], 1)


def test_a_layout_is_there_once_and_all_have_one_batch():
    scenario = scenario_of("llama3_8b", SMALL | {"parallel.stages": ["zero2"]})
    assert len(layouts_of(scenario, {"parallel.shard_ranks": [0, 8, 16]})) == 2
    scenario = scenario_of("llama3_8b", SMALL | {"world.ranks": 8})
    found = layouts_of(scenario, {"parallel.tensor_ranks": [4, 8], "parallel.stages": [["ddp"], ["zero1"]]}).values()
    assert [each.layout for each in found] == ["tp4 × DDP on 2, mb1", "tp4 × Stage I on 2, mb1", "tp8 × DDP on 1, mb1"]
    assert {each.config.samples for each in layouts(CASES[-2] | {"train.micro_batches": 8, "world.ranks": 8})} == {8}


@pytest.mark.parametrize(("swept", "rows"), [
    ({"parallel.schedule": ["1f1b", "zb_h1"]}, [
        "DDP on 2, mb1", "pp2 × DDP on 1, mb1, model_chunks 2",
        *(f"pp2 × DDP on 1, mb1, parallel.schedule={name}" for name in ("1f1b", "zb_h1"))]),
    ({"cluster.reserve": [0, 0.1]}, [
        f"{name}, cluster.reserve={reserve}" for name in (
            "DDP on 2, mb1", "pp2 × DDP on 1, mb1", "pp2 × DDP on 1, mb1, model_chunks 2") for reserve in (0, 0.1)]),
])
def test_a_swept_value_without_effect_makes_no_layout_of_its_own(swept, rows):
    """A schedule has none without a pipeline, and several chunks have their own: it is neither listed twice nor named.
    """
    keys = {key: value for key, value in (SMALL | PINNED).items() if key not in (
        "parallel.pipeline_ranks", "parallel.model_chunks")} | {
        "world.ranks": 2, "model.layers": 4, "cluster.figures": {"memory": 200e9}, "parallel.stages": ["ddp"],
        "parallel.recompute": False, "parallel.shard_ranks": 0, "train.micro_batch": 1}
    found = zs.plan("llama3_8b", search="all", sweep=swept, set=keys)
    assert sorted(row.layout for row in found.subject.rows) == sorted(rows)


def test_a_search_at_the_prompt_and_on_the_command_line_is_the_same(capsys):
    changes = SMALL | CASES[0] | {"parallel.stages": ["zero2"], "parallel.accumulation": "boundary"} | PINNED
    found = zs.plan("llama3_8b", set=changes, search=3)
    words = [word for key, value in changes.items() for word in ("--set", f"{key}={written(value)}")]
    assert main(["plan", "llama3_8b", *words, "--search", "3", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rows"] == found.subject.document()["rows"]
    assert "parallel.stages" not in document["rows"][0]["swept"]
    again = zs.plan("llama3_8b", set=changes | document["rows"][0]["swept"] | {
        "train.micro_batches": 64 // int(document["rows"][0]["swept"]["train.micro_batch"])}).subject.rows[0]
    assert again.step_seconds == document["rows"][0]["step_seconds"]
    assert main(["plan", "llama3_8b", *words, "--search", "--devices", "16,32"]) == 0
    said, progress = (" ".join(each.split()) for each in capsys.readouterr())
    assert re.fullmatch(r"Searching \d+ layouts on 16 devices Searching \d+ layouts on 32 devices", progress)
    assert re.search("layouts: .* by proved bounds .* fastest: Stage II on ", said)


def test_chunks_are_interleaved_and_experts_share_a_micro_batch_of_as_many_samples_each():
    found = [each.config for each in (*layouts(CASES[-3]), *layouts(CASES[-2]))]
    assert {(row.parallel.model_chunks, row.parallel.schedule) for row in found} == {
        (1, "1f1b"), (2, "interleaved_1f1b")}
    assert {row.train.micro_batch // row.parallel.expert_ranks for row in found if row.parallel.expert_ranks > 1} == {
        1, 2, 4}
    with pytest.raises(ZerosimError, match=r"must be a multiple of parallel\.expert_ranks = 2"):
        zs.plan("llama3_8b", set=SMALL | {"model.kind": "mixture", "parallel.expert_ranks": 2})


@pytest.mark.parametrize(("queue", "pieces"), [(0, False), (1024, True)])
def test_sequences_of_a_mixture_are_in_pieces_only_with_queues_for_them(queue, pieces):
    keys = {key: value for key, value in (SMALL | PINNED).items() if key != "parallel.tensor_ranks"} | {
        "model.kind": "mixture", "model.experts": 2, "model.queue_tokens": queue, "parallel.stages": ["zero1"],
        "world.ranks": 2, "train.micro_batches": 2, "train.micro_batch": 1, "parallel.accumulation": "boundary"}
    found = zs.plan("llama3_8b", set=keys, search="all").subject
    assert any(row.config.parallel.sequence_parallel for row in found.rows) == pieces
    assert ("sequences stay in one piece: set model.queue_tokens" in found.search) != pieces


def test_what_nothing_fits_is_advised_when_it_is_asked_for(monkeypatch):
    found = zs.plan("llama3_8b", set=SMALL | {"cluster.figures": {"memory": 4e9}} | PINNED, search=2).subject
    assert (found.best, len(found.rows), "advice" in vars(found)) == (None, 1, False)
    monkeypatch.setattr(search, "space", lambda scenario: {"parallel.stages": [["zero3"]], "train.micro_batch": [1]})
    assert found.advice.startswith("It fits on ")


def test_combinations_of_a_sweep_that_cannot_be_are_left_out_and_said():
    keys = SMALL | {"model.layers": 2, "train.micro_batch": 1, "parallel.recompute": True, "parallel.tensor_ranks": 1,
                    "parallel.accumulation": "boundary", "parallel.shard_ranks": 0}
    sweep = {"parallel.stages": [["zero1"], ["zero3"]], "parallel.pipeline_ranks": [1, 2]}
    found = zs.plan("llama3_8b", set=keys, search=3, sweep=sweep).subject
    assert {row.config.stage_key for row in found.rows} >= {"zero1"}
    assert "1 combinations of the sweep are left out: --sweep parallel.stages=" in found.search


@pytest.mark.parametrize(("words", "line"), [
    ("llama3_8b --search none", "search: found 'none'; give a number of layouts from 1, or all"),
    ("llama3_8b --search 0", "search: found '0'"), ("pipeline --search", "[[variant]]; use one without"),
    ("llama3_8b --search --sweep train.micro_batch=3", "micro-batches of 3 do not make a batch of 64"),
    ("llama3_8b --search --sweep train.micro_batch=two", "micro_batch"),
    ("llama3_8b --search --sweep parallel.stagse=zero1", "stagse"),
])
def test_a_search_that_cannot_be_is_one_line(words, line, capsys):
    assert line in refused(capsys, "plan", *words.split())
