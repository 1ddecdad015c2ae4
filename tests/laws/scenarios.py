"""Random valid scenarios: a corner, and a few keys of the schema set to anything; what is refused is drawn again.

The schema says what a key may hold, and the package refuses what does not go together, so nothing here repeats a rule.
A corner is what only several keys together reach; the first scenario of each corner is the corner alone.
"""

from random import Random

from tests.laws.runs import KEYS, Refused, prepared

MENU = {
    "ranks": (1, 2, 3, 4, 6), "ranks_per_host": (1, 2, 3), "hidden": ([], [7], [5, 4, 3]), "frozen": ([0], [1]),
    "layers": (1, 2), "dropout": (0.5,), "steps": (1, 3, 5), "micro_batch": (1, 2),
    "micro_batches": (1, 4, 6, 8, 9, 12),
    "learning_rate": (0.02, 1.0, 1e5), "weight_decay": (0.3,), "warmup_steps": (2,), "clip_norm": (0.02, 50.0),
    "loss_scale": (8, 1000.5, 2.0**40), "momentum": (0.5,), "stages": (["zero3"], ["zero2"], ["ddp", "zero1"]),
    "units": ("model", [[0, 1], [2]], [[0], [1, 2]]), "shard_ranks": (1, 2, 3),
    "secondary_ranks": (1, 2, 3), "recompute": (True, [0], [1]), "quantized_block": (0, 3, 256),
    "bucket_mb": (0.00004,),
    "pipeline_layers": ([1, 3], [3, 1]), "seed": (1,),
}
"""The values of keys that are neither a choice nor a switch; a key that is none of the three is not drawn."""
MLP = {"ranks": 3, "hidden": [5, 4], "activation": "tanh", "steps": 3, "micro_batch": 2, "micro_batches": 6,
       "learning_rate": 0.02}
SKIPPING = MLP | {
    "precision": "fp16", "clip_norm": 0.5, "weight_decay": 0.3, "decay_biases": False, "loud": 3000, "steps": 12,
    "warmup_steps": 2, "activation": "relu", "train.schedule": "cosine"}
"""The first steps overflow, so that a step's number is not that of its update."""
BF16 = MLP | {"precision": "bf16", "accumulate_dtype": "fp32"}
GPT = {"kind": "transformer", "layers": 1, "width": 6, "heads": 3, "vocabulary": 8, "sequence": 4, "ranks": 2,
       "steps": 2, "micro_batch": 2, "micro_batches": 4, "learning_rate": 0.05, "stages": ["zero2", "zero3"]}
SPLIT = GPT | {"width": 8, "heads": 2, "architecture": "llama", "ranks": 4}
PIPE = MLP | {"ranks": 4, "hidden": [5, 4, 3], "micro_batches": 8, "pipeline_ranks": 2,
              "stages": ["ddp", "zero1", "zero2"]}
