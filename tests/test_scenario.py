import json
import pickle
import re
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zerosim.core.errors import ScenarioError
from zerosim.core.words import toml
from zerosim.models import MODELS
from zerosim.scenario import ModelKeys, Parallel, Scenario, Train, WorldKeys, load, resolved
from zerosim.scenario.reading import keys
from zerosim.scenario.sections import OF_ALL_ROWS, PUBLICATIONS, Variant
from zerosim.stages import STAGES
from zerosim.stages.optimizers import OPTIMIZERS

COMPLETE = Path(__file__).with_name("complete.toml").read_text()


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def loaded(text, *overrides):
        Path("a.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return load("a.toml", overrides)

    return loaded


@pytest.fixture
def complaint(loaded):
    def complaint(text, *overrides):
        with pytest.raises(ScenarioError) as caught:
            loaded(text, *overrides)
        assert "\n" not in str(caught.value)
        return re.sub(r"^([^:]+:\d+):\d+: ", r"\1: ", str(caught.value))

    return complaint


def test_an_empty_file_is_all_defaults(loaded):
    assert loaded("") == Scenario()


def test_every_key_can_be_set_and_is_reported(loaded):
    scenario = loaded(COMPLETE)
    default = Scenario()
    changed = {
        "source", "prefetch", "hidden", "activation", "own", "secondary_ranks", "param_dtype", "autocast",
        "quantized_weights", "quantized_gradients", "tensor_ranks", "context_ranks",
        "partition_activations",
        "expert_ranks", "pipeline_ranks", "model_chunks", "pipeline_layers", "sequence_parallel", "vocabulary_parallel",
        "context_by",
        "experts", "experts_per_token", "capacity_factor", "queue_tokens", "shared_inner", "dense_layers",
        "dense_inner", "latent", "query_latent", "rotary_size"}
    for section in fields(Scenario):
        if is_dataclass(getattr(default, section.name)) and section.name != "origin":
            for key in fields(getattr(default, section.name)):
                old = getattr(getattr(default, section.name), key.name)
                new = getattr(getattr(scenario, section.name), key.name)
                assert (old != new) == (key.name not in changed), key.name
    assert type(scenario.train.learning_rate) is float
    plain = resolved(scenario)
    assert json.loads(json.dumps(plain)) == plain
    assert "origin" not in plain
    assert plain["train"]["betas"] == [0.0, 0.99]
    assert plain["caption"] == "equal to the bit"
    said = [{key: value for key, value in variant.items() if value is not None} for variant in plain["variant"]]
    assert said == [
        {"name": "first", "stage": "zero2", "units": "model", "accumulation": "boundary",
         "accumulate_dtype": "weights", "param_dtype": "weights", "autocast": "none", "reduce_dtype": "weights",
         "output_dtype": "weights", "quantized_weights": "none",
         "quantized_gradients": "none", "quantized_block": 1,
         "reduce_scatter": "direct", "all_gather": "direct", "broadcast": "naive"},
        {"name": "second", "stage": "zero1", "shard_ranks": 1, "replicas": 2, "secondary_ranks": 0,
         "tensor_ranks": 1, "context_ranks": 1, "expert_ranks": 1, "pipeline_ranks": 1,
         "schedule": "gpipe", "model_chunks": 1, "pipeline_layers": [], "sequence_parallel": False,
         "vocabulary_parallel": False, "context_by": "ring",
         "gradients": "reduce_scatter", "publish": "broadcasts",
         "reshard_after_forward": True, "prefetch": False, "overlap": False, "recompute": False,
         "recompute_keeps": "", "offload_activations": False, "partition_activations": False,
         "offload_optimizer": "none", "offload_parameters": "none",
         "bucket_mb": 0.0},
    ]
    assert {key for variant in said for key in variant} == {"name", "stage", *keys(Parallel)} - set(OF_ALL_ROWS)


def test_a_pickled_scenario_is_the_same_and_can_still_blame(loaded):
    scenario = pickle.loads(pickle.dumps(loaded(COMPLETE)))
    assert scenario == loaded(COMPLETE)
    assert str(scenario.origin.error("no", ("train", "steps"))) == "a.toml:28:9: no"


@pytest.mark.parametrize(("optimizer", "weight_decay"), [
    ("sgd", 0.0), ("momentum", 0.0), ("adam", 0.0), ("adamw", 0.01),
])
def test_weight_decay_depends_on_the_optimizer_unless_given(loaded, optimizer, weight_decay):
    override = f"train.optimizer={optimizer}"
    assert loaded("", override).train.weight_decay == weight_decay
    assert loaded("[train]\nweight_decay = 0.5", override).train.weight_decay == 0.5


@pytest.mark.parametrize(("text", "expected"), [
    ("[train]\nsteps = 'ten'", '2: train.steps must be an integer of at least 0, found "ten"'),
    ("train.steps = -1", "1: train.steps must be an integer of at least 0, found -1"),
    ("train.steps = true", "1: train.steps must be an integer of at least 0, found true"),
    ("train.steps = 1.0", "1: train.steps must be an integer of at least 0, found 1.0"),
    ("train.seed = 0x8000000000000000", "found an integer beyond 64 bits"),
    ("train.learning_rate = nan", "must be a finite number of at least 0, found nan"),
    ("train.learning_rate = inf", "must be a finite number of at least 0, found inf"),
    ("train.learning_rate = true", "must be a finite number of at least 0, found true"),
    ("train.learning_rate = 1" + "0" * 400, "found an integer beyond 64 bits"),
    ("[train]\nloss_scale = 0",
     "2: train.loss_scale must be dynamic or a finite number of at least 1e-38 and below 1e+38, found 0"),
    ("train.loss_scale = -1", "1: train.loss_scale must be dynamic or a finite number of at least 1e-38"),
    ("train.loss_scale = 1e-320", "1: train.loss_scale must be dynamic or a finite number of at least 1e-38"),
    ("train.loss_scale = 1e308", "below 1e+38, found 1e+308"),
    ("train.loss_scale = 'static'", '1: train.loss_scale must be dynamic or a finite number of at least 1e-38 and '
                                    'below 1e+38, found "static"'),
    ("train.betas = [0.9,\n 1.0]", "1: train.betas[1] must be a finite number of at least 0 and below 1, found 1.0"),
    ("train.betas = [0.9]", "1: train.betas must be an array of length 2, each a finite"),
    ("train.betas = [0, 0, 0]", "found an array of length 3"),
    ("train.optimizer = 'Adm'", f"1: train.optimizer must be {', '.join(OPTIMIZERS)} or FILE.py:NAME, "
                                'found "Adm"; did you mean "adam"?'),
    ("train.optimizer = 'xyz'", 'found "xyz"'),
    ("train.optimizer = {}", "found a table"),
    ("parallel.order = 'bush'",
     '1: parallel.order must be ring, rank, tree, two_level, two_hop or exact, found "bush"'),
    ("parallel.order = 'tree'\nworld.ranks = 3\ntrain.micro_batches = 6",
     "1: parallel.order tree needs powers of two for world.ranks and train.micro_batches, found 3 and 6"),
    ("check.same_bits_on = [2, 3]", "1: check.same_bits_on names 3 ranks, which do not divide 4 micro-batches"),
    ("parallel.stages = ['zero3']\ncheck.does_not_fit = ['zero3', 'ddp']",
     "2: check.does_not_fit names ddp, but no row uses it; rows are zero3"),
    ("check.messages = [2]\n[[variant]]\nprefetch = true\n[[variant]]\nname = 'a'\n[[variant]]\nname = 'a'",
     "1: check.messages has 1 numbers for 3 rows; give one for each: zero3, prefetch = true; a; a (2)"),
    ("check.volumes = [2, 3]", "1: check.volumes has 2 numbers for 4 rows; give one for each: ddp; zero1; "
     "zero2; zero3"),
    ("check.messages = [2]\n[[variant]]\n[[variant]]", "1: check.messages has 1 numbers for 2 rows"),
    ("parallel.stages = []", f"must be an array of length at least 1, each {', '.join(STAGES)} or"),
    ("parallel.stages = 'ddp'", 'found "ddp"; arrays are written in brackets'),
    ("parallel.stages = ['ddp',\n'ddp']", '1: parallel.stages names "ddp" twice'),
    ("model.hidden = [8, 0]", "1: model.hidden[1] must be an integer of at least 1 and at most 1000000, found 0"),
    ("world.ranks = 0", "must be an integer of at least 1 and at most 1048576, found 0"),
    ("check.reference = 1", "1: check.reference must be true or false, found 1"),
    ("title = 1979-05-27", "1: title must be a string in quotes, found 1979-05-27"),
    ("data.source = ['\\u001b']", "found an array of length 1"),
    ('train.steps = "\\u001b[1mé\\n"', r'found "\u001b[1m\u00e9\n"'),
    ("train.steps = '" + "é" * 99 + "'", 'found "' + "é" * 60 + '..."'),
    ("train = 1", "1: train must be a table, found 1"),
    ("[[train]]", "1: train must be a table, found an array of length 1"),
    ("[train]\n'é' = 1", "2: unknown key 'é' in [train]; allowed are steps, micro_batch, micro_"),
    ("# é\n[ trian ]", "2: unknown key 'trian'; did you mean 'train'?"),
    ("origin = 1", "1: unknown key 'origin'; allowed are kind, title, caption, world, data, model"),
    ("train = { steps = 1, Seed = 2 }", "1: unknown key 'Seed' in [train]; did"),
])
def test_what_is_wrong_is_found_where_it_stands(complaint, text, expected):
    assert expected in complaint(text)
    assert complaint(text).startswith("a.toml:")


@pytest.mark.parametrize(("text", "expected"), [
    ("a = 1\r\nb = adam\r\n", "a.toml:2: this is not TOML: invalid value (strings need quotes)"),
    ("x = [1,\n2", "a.toml:2: this is not TOML: "),
    ("x = " + "[" * 5000, "a.toml:1: arrays or tables are nested too deeply"),
    ("x = " + "9" * 5000, "a.toml:1: this is not TOML: exceeds the limit"),
    ("a = 1\nb = é".encode("latin-1"), "a.toml:2: found the byte 0xe9; a scenario is UTF-8 text"),
    ("é = '".encode() + b"\xff'", "a.toml:1: found the byte 0xff"),
    (b"PK\x03\x04\x00", "a.toml:1: this is not TOML: "),
])
def test_text_that_is_not_toml(complaint, text, expected):
    assert complaint(text).startswith(expected)


def test_a_byte_order_mark_is_no_part_of_the_text(loaded, complaint):
    assert loaded("\ufefftitle = 'a'").title == "a"
    assert complaint("\ufefftitle = 1").startswith("a.toml:1: ")


@pytest.mark.parametrize(("path", "expected"), [
    ("nosuch.toml", "nosuch.toml:1:1: no such file"),
    (".", ".:1:1: is a directory"),
])
def test_files_that_cannot_be_read(tmp_path, monkeypatch, path, expected):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ScenarioError) as caught:
        load(path)
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize(("override", "key", "value"), [
    ("train.optimizer=sgd", "optimizer", "sgd"),
    ("train.optimizer = sgd ", "optimizer", "sgd"),
    ('train."optimizer" = "sgd" # yes', "optimizer", "sgd"),
    ("train.steps=0x10", "steps", 16),
    ("train.betas=[0.5, 0.5]", "betas", (0.5, 0.5)),
    ("train={steps = 7}", "steps", 7),
])
def test_an_override_is_toml_or_else_a_string(loaded, override, key, value):
    assert getattr(loaded("[train]\nsteps = 5\nseed = 3", override).train, key) == value


