"""What people ask of a plan: what would fit, and configurations of others."""

import csv
import io
import json
import re

import pytest

from tests.pages import refused
from zerosim.commands.cli import main
from zerosim.plan import foreign
from zerosim.plan.planning import planned
from zerosim.plan.reading import read_plan, task_of
from zerosim.show.plan_table import csv_of, sentence

LLAMA = "llama3_8b"
SMALL = {"model.layers": 2, "check.mfu": [], "check.fits": [], "check.does_not_fit": []}


def test_a_table_has_a_column_for_each_swept_key(tmp_path):
    found = read_plan(LLAMA, [8], SMALL, {"train.micro_batch": [1, 2], "parallel.recompute": [True, False]})
    rows = list(csv.DictReader(io.StringIO(csv_of(found))))
    assert len(rows) == len(found.rows) == 16
    assert {(row["train.micro_batch"], row["parallel.recompute"]) for row in rows} == {
        (size, again) for size in "12" for again in ("true", "false")}
    assert "swept" not in rows[0]
    for line, row in zip(rows, found.rows, strict=True):
        assert float(line["step_seconds"]) == row.step_seconds
        assert int(line["peak_bytes"]) == row.peak_bytes
    assert main(["plan", LLAMA, "--set", "model.layers=2", "--csv", str(tmp_path / "a.csv")]) == 0
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 5


# What would make a row fit.

TOO_MUCH = SMALL | {"cluster.device": '"a100_40gb"', "model.layers": 8, "train.micro_batch": 16,
                    "parallel.recompute": False, "parallel.stages": ["zero2"]}


@pytest.mark.long
@pytest.mark.parametrize("changes", [{}, {"model.layers": 32}, {"train.micro_batch": 2}, {
    "parallel.recompute": True, "train.micro_batch": 1, "model.layers": 120}])
def test_every_change_that_is_named_makes_a_row_fit_and_none_is_too_much(changes):
    found = read_plan(LLAMA, [8], TOO_MUCH | changes, {})
    assert found.best is None
    name, _, advice = found.advice.partition(": it would fit with ")
    assert name == "Stage II"
    prices = re.findall(r"\"host\" \(([\d.]+ GB of host memory for each device, [\d.]+ m?s a step)\)", advice)
    assert len(prices) == advice.count("offload_optimizer")
    advice = re.sub(r" \(.*?\)", "", advice)
    together = " and " in advice
    keys = [["parallel.stages", '["zero3"]'] if words == "Stage III" else words.split(" = ")
            for words in advice.replace(" and ", " or ").replace(", ", " or ").split(" or ")]
    assert keys
    tried = [dict(keys)] if together else [dict([each]) for each in keys]
    for each in tried:
        assert read_plan(LLAMA, [8], TOO_MUCH | changes | each, {}).best is not None
        for left_out in each:
            rest = {key: value for key, value in each.items() if key != left_out}
            assert read_plan(LLAMA, [8], TOO_MUCH | changes | rest, {}).best is None
    sizes = [int(value) for key, value in keys if key == "train.micro_batch"]
    assert all(size >= 1 for size in sizes)


@pytest.mark.long
def test_of_what_never_fits_that_is_said():
    found = read_plan(LLAMA, [8], TOO_MUCH | {"model.layers": 1, "model.width": 131_072}, {})
    assert found.advice.endswith(
        "no supported change makes it fit; use a smaller model or a device with more memory")


def test_a_row_has_the_scenario_of_itself_alone():
    found = read_plan(LLAMA, [8], SMALL, {"train.micro_batch": [1, 2]})
    for row in found.rows:
        (again,) = planned(row.scenario, (), task_of)
        assert (again.peak_bytes, again.step_seconds) == (row.peak_bytes, row.step_seconds)


def test_the_fewest_devices_that_fit_are_named_beside_the_fastest():
    """`docs/planning.md` has a plan whose fastest row is on more devices."""
    keys = {"parallel.stages": ["zero3"], "cluster.figures": {"memory": 12e9}}
    found, one = (read_plan(LLAMA, ranks, SMALL | keys, {}) for ranks in ([8, 16, 64], [64]))
    assert sentence(found).startswith("Fewest devices that fit, and fastest: Stage III on 16, ")
    assert (found.document()["fewest_ranks"], found.fewest) == (16, found.best)
    assert sentence(one).startswith("Best that fits: Stage III, ")
    assert read_plan(LLAMA, [8], SMALL | keys, {}).document()["fewest_ranks"] is None


# Configurations of others.

HUGGING_FACE = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 8192,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}


@pytest.fixture
def written(tmp_path):
    def written(found):
        path = tmp_path / "config.json"
        path.write_text(found if isinstance(found, str) else json.dumps(found))
        return str(path)

    return written


