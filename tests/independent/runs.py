"""What a run in one process makes of a scenario, beside what an independent trainer comes to."""

import json
import tempfile
from dataclasses import fields
from hashlib import sha256
from pathlib import Path

from zerosim.scenario import Scenario, load
from zerosim.verdict.judged_run import prepare_run, run_locally

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
    """The measurements of each stage, and the weights that the last leaves; `write` puts data in the run's folder."""
    settings = {f"{SECTION_OF[key]}.{key}": value for key, value in keys.items()}
    settings |= {"parallel.stages": stages, "check.reference": False}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        scenario = Path(folder) / "run.toml"
        scenario.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
        outcome = run_locally(prepare_run(load(str(scenario)), keep_weights=True))
    assert outcome.failures == []
    rows = [row.measured for row in outcome.trained]
    return rows, {name: view for unit, flat in rows[-1].weights.items() for name, view in unit.views(flat).items()}


def differences(rows, left, expected):
    """What a run left that is not, to the bit, what was expected."""
    weights, losses, updates = expected
    digest = sha256(b"".join(w.tobytes() for w in weights.values())).hexdigest()
    found = []
    if sorted(left) != sorted(weights):
        found.append(f"the run left {sorted(left)}")
    found += [name for name, w in weights.items() if name in left and described(left[name]) != described(w)]
    for row in rows:
        stage = row.config.stage_key
        if row.weights_sha256 != digest:
            found.append(f"weights of {stage}")
        if [exactly(loss) for loss in row.losses] != [exactly(loss) for loss in losses]:
            found.append(f"losses of {stage}: {row.losses}, not {losses}")
        if row.updates != updates:
            found.append(f"updates of {stage}: {row.updates}, not {updates}")
    return found


def described(array):
    return array.dtype, array.shape, array.tobytes()


def exactly(loss):
    """A number as text that tells all of its bits, −0 among them; NaN as NaN."""
    return loss.item().hex()