def test_overrides_replace_in_order(loaded):
    scenario = loaded("[train]\nsteps = 'ten'\nseed = 3", "train.steps=1", "train.steps=2")
    assert (scenario.train.steps, scenario.train.seed) == (2, 3)
    assert loaded("train.seed = 3", "train={}").train.seed == 0
    assert loaded("", "title=a=b").title == "a=b"
    assert loaded("", "title=").title == ""
    assert loaded("", 'title="a"\nb = 1').title == '"a"\nb = 1'
    assert loaded("", "title=" + "[" * 5000).title == "[" * 5000


@pytest.mark.parametrize(("override", "expected"), [
    ("train.stpes=5", "1: unknown key 'stpes' in [train]; did you mean 'steps'?"),
    ("train.steps=ten", '1: train.steps must be an integer of at least 0, found "ten"'),
    ("train.steps =  ten", '1: train.steps must be an integer of at least 0, found "ten"'),
    ("train.steps =  5.0", "1: train.steps must be an integer of at least 0, found 5.0"),
    ("train.betas=[0, 2]", "1: train.betas[1] must be a finite number"),
    ("trian.steps=5", "1: unknown key 'trian'; did you mean 'train'?"),
    ("title.x=5", "1: title must be a string in quotes, found a table"),
    ("parallel.stages.0=ddp", "1: parallel.stages must be an array of length at least 1"),
    ("train=5", "1: train must be a table, found 5"),
    ("train={sed = 5}", "1: unknown key 'sed' in [train]; did you mean 'seed'?"),
    ("train.steps", '1: an override is written section.key=value, found "train.steps"'),
    ("", '1: an override is written section.key=value, found ""'),
    ("# a=1", "1: an override is written"),
    ("[train]\nsteps=1", "1: an override is written"),
    ("=5", "1: this is not TOML: "),
    ("train..steps=5", "1: this is not TOML: "),
])
def test_errors_in_overrides_point_into_their_text(complaint, override, expected):
    text = "title = 'a'\ntrain.steps = 1\nparallel.stages = ['ddp']"
    assert complaint(text, override).startswith(f"--set:{expected}")


