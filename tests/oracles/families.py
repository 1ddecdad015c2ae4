"""Parameters of Hugging Face's classes, for `tests/plan/test_families.py`: `python -m tests.oracles.families`.

It builds every class on torch's device `meta`, and writes `tests/plan/families.json`: configurations of published
models, of each family's class at small sizes, and of settings that change the parameters.
"""

import json
import logging
import warnings
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "plan" / "families.json"


def parameters_of(config: dict[str, Any]) -> int:
    """The parameters of the class for causal language modelling; of a model with vision, those of its text."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    settings, kind = {**config, **config.get("text_config", {})}, config["model_type"]
    kind = {"kimi_k2": "deepseek_v3", "gemma3": "gemma3_text"}.get(kind, kind)
    for name in ("model_type", "quantization_config", "text_config", "vision_config"):
        settings.pop(name, None)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings))
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    """Count the parameters of every configuration again."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    cases = json.loads(FILE.read_text("utf-8"))
    for case in cases:
        case["parameters"] = parameters_of(case["config"])
    FILE.write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n", "utf-8")


if __name__ == "__main__":
    main()
