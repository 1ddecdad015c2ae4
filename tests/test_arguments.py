"""Arguments of Megatron-LM, NeMo and torchtitan: read as a plan's keys, and written as what is read alike again."""

import json
import tomllib
from pathlib import Path

import pytest

from tests.oracles.argument_names import names_in
from tests.pages import refused
from zerosim.commands.cli import main
from zerosim.core.errors import UsageError
from zerosim.plan import foreign
from zerosim.plan.foreign_arguments import arguments, configuration_for, megatron, torchtitan
from zerosim.plan.reading import OWN_MODEL, read_plan

MEGATRON = """# sizes
--num-layers 4 --hidden-size 64 --num-attention-heads 8 --group-query-attention --num-query-groups 4 \\
--ffn-hidden-size 96 --seq-length 32 --vocab-size 128 --swiglu --untie-embeddings-and-output-weights
--micro-batch-size 2 --global-batch-size 32 --clip-grad 1.0 --bf16 --tokenizer-type "Llama 3"
"""
TORCHTITAN = {
    "model.name": "llama3", "model.flavor": "8B", "training.local_batch_size": 4, "training.seq_len": 64,
    "activation_checkpoint.mode": "full", "metrics.log_freq": 10}


@pytest.fixture
def file(tmp_path):
    def file(text):
        path = tmp_path / "theirs"
        path.write_text(text)
        return str(path)

    return file


def toml(keys):
    sections = {key.partition(".")[0]: {} for key in keys}
    for key, value in keys.items():
        section, _, name = key.partition(".")
        sections[section][name] = value
    return "\n".join(f"[{section}]\n" + "\n".join(f"{name} = {json.dumps(value)}" for name, value in each.items())
                     for section, each in sections.items())


def planned(keys):
    return read_plan(OWN_MODEL, [], keys, {}).rows[0]


def test_three_ways_to_write_an_argument_mean_the_same(file):
    flags = megatron(file(MEGATRON + "--tensor-model-parallel-size 2 --sequence-parallel"), 8)
    words = [*MEGATRON.replace("\\\n", "").split("--")[1:-1], "tensor-model-parallel-size 2", "sequence-parallel"]
    parts = (each.strip().replace("-", "_").partition(" ") for each in words)
    pairs = [(name, value or "true") for name, _, value in parts]
    for form in ("model.{}={}", "{}: {}"):
        assert megatron(file("model:\n" + "\n".join(form.format(*each) for each in pairs)), 8).keys == flags.keys
    assert flags.unread == ["tokenizer_type = Llama 3"]
    assert flags.keys["train.micro_batches"] == 16


FOLDED = "--num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 8 --tensor-model-parallel-size 2 " \
         "--sequence-parallel --context-parallel-size 2"


def test_experts_that_megatron_divides_lie_over_as_many_ranks(file):
    read = megatron(file(MEGATRON + FOLDED.replace("size 8", "size 2")), 8)
    assert (read.keys["parallel.expert_ranks"], read.unread) == (
        1, ["tokenizer_type = Llama 3", "expert_tensor_parallel_size = 2"])
    with pytest.raises(UsageError, match=r"experts lie over 2 ranks, .* no multiple of the 4 tensor and context ranks"):
        megatron(file(MEGATRON + FOLDED.replace("size 8", "size 2 --expert-tensor-parallel-size 1")), 8)


