"""The names that Megatron-LM, torchtitan, DeepSpeed and Accelerate read, from their sources.

    python -m tests.oracles.argument_names PROJECT FOLDER

adds those of a checkout in FOLDER to `argument_names.json`: `megatron` of NVIDIA/Megatron-LM d98e8a6, `torchtitan` of
pytorch/torchtitan v0.2.2, `deepspeed` of deepspeedai/DeepSpeed edaa722, `fsdp` of huggingface/accelerate 16cb6eb.
Sources are parsed and not run. `tests/test_arguments.py` compares with them what `zerosim plan --write` writes.
"""

import ast
import json
import re
import sys
from pathlib import Path

RECORDED = Path(__file__).with_name("argument_names.json")
SOURCES = {
    "megatron": (
        "megatron/training/arguments.py", "megatron/training/config/*.py", "megatron/core/model_parallel_config.py",
        "megatron/core/transformer/transformer_config.py", "megatron/core/optimizer/optimizer_config.py",
        "megatron/core/distributed/distributed_data_parallel_config.py"),
    "torchtitan": ("torchtitan/config/job_config.py",),
    "deepspeed": ("deepspeed/runtime/constants.py", "deepspeed/runtime/zero/*config.py"),
    "fsdp": ("src/accelerate/commands/launch.py",),
}


def names_in(text, *, sections):
    """The texts such as --name, those of constants, and the fields of classes; with `sections` section.field."""
    tree = ast.parse(text)
    classes = [each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)]
    fields = {each.name: {line.target.id: ast.unparse(line.annotation) for line in each.body
                          if isinstance(line, ast.AnnAssign)} for each in classes}
    if sections:
        return {f"{section}.{name}" for section, of in fields["JobConfig"].items() for name in fields.get(of, ())}
    found = {name for each in fields.values() for name in each}
    found |= {each.value.removeprefix("--").replace("-", "_") for each in ast.walk(tree)
              if isinstance(each, ast.Constant) and re.fullmatch(r"--[a-z][\w-]+", str(each.value))}
    return found | {each.value.value for each in tree.body if isinstance(each, ast.Assign)
                    and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str)}


def main(project, folder):
    files = [path for pattern in SOURCES[project] for path in sorted(Path(folder).glob(pattern))]
    names = {name for path in files for name in names_in(path.read_text(), sections=project == "torchtitan")}
    known = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    text = json.dumps(known | {project: sorted(filter(str.isprintable, names))}, indent=0)
    RECORDED.write_text(text + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