@pytest.mark.parametrize(("config", "parameters"), [(HUGGING_FACE, 8_030_261_248), (GPT2, 124_439_808)])
def test_a_config_of_hugging_face_has_the_parameters_that_are_published(config, parameters, written):
    """Published: 8.03B of Meta-Llama-3-8B, 124M of gpt2, as their pages count the weights in their files."""
    keys = foreign.hugging_face(written(config)).keys
    found = read_plan(LLAMA, [8], SMALL | {"model.layers": 0} | keys, {})
    assert found.rows[0].config.model.count == parameters


def test_a_config_is_planned_without_a_scenario_on_any_scenario_and_counted(written, capsys):
    config = written(GPT2)
    assert main(["plan", "--model", config, "--ranks", "8"]) == 0
    assert "124,439,808 parameters" in capsys.readouterr().out
    set_of_16 = ["--set", "parallel.context_ranks=16", "--set", 'parallel.stages=["zero1"]']
    assert main(["plan", "--model", config, "--ranks", "16", *set_of_16]) == 0      # not on the 8 ranks without --ranks
    assert "over context ranks" in capsys.readouterr().out
    assert main(["plan", "zero3", "--model", config, "--set", "cluster.device=h100_80gb"]) == 0
    assert "124,439,808 parameters" in capsys.readouterr().out
    assert main(["memory", "--model", config, "--ranks", "8,16", "--json", "-"]) == 0
    each = json.loads(capsys.readouterr().out)["each"]
    assert [(found["parameters"], found["ranks"]) for found in each] == [(124_439_808, 8), (124_439_808, 16)]
    assert main(["memory", "--model", config, "--ranks", "8,16"]) == 0
    assert re.search(r"\n +8 ranks +16 ranks\n +GB +GB\nDDP +1.99 +1.99\n", capsys.readouterr().out)
    for words, line in [([config], f"use --model {config}"), ([], "name a scenario, such as llama3_8b, or give")]:
        assert line in refused(capsys, "plan", *words)


@pytest.mark.parametrize(("config", "words"), [
    (HUGGING_FACE | {"model_type": "mamba"}, "has model_type 'mamba'; zerosim has gpt2, llama, mistral"),
    (HUGGING_FACE | {"hidden_size": "wide"}, "hidden_size must be an integer of at least 1"),
    ({"model_type": "llama"}, "num_hidden_layers must be an integer of at least 1 and at most 1000, found none"),
    ("[1]", "has no JSON object"), ("{", "is not JSON"), ("[" * 100_000, "is not JSON")])
def test_what_is_no_config_is_refused_in_one_line(config, words, written, capsys):
    assert words in refused(capsys, "plan", LLAMA, "--model", written(config))


DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "bf16": {"enabled": True},
    "gradient_clipping": 1.0, "optimizer": {"type": "Adam", "params": {"lr": 1e-4}}, "flops_profiler": {},
    "zero_optimization": {
        "stage": 3, "reduce_bucket_size": 500_000_000,
        "overlap_comm": True, "zero_hpz_partition_size": 8, "zero_quantized_weights": True,
        "offload_optimizer": {"device": "cpu"}}}


def test_a_configuration_of_deepspeed_is_read_and_what_is_not_is_said(written):
    found = foreign.deepspeed(written(DEEPSPEED), ranks=16)
    assert found.keys == {
        "parallel.stages": ["zero3"], "parallel.quantized_weights": "int8", "train.micro_batch": 2,
        "train.micro_batches": 64, "train.clip_norm": 1.0,
        "train.precision": "bf16", "parallel.overlap": True, "parallel.secondary_ranks": 8, "parallel.prefetch": True,
        "parallel.offload_optimizer": "host", "train.optimizer": "adamw"}
    assert found.unread == ["zero_optimization.reduce_bucket_size", "flops_profiler"]
    (row,) = read_plan(LLAMA, [16], SMALL | {"world.ranks": 16} | found.keys, {}).rows
    assert (row.config.stage_key, row.config.block) == ("zero3", 4)