TIED = "model.kind = 'transformer'\nmodel.tied_embeddings = true\n"

@pytest.mark.parametrize(("text", "expected"), [
    (f"model.hidden = {[4] * 1001}", "model.hidden must be an array of length at most 1000, each an integer of at le"),
    ("world.ranks = 1_048_577", "at most 1048576, found 1048577"),
    ("train.betas = [-0.1, 0]", "train.betas[0] must be a finite number of at least 0 and below 1, found -0.1"),
    ("train.loss_scale = 'dynamical'", "must be dynamic or a finite number of at least 1e-38 and below 1e+38, fo"),
    ("train.loss_scale = true", "found true"), ("train.loss_scale = 1e38", "found 1e+38"),
    ("train.warmup_steps = 21", "train.warmup_steps must be at most train.steps = 20, found 21"),
    ("cluster.loss = 'fused'", 'cluster.loss must be "", whole, compiled or chunked, found "fused"'),
    ("model.activation = 'elu'", 'model.activation must be relu, tanh or gelu, found "elu"; did you mean "relu"?'),
    ("kind = 'other'", "kind must be training or collective"),
    ("model.kind = 'transformer'\nmodel.frozen = [4]", "2: model.frozen names layer 4; there are layers 0 to 3"),
    ("model.kind = 'transformer'\nparallel.units = [[0, 1, 2]]", "must name layers 0 to 3, each once and in order"),
    (TIED + "parallel.units = [[0, 1], [2, 3]]", "layers 0 and 3 share their weights, so parallel.units must name "
     "them in one unit; or untie them"),
    (TIED + "parallel.units = [[0, 3], [1]]", "parallel.units must name layers 0 to 3, each once, found [0, 3, 1]"),
    ("parallel.recompute = [3]", "1: parallel.recompute names layer 3; there are layers 0 to 2"),
    ("parallel.recompute = 'all'", "parallel.recompute must be true, false or an array, each an integer of at"),
    ("[[variant]]\nrecompute = [0, 7]", "parallel.recompute names layer 7; there are layers 0 to 2"),
    *((f"train.precision = 'fp64'\nparallel.{key} = 'fp32'", f"parallel.{key} fp32 has fewer bits than the gradients")
      for key in ("accumulate_dtype", "reduce_dtype", "output_dtype")),
    ("train.precision = 'bf16'\nparallel.param_dtype = 'fp32'",
     "2: parallel.param_dtype fp32 casts float32 shards before the all-gather, but train.precision bf16 keeps none"),
    ("train.precision = 'bf16'\nparallel.autocast = 'bf16'",
     "2: parallel.autocast bf16 casts float32 weights for each operation, but train.precision bf16 has none; "
     "set train.precision to fp32, or autocast to none"),
    ("train.precision = 'fp64'\nparallel.autocast = 'fp16'", "but train.precision fp64 has none; set"),
    ("parallel.param_dtype = 'bf16'\nparallel.autocast = 'fp16'", "2: parallel.autocast fp16 casts weights for each "
     "operation, and parallel.param_dtype bf16 casts them before the all-gather; remove one of them"),
    ("parallel.param_dtype = 'bf16'\n[[variant]]\nautocast = 'bf16'", "autocast bf16 casts weights for each operation, "
     "and parallel.param_dtype bf16 casts them"),
    *((f"parallel.quantized_gradients = 'int8'\n{other}", f"parallel.quantized_gradients {words}") for other, words in (
        ("parallel.order = 'exact'", "encodes chunks that are sent one by one, and order exact sends none; set"),
        ("parallel.order = 'tree'", "encodes chunks that are sent one by one, and order tree sends none; set"),
        ("parallel.shard_ranks = 2", "adds over all ranks at once, but shard_ranks or replicas makes several"),
        ("parallel.bucket_mb = 1", "encodes a whole chunk, and parallel.bucket_mb conflicts with it"),
        ("parallel.reduce_scatter = 'ring'", "sends chunks by the reduce-scatter of parallel.order, and"))),
    ("parallel.order = 'two_hop'", "parallel.order two_hop adds within hosts first; set world.ranks_per_host"),
    ("train.precision = 'fp64'\nparallel.quantized_weights = 'int8'", "quantized_weights int8 has fewer bits than"),
    ("parallel.quantized_weights = 'int4'\nparallel.all_gather = 'direct'", "shards of bytes by the all-gather of"),
    ("[[variant]]\nstage = 'zero2'\nparam_dtype = 'bf16'", "it gathers no weights during the pass"),
    ("parallel.recompute_keeps = 'products'", "recompute_keeps is for recomputed units"),
    ("parallel.offload_activations = true", "offload_activations offloads the inputs of recomputed units"),
    ("parallel.offload_activations = true\nparallel.recompute = true\n[[variant]]\nrecompute = false", "of recomputed"),
    ("parallel.bucket_mb = -1", "parallel.bucket_mb must be a finite number of at least 0, found -1"),
    ("parallel.bucket_mb = 31e-6", "1: parallel.bucket_mb must be 0, or hold an element for each of 4 ranks, 32 "),
    *((f"check.{key} = [1]", f"check.{key} has 1 numbers for 4 rows") for key in ("largest_messages", "activations")),
    ("check.test_loss = 'trigram'", 'check.test_loss must be'), ("check.test_loss = -1", "check.test_loss must be"),
    ("model.frozen = [-1]", "at least 0, found -1"),
    ("model.frozen = [0, 3]", "1: model.frozen names layer 3; there are layers 0 to 2"),
    *((f"parallel.units = [[{units}]]", "1: parallel.units must name layers 0 to 2, each once and in order, found "
       + f"[{units}]".replace("], [", ", "))
      for units in ("0], [2], [1", "0], [1", "0, 0], [1, 2", "1, 2", "0, 1, 2, 3")),
    ("parallel.units = []", "such as [[0, 1], [2]], found an array of length 0"),
    ("parallel.units = [[]]", "parallel.units[0] must be an array of length at least 1"),
    ("parallel.units = 'layers'", "parallel.units must be layer, model or an array"),
    *((f"parallel.accumulation = 'micro_batch'\nparallel.order = '{order}'",
       f"parallel.accumulation micro_batch adds ranks before micro-batches, which order {order} cannot")
      for order in ("exact", "tree")),
    ("parallel.order = 'exact'\n[[variant]]\n[[variant]]\naccumulation = 'micro_batch'", "which order exact cannot"),
    ("parallel.prefetch = true\nparallel.reshard_after_forward = false", "parallel.prefetch gathers weights ahead"),
    ("parallel.prefetch = true\n[[variant]]\nreshard_after_forward = false", "parallel.prefetch gathers weights ahead"),
    ("[[variant]]\nunits = [[0], [2]]", "parallel.units must name layers 0 to 2"),
    ("[[variant]]\n[[variant]]\nprefetch = 7", "variant[1].prefetch must be true or false, found 7"),
    ("[[variant]]\norder = 'ring'", "unknown key 'order' in [variant[0]]"),
    ("check.same_bits_on = [0]", "check.same_bits_on[0] must be an integer of at least 1, found 0"),
    ("check.same_bits_on = [2, 8]\ntrain.micro_batches = 8", "check.same_bits_on names 8 ranks, but world.ranks is 4"),
    ("check.messages = [-1]", "at least 0, found -1"), ("check.volumes = [nan]", "must be a finite number, found nan"),
    ("check.does_not_fit = ['ddp', 'ddp']", 'check.does_not_fit names "ddp" twice'),
])
def test_what_is_not_allowed_is_refused_with_what_is(complaint, text, expected):
    assert expected in complaint(text)


