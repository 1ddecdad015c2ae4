"""What llm-analysis (0.2.2, github.com/cli99/llm-analysis, Apache-2.0) estimates of the shapes of shipped plans.

`python -m tests.oracles.peers FILE` in an environment that has it (`pip install --no-deps llm-analysis==0.2.2 fire
termcolor`) writes its answers; `peers.json` has them recorded. It estimates by formula: bytes of weights, gradients and
optimizer on a device, activations of a pass, and seconds of a step at the share of the peak that it is given:
half of it, about what such runs reach, since it fits none itself.
"""

import json
import sys
import tomllib
from pathlib import Path

PLANS = Path(__file__).parents[2] / "scenarios" / "plans"
SHAPES = (
    ("mpt_7b.toml", "a100-sxm-40gb", 0.5), ("zero_7b5.toml", "v100-sxm-32gb", 0.5),
    ("llama3_8b.toml", "h100-sxm-80gb", 0.5), ("gpt3_175b.toml", "a100-sxm-80gb", 0.5),
)
"""A plan, the device as llm-analysis names it, and the share of its peak."""
KEPT = (
    "num_params_total", "weight_memory_per_gpu", "gradient_memory_per_gpu", "optimizer_state_memory_per_gpu",
    "activation_memory_per_gpu", "latency_per_iter",
)


def main(path):
    from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
    from llm_analysis.config import ModelConfig, ParallelismConfig, get_gpu_config_by_name

    found = {}
    for name, device, share in SHAPES:
        said = tomllib.loads((PLANS / name).read_text())
        model, train, ranks = said["model"], said["train"], said["world"]["ranks"]
        llama = model.get("architecture") == "llama"
        config = ModelConfig(
            name=name, num_layers=model["layers"], n_head=model["heads"], hidden_dim=model["width"],
            vocab_size=model["vocabulary"], max_seq_len=model["sequence"],
            num_key_value_heads=model.get("key_value_heads"), ffn_embed_dim=model.get("inner", 4 * model["width"]),
            expansion_ratio=model.get("inner", 4 * model["width"]) / model["width"], model_type=None,
        )
        analysis = LLMAnalysis(
            config, get_gpu_config_by_name(device), parallelism_config=ParallelismConfig(dp_size=ranks),
            flops_efficiency=share,
        )
        answer = analysis.training(
            batch_size_per_gpu=train["micro_batch"], gradient_accumulation_steps=train["micro_batches"] // ranks,
            seq_len=model["sequence"], ds_zero=DSZeRO.STAGE_3,
            activation_recomputation=ActivationRecomputation.FULL, mlp_gated_linear_units=llama,
        )
        found[name] = {key: answer[key] for key in KEPT}
    Path(path).write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