@pytest.mark.parametrize(("more", "due"), [
    ("", {"parallel.stages": ["ddp"], "parallel.recompute": False}),
    ("--use-distributed-optimizer --recompute-granularity full", {
        "parallel.stages": ["zero1"], "parallel.recompute": True}),
    ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", {"parallel.stages": ["zero3"]}),
    ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2", {
        "parallel.pipeline_ranks": 2, "parallel.model_chunks": 2, "parallel.schedule": "interleaved_1f1b"}),
    ("--tensor-model-parallel-size 2 --sequence-parallel", {"parallel.vocabulary_parallel": True}),
    ("--context-parallel-size 2", {"parallel.context_ranks": 2}),
    ("--num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 4", {
        "model.kind": "mixture", "model.experts_per_token": 2, "train.micro_batch": 8, "train.micro_batches": 4}),
    (f"{FOLDED} --expert-tensor-parallel-size 1", {
        "parallel.expert_ranks": 2, "model.queue_tokens": 8, "train.micro_batch": 4, "train.micro_batches": 8}),
    ("--num-experts 8 --moe-router-topk 2 --moe-shared-expert-intermediate-size 24 --moe-layer-freq ([0]*1+[1]*3) "
     "--moe-ffn-hidden-size 48 --multi-latent-attention --kv-lora-rank 16 --q-lora-rank 24 --qk-head-dim 8 "
     "--v-head-dim 8 --qk-pos-emb-head-dim 4",
     {"model.inner": 48, "model.shared_inner": 24, "model.dense_layers": 1, "model.dense_inner": 96,
      "model.latent": 16, "model.query_latent": 24, "model.head_size": 8, "model.rotary_size": 4}),
])
def test_arguments_of_megatron_are_read_planned_and_written_alike(more, due, file):
    read = megatron(file(MEGATRON + more), 8)
    assert due.items() <= read.keys.items()
    row = planned(read.keys)
    assert row.config.samples == 32
    text, unsaid = configuration_for(row, "megatron")
    assert unsaid == []
    again = megatron(file(text), 8)
    assert again.unread == []
    assert again.keys == read.keys | {key: again.keys[key] for key in ("model.tied_embeddings",) if key in again.keys}
    assert configuration_for(planned(again.keys), "megatron") == (text, [])


@pytest.mark.parametrize(("more", "due"), [
    ({}, {"parallel.stages": ["zero3"], "train.micro_batches": 8}),
    ({"parallelism.data_parallel_replicate_degree": 2}, {"parallel.shard_ranks": 4}),
    ({"parallelism.tensor_parallel_degree": 2, "parallelism.fsdp_reshard_after_forward": "never"}, {
        "parallel.sequence_parallel": True, "parallel.reshard_after_forward": False, "train.micro_batches": 4}),
    ({"parallelism.pipeline_parallel_degree": 2, "parallelism.pipeline_parallel_schedule": "GPipe"}, {
        "parallel.stages": ["zero2"], "parallel.schedule": "gpipe", "train.micro_batch": 1, "train.micro_batches": 16}),
    ({"parallelism.context_parallel_degree": 4, "parallelism.data_parallel_shard_degree": 2}, {
        "parallel.context_ranks": 4, "train.micro_batches": 2}),
])
def test_a_job_of_torchtitan_is_read_planned_and_written_alike(more, due, file):
    read = torchtitan(file(toml(TORCHTITAN | more)), 8)
    assert due.items() <= read.keys.items()
    assert read.unread == (["FSDP's shards over context ranks"] if "parallel.context_ranks" in due else [])
    text, unsaid = configuration_for(planned(read.keys), "torchtitan")
    assert unsaid == []
    assert torchtitan(file(text), 8).keys == read.keys


def test_the_width_of_an_expert_precedes_that_of_a_perceptron_in_any_order(file):
    mine, usual = "--moe-ffn-hidden-size 24 ", "--ffn-hidden-size 48 "
    for text in (mine, usual + mine, mine + usual):
        assert megatron(file(text + "--num-experts 4"), 1).keys["model.inner"] == 24


@pytest.mark.parametrize(("keys", "reader"), [
    ({"parallel.stages": ["zero3"], "parallel.prefetch": True, "parallel.secondary_ranks": 2}, foreign.deepspeed),
    ({"parallel.stages": ["zero1"], "parallel.offload_optimizer": "host"}, foreign.deepspeed),
    ({"parallel.stages": ["zero3"], "parallel.reshard_after_forward": False, "parallel.prefetch": False},
     lambda path, ranks: foreign.fsdp(path, ranks, 8)),
])
def test_what_is_written_for_deepspeed_and_fsdp2_is_read_alike(keys, reader, file):
    sizes = {"model.kind": "transformer", "model.sequence": 16, "model.vocabulary": 32, "parallel.recompute": False}
    row = planned(sizes | keys)
    text, _ = configuration_for(row, "fsdp" if "reshard" in str(keys) else "deepspeed")
    read = reader(file(text), 8)
    assert read.unread == []
    assert {**sizes, **keys}.items() <= {**sizes, "parallel.prefetch": False, **read.keys}.items()