@pytest.mark.parametrize(("text", "section", "key", "value"), [
    ("world.ranks = 1_048_576\ntrain.micro_batches = 1_048_576", "world", "ranks", 2**20),
    ("train.betas = [0, 0.999]", "train", "betas", (0.0, 0.999)),
    ("train.loss_scale = 'dynamic'", "train", "loss_scale", "dynamic"),
    ("train.loss_scale = 1e-38", "train", "loss_scale", 1e-38),
    ("train.warmup_steps = 20", "train", "warmup_steps", 20),
    ("model.frozen = [2, 0]", "model", "frozen", (2, 0)), ("model.hidden = []", "model", "hidden", ()),
    ("parallel.units = [[0, 1], [2]]", "parallel", "units", ((0, 1), (2,))),
    ("parallel.accumulation = 'micro_batch'\nparallel.order = 'rank'", "parallel", "order", "rank"),
    ("parallel.order = 'tree'\ncheck.same_bits_on = [1, 4]", "check", "same_bits_on", (1, 4)),
    ("check.messages = [0, 0, 0, 0]", "check", "messages", (0, 0, 0, 0)),
    ("check.test_accuracy = 0", "check", "test_accuracy", 0.0),
    ("check.test_loss = 'bigram'", "check", "test_loss", "bigram"), ("check.test_loss = 2", "check", "test_loss", 2.0),
    ("parallel.recompute = [2, 0]", "parallel", "recompute", (2, 0)),
    ("parallel.recompute = true", "parallel", "recompute", True),
    ("parallel.bucket_mb = 32e-6", "parallel", "bucket_bytes", 32),
    ("model.kind = 'transformer'\nmodel.dropout = 0.99", "model", "dropout", 0.99),
    (TIED + "parallel.units = [[0, 3], [2, 1]]", "parallel", "units", ((0, 3), (2, 1))),
])
def test_what_is_just_allowed_is_read(loaded, text, section, key, value):
    assert getattr(getattr(loaded(text), section), key) == value


