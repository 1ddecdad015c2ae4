"""What `zerosim run` says of a scenario, beside what an independent trainer comes to."""

import json
import tempfile
from dataclasses import fields
from hashlib import sha256
from pathlib import Path

from safetensors.numpy import load_file

from zerosim.commands.cli import main
from zerosim.scenario import Scenario

STAGES = ("ddp", "zero1", "zero2", "zero3")
SECTION_OF = {key.name: section for section in ("world", "data", "model", "parallel", "train")
              for key in fields(getattr(Scenario(), section))}
"""Of `schedule`, which two sections have, that of the learning rate."""


def alike(keys):
    """The stages, in lists of those that the page says compute the same."""
    if keys.get("param_dtype", "weights") != "weights":
        return [["zero3"], *([stage for stage in stages if stage != "zero3"] for stages in alike(
            {**keys, "param_dtype": "weights"}))]
    if keys.get("publish") == "updates" and keys.get("precision") in ("fp16", "bf16"):
        if keys.get("accumulation") == "micro_batch":
            return [[stage] for stage in STAGES]
        return [["zero1", "zero2"], ["ddp", "zero3"]]
    if keys.get("accumulation") == "micro_batch" and keys["micro_batches"] > keys["ranks"]:
        return [["zero2", "zero3"], ["ddp", "zero1"]]
    return [list(STAGES)]


def run(keys, stages, write=lambda folder: None):
    """What `zerosim run` reports of each stage, and the weights that it leaves; `write` puts data in its folder."""
    settings = {f"{SECTION_OF[key]}.{key}": value for key, value in keys.items()}
    settings |= {"parallel.stages": stages, "check.reference": False}
    with tempfile.TemporaryDirectory() as folder:
        scenario, report, weights = (Path(folder) / name for name in ("run.toml", "run.json", "run.safetensors"))
        write(Path(folder))
        scenario.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
        code = main(["run", str(scenario), "--json", str(report), "--weights", str(weights), "--progress", "none"])
        assert code == 0
        return json.loads(report.read_text())["stages"], load_file(weights)


def differences(rows, file, expected):
    """What a run left that is not, to the bit, what was expected."""
    weights, losses, updates = expected
    digest = sha256(b"".join(w.tobytes() for w in weights.values())).hexdigest()
    found = []
    if sorted(file) != sorted(weights):
        found.append(f"the file has {sorted(file)}")
    for name, w in weights.items():
        if name in file and described(file[name]) != described(w):
            found.append(f"{name} in the file")
    for row in rows:
        if row["weights_sha256"] != digest:
            found.append(f"weights of {row['stage']}")
        if [exactly(loss) for loss in row["losses"]] != [exactly(loss) for loss in losses]:
            found.append(f"losses of {row['stage']}: {row['losses']}, not {losses}")
        if row["updates"] != updates:
            found.append(f"updates of {row['stage']}: {row['updates']}, not {updates}")
    return found


def described(array):
    return array.dtype, array.shape, array.tobytes()


def exactly(loss):
    """A float as text that tells all of its bits, −0 among them; NaN as NaN."""
    return float(loss).hex()