def test_a_plan_without_a_scenario_reads_and_writes_arguments(file, tmp_path, capsys):
    out, path = tmp_path / "out.txt", file(MEGATRON + "--tensor-model-parallel-size 2")
    out.write_text("of the last plan")
    assert main(["plan", "--megatron-args", path, "--ranks", "16", "--write", f"megatron={out}"]) == 0
    assert "Not planned: tokenizer_type = Llama 3" in capsys.readouterr().out
    assert "--tensor-model-parallel-size 2\n" in out.read_text()
    assert megatron(str(out), 16).keys["train.micro_batches"] == 16


NAMES = json.loads(Path(__file__).with_name("oracles").joinpath("argument_names.json").read_text())
"""The names that each project reads; `tests/oracles/argument_names.py` records them from its sources."""


def nested(found):
    """The names at all levels, without those in `params`, which are the optimizer's."""
    inner = [nested(value) for key, value in found.items() if isinstance(value, dict) and key != "params"]
    return set(found).union(*inner)


def names_written(project, text):
    if project == "megatron":
        return {name for name, _ in arguments(text)}
    if project == "torchtitan":
        return {f"{section}.{name}" for section, keys in tomllib.loads(text).items() for name in keys}
    return nested(json.loads(text))


EVERYTHING = {"parallel.recompute": True, "parallel.overlap": True, "train.clip_norm": 1.0, "train.precision": "bf16"}
LLAMA = dict(zip(("layers", "width", "heads", "key_value_heads", "inner"), (32, 4096, 32, 8, 14336), strict=True))


@pytest.mark.parametrize(("project", "keys"), [
    ("megatron", {"parallel.stages": ["zero1"], "parallel.tensor_ranks": 2, "parallel.sequence_parallel": True,
                  "parallel.context_ranks": 2, "parallel.pipeline_ranks": 2, "parallel.model_chunks": 2,
                  "parallel.schedule": "interleaved_1f1b", "train.micro_batches": 8}),
    ("megatron", {"parallel.stages": ["zero3"], "model.kind": "mixture", "parallel.expert_ranks": 2,
                  "train.micro_batch": 2, "model.shared_inner": 64, "model.dense_layers": 1,
                  "model.latent": 8, "model.rotary_size": 2, "model.key_value_heads": 0}),
    ("torchtitan", {"parallel.stages": ["zero3"], "parallel.tensor_ranks": 2, "parallel.context_ranks": 2}),
    ("torchtitan", {"parallel.stages": ["zero2"], "parallel.pipeline_ranks": 2}),
    ("deepspeed", {"parallel.stages": ["zero3"], "parallel.offload_optimizer": "host",
                   "parallel.offload_parameters": "host", "parallel.secondary_ranks": 2}),
    ("deepspeed", {"parallel.stages": ["zero3"], "parallel.shard_ranks": 4}),
    ("fsdp", {"parallel.stages": ["zero3"]}),
])
def test_every_name_that_is_written_is_one_that_the_project_reads(project, keys):
    sizes = {"model.kind": "transformer", "model.architecture": "llama", "model.sequence": 32, "model.vocabulary": 128,
             "parallel.prefetch": "zero3" in keys["parallel.stages"], **{f"model.{key}": n for key, n in LLAMA.items()}}
    row = planned(sizes | EVERYTHING | keys)
    text, _ = configuration_for(row, project)
    assert names_written(project, text) - set(NAMES[project]) == set()
    first = sorted(names_written(project, text))[0].rpartition(".")[2]
    for wrong in (f"{first}s", f"no_{first}"):
        planted = text.replace(first, wrong).replace(first.replace("_", "-"), wrong)
        assert names_written(project, planted) - set(NAMES[project]) != set()


