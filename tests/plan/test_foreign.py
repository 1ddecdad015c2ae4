"""Advice on what would fit, tables of sweeps, and configurations of other projects."""

import csv
import io
import json
import re
from dataclasses import replace

import pytest

from tests.pages import refused
from zerosim.commands.cli import main
from zerosim.plan import foreign
from zerosim.plan.planned_row import rows_of
from zerosim.plan.reading import read_plan
from zerosim.show import plan as shown
from zerosim.show.plan import csv_of

LLAMA = "llama3_8b"
SMALL = {"model.layers": 2, "check.mfu": [], "check.fits": [], "check.does_not_fit": []}


def test_a_table_has_a_column_for_each_swept_key_and_a_row_the_scenario_of_itself_alone(tmp_path):
    plan = read_plan(LLAMA, [8], SMALL, {"train.micro_batch": [1, 2], "parallel.recompute": [True, False]})
    rows = list(csv.DictReader(io.StringIO(csv_of(plan))))
    assert {(row["train.micro_batch"], row["parallel.recompute"]) for row in rows} == {
        (size, again) for size in "12" for again in ("true", "false")}
    assert "swept" not in rows[0]
    for line, row in zip(rows, plan.rows, strict=True):
        (again,) = rows_of(row.alone)
        assert again.step_seconds == row.step_seconds == float(line["step_seconds"])
        assert again.peak_bytes == row.peak_bytes == int(line["peak_bytes"])
    assert main(["plan", LLAMA, "--set", "model.layers=2", "--csv", str(tmp_path / "a.csv")]) == 0
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 5
    swept = [replace(row, swept=("a.b=1",) * (row is plan.rows[1])) for row in plan.rows]  # as a search sets some keys
    rows = list(csv.DictReader(io.StringIO(csv_of(replace(plan, rows=tuple(swept))))))
    assert [row["a.b"] for row in rows[:3]] == ["", "1", ""]


# What would make a row fit.

TOO_MUCH = SMALL | {"cluster.device": '"a100_40gb"', "model.layers": 8, "train.micro_batch": 16,
                    "parallel.recompute": False, "parallel.stages": ["zero2"]}


@pytest.mark.parametrize("changes", [
    {}, pytest.param({"model.width": 16384, "model.layers": 12}, marks=pytest.mark.long)])
def test_advice_names_a_layout_that_fits_with_the_keys_that_it_says(changes):
    plan = read_plan(LLAMA, [8], TOO_MUCH | changes, {})
    assert plan.best is None
    found = re.fullmatch(
        r"It fits on (\d+) devices as (.+?): ([\d,.]+) GB.*, .+ a step\. Set (.+)\. It is .*", plan.advice)
    assert found, plan.advice
    keys = dict(words.split("=", 1) for words in found[4].split(" "))
    assert int(found[1]) == int(keys.get("world.ranks", 8))
    (row,) = read_plan(LLAMA, [], TOO_MUCH | changes | {"world.ranks": 8, "train.micro_batches": 8} | keys, {}).rows
    assert (row.fits, f"{row.peak_bytes / 1e9:,.1f}") == (True, found[3])


@pytest.mark.long
def test_of_what_never_fits_it_is_said_what_was_tried():
    plan = read_plan(LLAMA, [1], TOO_MUCH | {"model.layers": 2, "model.width": 131_072, "world.ranks": 1}, {})
    assert re.match(r"None of [\d,]+ layouts fits on up to 16 devices: stages, tensor, context", plan.advice)


def test_the_fewest_devices_that_fit_are_named_beside_the_fastest():
    """`docs/planning.md` has a plan whose fastest row is on more devices."""
    keys = {"parallel.stages": ["zero3"], "cluster.figures": {"memory": 12e9}}
    several, one = (read_plan(LLAMA, ranks, SMALL | keys, {}) for ranks in ([8, 16, 64], [64]))
    assert several.verdict.startswith("Fewest devices that fit, and fastest: Stage III on 16, ")
    assert (several.document()["fewest_ranks"], several.fewest) == (16, several.best)
    assert one.verdict.startswith("Best that fits: Stage III, ")
    assert read_plan(LLAMA, [8], SMALL | keys, {}).fewest is None


# Configurations of others.

HUGGING_FACE = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 8192,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}