PIPED = GPT | {"ranks": 4, "layers": 2, "micro_batches": 8, "pipeline_ranks": 2, "stages": ["ddp", "zero2"]}
HOSTS = MLP | {"ranks": 4, "micro_batches": 8, "ranks_per_host": 2}
LARGE = MLP | {"hidden": [112, 145], "steps": 2}
"""An update, or a wire, cuts its units into pieces; the last one has one element."""
CORNERS = [
    MLP, LARGE, LARGE | {"quantized_gradients": "int8", "quantized_weights": "fp8_e4m3"}, SKIPPING,
    SKIPPING | {"clip_norm": 0.0}, SKIPPING | {"publish": "updates", "optimizer": "adamw"},
    SKIPPING | {"gradients": "all_reduce", "optimizer": "momentum", "momentum": 0.8},
    SKIPPING | {"ranks": 1, "micro_batches": 2},
    HOSTS | {"publish": "broadcasts", "broadcast": "naive"}, SKIPPING | {"publish": "broadcasts"},
    SKIPPING | {"overlap": True, "prefetch": True},
    BF16 | {"reduce_dtype": "fp32", "clip_norm": 0.02}, BF16 | {"optimizer": "sgd", "units": "model"},
    BF16 | {"order": "rank", "accumulation": "micro_batch"}, BF16 | {"order": "exact", "micro_batches": 9},
    BF16 | {"accumulate_dtype": "weights", "accumulation": "micro_batch"}, BF16 | {"learning_rate": 1e30},
    MLP | {"activation": "relu", "optimizer": "sgd", "learning_rate": 1e30, "steps": 5},
    SKIPPING | {"loss_scale": 2.0**40},
    MLP | {"precision": "fp64", "hidden": [], "clip_norm": 0.02, "ranks": 2, "micro_batches": 4, "steps": 12},
    MLP | {"order": "tree", "ranks": 4, "micro_batches": 16, "clip_norm": 0.02},
    MLP | {"reshard_after_forward": False, "frozen": [0], "clip_norm": 0.02},
    MLP | {"reshard_after_forward": False, "accumulation": "micro_batch"},
    MLP | {"prefetch": True, "accumulation": "micro_batch"}, MLP | {"prefetch": True, "frozen": [1]},
    MLP | {"overlap": True, "accumulation": "micro_batch", "units": [[0, 1], [2]]},
    MLP | {"overlap": True, "gradients": "all_reduce", "frozen": [0]}, MLP | {"recompute": [0], "units": [[0, 1], [2]]},
    MLP | {"bucket_mb": 0.00004, "order": "exact", "clip_norm": 0.02}, MLP | {"param_dtype": "bf16", "steps": 4},
    MLP | {"autocast": "bf16", "clip_norm": 0.02, "accumulation": "micro_batch"},
    HOSTS | {"order": "two_level", "clip_norm": 0.02}, HOSTS | {"order": "two_hop", "quantized_gradients": "int8"},
    HOSTS | {"shard_ranks": 2, "clip_norm": 0.02}, HOSTS | {"shard_ranks": 2, "overlap": True},
    HOSTS | {"secondary_ranks": 2}, HOSTS | {"secondary_ranks": 2, "param_dtype": "bf16", "stages": ["zero3"]},
    HOSTS | {"secondary_ranks": 2, "quantized_weights": "int8", "stages": ["zero3"]},
    MLP | {"quantized_weights": "int4", "quantized_gradients": "int8", "quantized_block": 3},
    SKIPPING | {"quantized_gradients": "fp8_e5m2", "clip_norm": 0.0},
    BF16 | {"quantized_gradients": "int8", "accumulation": "micro_batch"},
    MLP | {"offload_optimizer": "host"}, MLP | {"offload_parameters": "host", "prefetch": True},
    BF16 | {"offload_optimizer": "host", "offload_parameters": "host", "reshard_after_forward": False},
    GPT | {"dropout": 0.5, "accumulation": "micro_batch"}, GPT | {"dropout": 0.5, "accumulation": "layered"},
    GPT | {"tied_embeddings": True, "precision": "fp16", "accumulate_dtype": "fp32", "recompute": True, "dropout": 0.5},
    GPT | {"tied_embeddings": True, "frozen": [1], "reshard_after_forward": False, "clip_norm": 0.02},
    GPT | {"recompute": True, "offload_activations": True, "prefetch": True},
    SPLIT | {"tensor_ranks": 2, "sequence_parallel": True, "vocabulary_parallel": True},
    SPLIT | {"tensor_ranks": 2, "recompute": True, "partition_activations": True},
    SPLIT | {"context_ranks": 2, "context_by": "all_to_all"}, SPLIT | {"context_ranks": 2, "clip_norm": 0.02},
    SPLIT | {"key_value_heads": 1, "head_size": 4, "inner": 12},
    HOSTS | {"secondary_ranks": 2, "param_dtype": "bf16"},
    HOSTS | {"order": "rank", "quantized_gradients": "int8", "quantized_block": 3},
    HOSTS | {"shard_ranks": 2, "reduce_scatter": "direct"}, HOSTS | {"order": "two_hop", "reduce_scatter": "direct"},
    MLP | {"precision": "bf16", "reduce_dtype": "fp32", "clip_norm": 0.02},
    HOSTS | {"all_gather": "bruck", "reduce_scatter": "direct"},
    SPLIT | {"latent": 4, "query_latent": 6, "rotary_size": 2, "head_size": 4},
    SPLIT | {"kind": "mixture", "experts": 4, "layers": 3, "dense_layers": 1, "dense_inner": 12, "shared_inner": 4},
    SPLIT | {"kind": "mixture", "experts": 4, "queue_tokens": 2, "expert_ranks": 2, "clip_norm": 0.02},
    MLP | {"ranks": 4, "hidden": [6, 4], "tensor_ranks": 2, "overlap": True},
    PIPE | {"schedule": "gpipe", "clip_norm": 0.02}, PIPE | {"schedule": "zb_h1", "overlap": True},
    PIPE | {"schedule": "interleaved_1f1b", "model_chunks": 2, "recompute": True, "hidden": [5, 4, 3, 3, 3]},
    PIPE | {"pipeline_layers": [1, 3]}, PIPE | {"precision": "fp16"},
    PIPED | {"tied_embeddings": True, "clip_norm": 0.02}, PIPED | {"tied_embeddings": True, "gradients": "all_reduce"},
    PIPED | {"schedule": "zb_h1", "dropout": 0.1}, MLP | {"ranks": 6, "shard_ranks": 2, "clip_norm": 0.02},
    MLP | {"precision": "fp64", "hidden": [9, 10], "clip_norm": 1e-5, "ranks": 4, "micro_batches": 4, "steps": 4,
           "stages": ["zero2"]},  # a square sum of padding, too, would group its additions otherwise
    GPT | {"unused_parameters": [5], "precision": "bf16_alone"},
    SPLIT | {"kind": "mixture", "experts": 4, "tied_embeddings": True, "unused_parameters": [3, 2], "expert_ranks": 2},
]
NOT_DRAWN = ("model.kind",)
DRAWN = {key: MENU.get(key.split(".")[1]) or values for key, values in KEYS.items()
         if key not in NOT_DRAWN and not key.startswith("cluster.")}
FREE = [(key, values) for key, values in DRAWN.items() if values]
SECTION_OF = {key.split(".")[1]: key for key in [*KEYS, "data.loud"]
              if not key.startswith("cluster.") and key != "train.schedule"}


def in_sections(corner):
    """The settings of a corner, whose keys are written without their sections but where two sections have one."""
    return {SECTION_OF.get(name, name): value for name, value in corner.items()}


def drawn(number):
    """The settings of a number."""
    chance, corner = Random(number), in_sections(CORNERS[number % len(CORNERS)])
    if number < len(CORNERS):
        return corner
    while True:
        settings = corner | {key: chance.choice(values) for key, values in chance.sample(FREE, chance.randint(1, 8))}
        try:
            prepared(settings)
        except Refused:
            continue
        return settings