def test_names_are_found_in_arguments_constants_and_fields():
    text = 'A = "stage"\nclass Sizes:\n    width: int = 1\nparser.add_argument("--no-bias", "-n")'
    assert names_in(text, sections=False) == {"stage", "width", "no_bias"}
    assert names_in("class Job:\n    n: int\nclass JobConfig:\n    job: Job", sections=True) == {"job.n"}


QWEN3 = {
    "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32, "head_dim": 128,
    "num_key_value_heads": 4, "intermediate_size": 6144, "moe_intermediate_size": 768, "vocab_size": 151936,
    "max_position_embeddings": 4096, "num_experts": 128, "num_experts_per_tok": 8}
MIXTRAL = {
    "model_type": "mixtral", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "max_position_embeddings": 4096,
    "num_local_experts": 8, "num_experts_per_tok": 2}


DEEPSEEK = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
    "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048, "vocab_size": 129280,
    "max_position_embeddings": 4096, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1,
    "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "scoring_func": "sigmoid", "head_dim": 64, "mlp_bias": False}


def test_deepseek_has_the_parameters_that_are_published(file):
    """Published: 671B parameters of DeepSeek-V3, of which a token meets 37B, without further layers of prediction."""
    read = foreign.hugging_face(file(json.dumps(DEEPSEEK)))
    row = read_plan(OWN_MODEL, [1024], read.keys | {"parallel.stages": ["zero1"]}, {}).rows[0]
    assert read.unread == ["scoring_func = sigmoid"]
    assert row.config.model.count == 671_026_404_352
    assert foreign.hugging_face(file(json.dumps(DEEPSEEK | {"v_head_dim": 64}))).unread[0] == "v_head_dim = 64"


def test_a_configuration_with_experts_has_the_parameters_that_are_published(file):
    """Published: 46.7B parameters of Mixtral 8x7B, of which a token meets 12.9B."""
    row = read_plan(OWN_MODEL, [1024], foreign.hugging_face(file(json.dumps(MIXTRAL))).keys | {
        "parallel.stages": ["zero1"]}, {}).rows[0]
    assert row.config.model.count == 46_702_792_704


def test_every_second_block_with_experts_is_not_read(file):
    assert "moe_layer_freq = 2" in megatron(file(MEGATRON + "--num-experts 8 --moe-layer-freq 2"), 8).unread


def test_heads_that_are_wider_than_their_share_have_the_parameters_that_are_published(file):
    """Published: 30.5B parameters of Qwen3 30B-A3B; 12,288 weights of norms of queries and keys are not planned."""
    read = foreign.hugging_face(file(json.dumps(QWEN3)))
    row = read_plan(OWN_MODEL, [1024], read.keys | {"parallel.stages": ["zero1"]}, {}).rows[0]
    assert (read.unread, row.config.model.count) == ([], 30_532_122_624 - 48 * 2 * 128)