def test_tied_embeddings_are_one_unit(loaded):
    assert {row.layers for row in loaded(TIED).rows} == {((0, 3), (1,), (2,))}


@pytest.mark.parametrize("frozen", [(0,), (1,), (0, 2)])
def test_a_unit_is_frozen_as_a_whole(frozen):
    parted = Scenario(model=ModelKeys(frozen=frozen), parallel=Parallel(units=((0, 1), (2,))))
    with pytest.raises(ScenarioError, match=r"the unit of layers \[0, 1\] is partly frozen"):
        _ = parted.rows
    whole = replace(parted, model=ModelKeys(frozen=(0, 1)))
    assert {row.layers for row in whole.rows} == {((0, 1), (2,))}


@pytest.mark.parametrize(("text", "overrides", "expected"), [
    ("[train]\nmicro_batches = 6", [], "a.toml:2: train.micro_batches must be a multiple of "
     "world.ranks = 4, found 6; set it to 4 or 8, or world.ranks to a divisor of 6"),
    ("[world]\nranks = 8", [], "a.toml:2: train.micro_batches must be a multiple of "
     "world.ranks = 8, found 4; set it to 8, or world.ranks to a divisor of 4"),
    ("world.ranks = 3\ntrain.micro_batches = 4", [], "a.toml:2: "),
    ("world.ranks = 3\ntrain.micro_batches = 4", ["world.ranks=8"], "--set:1: "),
    ("world.ranks = 3\ntrain.micro_batches = 3", ["train.micro_batches=4"], "--set:1: "),
    ("world.ranks = 3\ntrain.micro_batches = 3", ["train={}"], "--set:1: "),
])
def test_micro_batches_are_a_multiple_of_ranks(complaint, text, overrides, expected):
    assert complaint(text, *overrides).startswith(expected)