@pytest.fixture
def written(tmp_path):
    def written(content, name="config.json"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return written


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
    assert [(document["parameters"], document["ranks"]) for document in each] == [(124_439_808, 8), (124_439_808, 16)]
    assert main(["memory", "--model", config, "--ranks", "8,16"]) == 0
    assert re.search(r"\n +8 ranks +16 ranks\n +GB +GB\nDDP +1.99 +1.99\n", capsys.readouterr().out)
    for words, line in [([config], f"use --model {config}"), ([], "name a scenario, such as llama3_8b, or give")]:
        assert line in refused(capsys, "plan", *words)


ZERO = {"stage": 3, "reduce_bucket_size": 500_000_000, "overlap_comm": True, "zero_hpz_partition_size": 8,
        "zero_quantized_weights": True, "mics_shard_size": -1, "offload_optimizer": {"device": "cpu"}}
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "bf16": {"enabled": True},
    "gradient_clipping": 1.0, "optimizer": {"type": "Adam", "params": {"lr": 1e-4}},
    "flops_profiler": {"enabled": True}, "zero_optimization": ZERO}


def test_a_configuration_of_deepspeed_is_read_and_what_is_not_is_said(written):
    read = foreign.deepspeed(written(DEEPSPEED), ranks=16)
    assert read.keys == {
        "parallel.stages": ["zero3"], "parallel.quantized_weights": "int8", "train.micro_batch": 2,
        "train.micro_batches": 64, "train.clip_norm": 1.0,
        "train.precision": "bf16", "parallel.overlap": True, "parallel.secondary_ranks": 8, "parallel.prefetch": True,
        "parallel.offload_optimizer": "host", "train.optimizer": "adamw", "parallel.accumulation": "micro_batch",
        "cluster.bucket_elements": 500_000_000, "cluster.live_parameters": 1_000_000_000}
    assert {*read.unread} == {"flops_profiler.enabled = True"}
    (row,) = read_plan(LLAMA, [16], SMALL | {"world.ranks": 16} | read.keys, {}).rows
    assert (row.config.stage_key, row.config.block) == ("zero3", 4)