@pytest.mark.parametrize(("changes", "key", "value"), [
    ({"zero_optimization": {"stage": 1}}, "parallel.stages", ["zero1"]), ({"zero_optimization": {}}, "parallel.stages",
                                                                          ["ddp"]),
    ({"fp16": {"enabled": True}, "bf16": {}}, "train.precision", "fp16"),
    ({"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}, "train.optimizer", "adam"),
    ({"zero_optimization": {"stage": 3, "mics_shard_size": 4}}, "parallel.shard_ranks", 4)])
def test_each_key_of_deepspeed_s_has_its_own(changes, key, value, written):
    assert foreign.deepspeed(written(DEEPSPEED | changes), ranks=16).keys[key] == value


def test_what_deepspeed_leaves_to_the_trainer_is_left_to_the_scenario(written):
    auto = {"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto", "optimizer": {"type": "auto"}}
    keys = foreign.deepspeed(written(auto), ranks=2).keys
    assert keys == {"parallel.stages": ["ddp"]}


@pytest.mark.parametrize(("stage", "keys", "unread"), [
    (3, {"parallel.offload_optimizer": "host", "parallel.offload_parameters": "host"}, []),
    (2, {"parallel.offload_optimizer": "host"}, ["zero_optimization.offload_param"])])
def test_what_deepspeed_offloads_is_planned_where_the_stage_can(written, stage, keys, unread):
    said = {"stage": stage, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    found = foreign.deepspeed(written({"zero_optimization": said}), 2)
    assert {key: value for key, value in found.keys.items() if "offload" in key} == keys
    assert found.unread == unread


def test_what_fsdp_says_and_no_plan_has_is_said(written):
    found = foreign.fsdp(written({"fsdp_offload_params": True, "fsdp_forward_prefetch": True}), 16, 8)
    assert found.unread == ["forward_prefetch"]
    assert [found.keys[f"parallel.offload_{what}"] for what in ("optimizer", "parameters")] == ["host", "host"]


def test_rows_of_a_scenario_do_not_hide_the_stage_of_a_file(written, tmp_path, capsys):
    (tmp_path / "rows.toml").write_text('[[variant]]\nstage = "zero1"\n')
    line = refused(capsys, "plan", tmp_path / "rows.toml", "--ds-config", written(DEEPSPEED))
    assert "has rows of its own, [[variant]], which override the stage" in line


@pytest.mark.parametrize(("changes", "words"), [
    ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage 4; give 0, 1, 2 or 3"),
    ({"train_micro_batch_size_per_gpu": 0}, "train_micro_batch_size_per_gpu must be an integer of at least 1"),
    ({"zero_optimization": 3}, "zero_optimization must be a table of keys, found 3")])
def test_a_wrong_value_of_deepspeed_s_is_one_line(changes, words, written, capsys):
    assert words in refused(capsys, "plan", LLAMA, "--ds-config", written(DEEPSPEED | changes))


@pytest.mark.parametrize(("config", "keys"), [
    ({"fsdp_sharding_strategy": "FULL_SHARD", "fsdp_activation_checkpointing": True},
     {"parallel.stages": ["zero3"], "parallel.reshard_after_forward": True, "parallel.prefetch": True,
      "parallel.overlap": True, "parallel.recompute": True}),
    ({"fsdp_config": {"fsdp_sharding_strategy": "HYBRID_SHARD", "backward_prefetch": "NO_PREFETCH"}},
     {"parallel.stages": ["zero3"], "parallel.reshard_after_forward": True, "parallel.prefetch": False,
      "parallel.overlap": True, "parallel.shard_ranks": 8}),
    ({"fsdp_config": {"fsdp_sharding_strategy": "x"}, "fsdp_sharding_strategy": "SHARD_GRAD_OP"},
     {"parallel.stages": ["zero3"], "parallel.reshard_after_forward": False, "parallel.prefetch": False,
      "parallel.overlap": True}),
    ({"reshard_after_forward": "NO_SHARD"}, {"parallel.stages": ["ddp"]})])
def test_the_keys_of_fsdp_are_read(config, keys, written):
    assert foreign.fsdp(written(config), ranks=16, per_host=8).keys == keys


@pytest.mark.parametrize(("words", "group"), [([], 16), (["--set", "parallel.tensor_ranks=2"], 8)])
def test_deepspeed_accumulates_on_each_data_rank(words, group, written, monkeypatch):
    plans = []
    monkeypatch.setattr("zerosim.commands.plan.show_plan", lambda console, plan: plans.append(plan))
    assert main(["plan", LLAMA, "--ds-config", written({"gradient_accumulation_steps": 3}), "--ranks", "16", *words,
                 "--set", "check.mfu=[]", "--set", "model.layers=1"]) == 0
    (row,) = plans[0].rows
    assert (row.config.block, row.config.mesh.group) == (3, group)


def test_a_plan_from_files_of_others_alone(written, tmp_path, capsys):
    config = written(HUGGING_FACE | {"num_hidden_layers": 2, "sliding_window": 4096})
    settings = tmp_path / "ds.json"
    settings.write_text(json.dumps(DEEPSPEED | {"zero_optimization": {"stage": 2}}))
    assert main(["plan", LLAMA, "--model", config, "--ds-config", str(settings), "--ranks", "16", "--set",
                 "model.sequence=2048", "--set", "check.mfu=[]"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Not planned: sliding_window = 4096 and flops_profiler" in said
    assert "Llama-shaped transformer of 2 blocks, width 4096" in said
    assert "Stage II" in said
    assert "Stage III" not in said.partition("Scenario checks skipped")[0]


def test_hybrid_sharding_of_a_file_is_planned_on_the_ranks_that_are_asked_for(written, capsys):
    path = written({"sharding_strategy": "HYBRID_SHARD"})
    assert main(["plan", "mpt_7b", "--fsdp-config", path, "--ranks", "16", "--set", "world.ranks=8", "--set",
                 "model.layers=2", "--set", "check.mfu=[]"]) == 0
    assert "parallel.shard_ranks = 8" in " ".join(capsys.readouterr().out.split())