def test_an_override_can_mend_what_does_not_agree(loaded):
    assert loaded("world.ranks = 3", "train.micro_batches=9").train.micro_batches == 9


def test_keys_that_do_not_agree_are_refused_in_python_too():
    with pytest.raises(ScenarioError, match=r"multiple of world\.ranks = 3"):
        Scenario(world=WorldKeys(3))


@given(st.builds(
    Scenario,
    title=st.text(st.characters(codec="utf-8")),
    model=st.builds(ModelKeys, hidden=st.lists(st.integers(1, 10**6), max_size=3).map(tuple)),
    train=st.builds(
        Train,
        steps=st.integers(0, 2**63 - 1),
        learning_rate=st.floats(0, allow_infinity=False),
        optimizer=st.sampled_from(list(OPTIMIZERS)),
    ),
    variant=st.lists(st.builds(
        Variant,
        name=st.text(st.characters(codec="utf-8")),
        stage=st.sampled_from(("zero1", "zero2")),
        publish=st.none() | st.sampled_from(PUBLICATIONS),
        overlap=st.none() | st.booleans(),
    ), max_size=2).map(tuple),
))
@example(Scenario(title='"\x7f\\\u2028', model=ModelKeys(hidden=(5, 4)), variant=(
    Variant("a", stage="ddp"), Variant("b", stage="zero3", units=((0, 1), (2,))))))