@pytest.mark.parametrize(("changes", "key", "value"), [
    ({"zero_optimization": {"stage": 1}}, "parallel.stages", ["zero1"]),
    ({"zero_optimization": {}}, "parallel.stages", ["ddp"]),
    ({"fp16": {"enabled": True}, "bf16": {}}, "train.precision", "fp16"),
    ({"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}, "train.optimizer", "adam"),
    ({"train_batch_size": 96, "gradient_accumulation_steps": "auto"}, "train.micro_batches", 48),
    ({"optimizer": {"type": "auto"}, "gradient_clipping": "auto"}, "train.optimizer", None),
    ({"zero_optimization": {"stage": 3, "mics_shard_size": 4}}, "parallel.shard_ranks", 4),
    ({"zero_optimization": {"stage": 2}}, "parallel.accumulation", "micro_batch"),
    ({"zero_optimization": {"stage": 1}}, "parallel.accumulation", None),
    ({"zero_optimization": {"stage": 3, "stage3_max_live_parameters": 1e6}}, "cluster.live_parameters", 10**6),
    ({"zero_optimization": {"stage": 2, "reduce_bucket_size": 7}}, "cluster.bucket_elements", 7),
    ({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}, "parallel.offload_parameters", "host"),
    ({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, "parallel.offload_parameters", None),
])
def test_each_key_of_deepspeed_s_has_its_own(changes, key, value, written):
    read = foreign.deepspeed(written(DEEPSPEED | changes), ranks=16)
    assert read.keys.get(key) == value
    assert ("zero_optimization.offload_param.device = cpu" in read.unread) == ("offload" in key and value is None)


@pytest.mark.parametrize(("flag", "config", "words"), [
    ("--ds-config", DEEPSPEED | {"zero_optimization": {"stage": 4}}, "zero_optimization.stage 4; give 0, 1, 2 or 3"),
    ("--ds-config", DEEPSPEED | {"zero_optimization": {"stage": 2.0}}, "zero_optimization.stage 2.0; give 0, 1, 2 or"),
    ("--ds-config", DEEPSPEED | {"train_micro_batch_size_per_gpu": 0},
     "train_micro_batch_size_per_gpu must be an integer of at least 1"),
    ("--ds-config", DEEPSPEED | {"train_batch_size": 72, "gradient_accumulation_steps": "auto"},
     "64 ranks cannot share train_batch_size 72"),
    ("--ds-config", DEEPSPEED | {"zero_optimization": 3}, "zero_optimization must be a table of keys, found 3"),
    ("--model", HUGGING_FACE | {"model_type": "mamba"}, "has model_type 'mamba'; zerosim has gpt2, llama, mistral"),
    ("--model", HUGGING_FACE | {"hidden_size": "wide"}, "hidden_size must be an integer of at least 1"),
    ("--model", HUGGING_FACE | {"num_attention_heads": 7}, "num_attention_heads: model.heads: 7 heads must divide"),
    ("--model", {"model_type": "llama"}, "num_hidden_layers must be an integer of at least 1 and at most 1000, found"),
    ("--model", "[1]", "has no JSON object"), ("--model", "[" * 100_000, "is not JSON")])
def test_what_is_no_configuration_is_refused_in_one_line(flag, config, words, written, capsys):
    assert words in refused(capsys, "plan", LLAMA, flag, written(config))


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
    ({"reshard_after_forward": "NO_SHARD", "fsdp_forward_prefetch": True}, {"parallel.stages": ["ddp"]}),
    ({"fsdp_offload_params": True, "fsdp_reshard_after_forward": False},
     {"parallel.stages": ["zero3"], "parallel.reshard_after_forward": False, "parallel.prefetch": False,
      "parallel.overlap": True, "parallel.offload_optimizer": "host", "parallel.offload_parameters": "host"})])
def test_the_keys_of_fsdp_are_read(config, keys, written):
    read = foreign.fsdp(written(config), ranks=16, per_host=8)
    assert read.keys == keys
    assert read.unread == ["forward_prefetch = True"] * ("fsdp_forward_prefetch" in config)
    assert [words.partition(",")[0] for words in read.chosen] == ["whole gradients until the last micro-batch"] * (
        keys["parallel.stages"] == ["zero3"])
    synced = foreign.fsdp(written(config | {"sync_each_batch": True}), ranks=16, per_host=8)
    assert ("parallel.accumulation" in synced.keys) == (keys["parallel.stages"] == ["zero3"])


def test_the_yaml_of_accelerate_is_read_as_its_json(written, capsys):
    yaml = ("compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP   # or not\nfsdp_config:\n"
            "  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_offload_params: false\n"
            "mixed_precision: bf16\nnum_machines: 2\n")
    read = foreign.fsdp(written(yaml, "accelerate.yaml"), 16, 8)
    other = foreign.fsdp(written({"fsdp_sharding_strategy": "FULL_SHARD", "mixed_precision": "bf16"}), 16, 8)
    assert (read.keys, read.unread) == (other.keys, ["num_machines = 2"])
    line = refused(capsys, "plan", LLAMA, "--fsdp-config", written("a:\n- b\n", "list.yaml"))
    assert "nor the YAML that `accelerate config` writes" in line
    line = refused(capsys, "plan", LLAMA, "--fsdp-config", written("distributed_type: DEEPSPEED\n", "ds.yaml"))
    assert "distributed_type is DEEPSPEED, and not FSDP" in line


@pytest.mark.parametrize(("words", "group"), [([], 16), (["--set", "parallel.tensor_ranks=2"], 8)])
def test_deepspeed_accumulates_on_each_data_rank(words, group, written, monkeypatch):
    plans = []
    monkeypatch.setattr(shown, "show_plan", lambda console, plan: plans.append(plan))
    assert main(["plan", LLAMA, "--ds-config", written({"gradient_accumulation_steps": 3}), "--ranks", "16", *words,
                 "--set", "check.mfu=[]", "--set", "model.layers=1"]) == 0
    (row,) = plans[0].rows
    assert (row.config.block, row.config.placement.mesh.group) == (3, group)


def test_a_plan_from_files_of_others_alone(written, tmp_path, capsys):
    config = written(HUGGING_FACE | {"num_hidden_layers": 2, "sliding_window": 4096})
    settings = written(DEEPSPEED | {"zero_optimization": {"stage": 2}}, "ds.json")
    assert main(["plan", LLAMA, "--model", config, "--ds-config", settings, "--ranks", "16", "--set",
                 "model.sequence=2048", "--set", "check.mfu=[]"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Not planned: sliding_window = 4096 and flops_profiler.enabled = True" in said
    assert "Llama-shaped transformer of 2 blocks, width 4096" in said
    assert "Stage II" in said
    assert "Stage III" not in said.partition("Scenario checks skipped")[0]
    (tmp_path / "rows.toml").write_text('[[variant]]\nstage = "zero1"\n')
    line = refused(capsys, "plan", tmp_path / "rows.toml", "--ds-config", settings)
    assert "has rows of its own, [[variant]], which override the stage" in line


def test_hybrid_sharding_of_a_file_is_planned_on_the_ranks_that_are_asked_for(written, capsys):
    path = written({"sharding_strategy": "HYBRID_SHARD"})
    assert main(["plan", "mpt_7b", "--fsdp-config", path, "--ranks", "16", "--set", "world.ranks=8", "--set",
                 "model.layers=2", "--set", "check.mfu=[]"]) == 0
    assert "parallel.shard_ranks=8" in " ".join(capsys.readouterr().out.split())