@pytest.mark.parametrize(("flag", "text", "words"), [
    ("--megatron-args", f"{MEGATRON} --micro-batch-size 3", "global_batch_size, a batch of 32 samples, is not a mul"),
    ("--megatron-args", f"{MEGATRON} --use-megatron-fsdp --data-parallel-sharding-strategy all",
     "data_parallel_sharding_strategy must be no_shard, optim, "),
    ("--megatron-args", f"{MEGATRON} --micro-batch-size many", "micro_batch_size must be a whole number above 0, fo"),
    ("--megatron-args", f"{MEGATRON} --global-batch-size many", "global_batch_size must be a whole number above 0, f"),
    ("--megatron-args", "", "theirs: num_layers must be a whole number above 0, here or in a scenario, found none"),
    ("--megatron-args", "--num-layerz 4", "found none; num_layerz is not known"),
    ("--megatron-args", f"{MEGATRON} --num-layers", "at least 1 and at most 1000, found true or no value"),
    ("--megatron-args", f"{MEGATRON} --num-attention-heads 7", "num_attention_heads: model.heads: 7 heads must divide"),
    ("--torchtitan", toml(TORCHTITAN | {"parallelism.data_parallel_replicate_degree": 0}),
     "parallelism.data_parallel_replicate_degree must be a whole number above 0, found 0"),
    ("--torchtitan", toml(TORCHTITAN | {"parallelism.data_parallel_shard_degree": "all"}), 'found "all"'),
    ("--torchtitan", toml(TORCHTITAN | {"parallelism.context_parallel_degree": -1}),
     "theirs: parallelism.context_parallel_degree must be an integer of at least 1 and at most 1048576, found -1"),
    ("--megatron-args", "--tokenizer 'a", "a word of the arguments does not end"),
    ("--megatron-args", MEGATRON + "--tensor-model-parallel-size two", "tensor_model_parallel_size must be an integer"),
    ("--torchtitan", "[model", "is not TOML"), ("--torchtitan", "model = 3", "model must be a table of keys, found 3"),
    ("--torchtitan", "", "model.name must be one of those of llama3_8B, llama3_70B, llama3_405B, which are NAME"),
    ("--torchtitan", "[model]\nname = 'llama3'\nflavor = '1B'", 'NAME_FLAVOR, found "1B"'),
])
def test_what_cannot_be_read_is_one_line(flag, text, words, file, capsys):
    assert words in refused(capsys, "plan", flag, file(text))


def test_a_mistyped_name_is_listed_with_the_name_that_was_meant(file):
    read = [megatron(file(f"{MEGATRON} --tensor-model-parallel-sise 2"), 8),
            torchtitan(file(toml(TORCHTITAN | {"training.seq_lenn": 5, "paralelism.tensor_parallel_degree": 2})), 8),
            foreign.hugging_face(file(json.dumps(QWEN3 | {"head_dimm": 4, "rope_theta": 1.0}))),
            foreign.deepspeed(file('{"gradient_clippin": 1, "zero_optimization": {"stagee": 3}}'), 8),
            foreign.fsdp(file('{"fsdp_sharding_strategi": "NO_SHARD"}'), 8, 8)]
    assert [each.unread[-2:] for each in read] == [
        ["tokenizer_type = Llama 3", "tensor_model_parallel_sise = 2 (did you mean 'tensor_model_parallel_size'?)"],
        ["training.seq_lenn = 5 (did you mean 'training.seq_len'?)",
         "paralelism.tensor_parallel_degree = 2 (did you mean 'parallelism.tensor_parallel_degree'?)"],
        ["head_dimm = 4 (did you mean 'head_dim'?)"],
        ["zero_optimization.stagee (did you mean 'zero_optimization.stage'?)",
         "gradient_clippin (did you mean 'gradient_clipping'?)"],
        ["sharding_strategi (did you mean 'sharding_strategy'?)"]]


@pytest.mark.parametrize(("project", "keys", "words"), [
    ("deepspeed", {"parallel.tensor_ranks": 2}, "deepspeed has no parallel.tensor_ranks; write one of megatron, "),
    ("fsdp", {}, "FSDP2 shards weights, and the row's stage is zero1"),
    ("torchtitan", {}, "torchtitan has no flavor of these sizes"),
    ("torchtitan", {"parallel.schedule": "zb_h1"}, "torchtitan has no schedule zb_h1; plan gpipe, 1f1b, "),
    ("megatron", {"parallel.schedule": "gpipe"}, "megatron has no schedule gpipe; plan 1f1b, interleaved_1f1b"),
])
def test_what_a_project_does_not_have_is_refused(project, keys, words, file, capsys):
    given = [f"--set={key}={value}" for key, value in keys.items()]
    path = file(MEGATRON + "--use-distributed-optimizer")
    assert words in refused(capsys, "plan", "--megatron-args", path, *given, "--write", f"{project}={path}.out")