def test_a_resolved_scenario_written_as_toml_is_the_scenario(tmp_path_factory, scenario):
    path = tmp_path_factory.getbasetemp() / "resolved.toml"
    path.write_text(toml(resolved(scenario)), encoding="utf-8")
    assert load(path) == scenario


# Keys that cannot be followed.


@pytest.mark.parametrize(("text", "expected"), [
    ("stage = 'ddp'\naccumulation = 'micro_batch'",
     "a.toml:3: variant[0].accumulation = \"micro_batch\" does nothing in stage ddp: it reduces once a step, at the "
     "boundary; leave it out, or name another stage"),
    ("stage = 'zero1'\naccumulation = 'micro_batch'", "in stage zero1: it reduces once a step, at the boundary"),
    ("stage = 'zero2'\nprefetch = true", "prefetch = true does nothing in stage zero2: it gathers no weights"),
    ("stage = 'ddp'\nreshard_after_forward = false", "a.toml:3: variant[0].reshard_after_forward = false does"),
    ("publish = 'broadcasts'", "a.toml:2: variant[0].publish = \"broadcasts\" does nothing in stage zero3"),
    ("stage = 'ddp'\npublish = 'updates'", "every rank updates all weights, and publishes none"),
    ("gradients = 'all_reduce'", "does nothing in stage zero3: its ranks keep shards of gradients"),
])
def test_a_variant_is_refused_what_its_stage_cannot_follow(complaint, text, expected):
    assert expected in complaint("[[variant]]\n" + text)


@pytest.mark.parametrize("text", [
    "stage = 'zero2'\naccumulation = 'micro_batch'", "stage = 'ddp'\naccumulation = 'layered'", "prefetch = true",
    "stage = 'ddp'\nprefetch = false\nreshard_after_forward = true\npublish = 'weights'\naccumulation = 'boundary'",
    "stage = 'ddp'\ngradients = 'all_reduce'",
])
def test_a_variant_may_say_what_its_stage_does_anyway(loaded, text):
    assert len(loaded("[[variant]]\n" + text).variant) == 1


@pytest.mark.parametrize(("text", "expected"), [
    ("kind = 'transformer'\nhidden = [3]", "a.toml:3: model.hidden is for model.kind mlp, and this is "
     "transformer; leave it out, or set model.kind to mlp"),
    ("kind = 'transformer'\nactivation = 'tanh'", "a.toml:3: model.activation is for model.kind mlp"),
    *((f"{key} = {value}", f"a.toml:2: model.{key} is for model.kind {kinds}, and this is mlp")
      for kinds, keys in {
          "transformer": {"tied_embeddings": "true", "dropout": 0.1},
          "mixture or transformer": {
              "architecture": "'llama'", "key_value_heads": 1, "head_size": 2,
              "latent": 2, "query_latent": 2, "rotary_size": 2,
              "layers": 3, "width": 8, "heads": 2, "inner": 5, "vocabulary": 9, "sequence": 4},
          "mixture": {"experts": 2, "experts_per_token": 2, "capacity_factor": 2,
                      "queue_tokens": 2, "shared_inner": 2, "dense_layers": 1, "dense_inner": 2},
      }.items() for key, value in keys.items()),
])
def test_a_key_of_the_other_kind_of_model_is_refused(complaint, text, expected):
    assert expected in complaint("[model]\n" + text)


def test_a_kind_in_an_override_drops_the_files_keys_of_the_other_kind_and_no_key_of_an_override(loaded, complaint):
    text, kind = "[model]\nhidden = [3]", "model.kind=transformer"
    assert loaded(text, kind).model.hidden == ModelKeys().hidden
    assert "model.hidden is for model.kind mlp" in complaint(text, kind, "model.hidden=[4]")


def test_every_key_of_a_model_is_of_one_kind_or_of_both():
    both = {"kind", "frozen", "weights", "own"}
    assert {key.name for key in fields(ModelKeys)} == both | {key for kind in MODELS.values() for key in kind.own_keys}
