"""Each condition between keys refuses a wrong scenario, which is generated: in one line, at one of its keys."""

import re
from itertools import product

import pytest

from tests.laws.runs import KEYS
from zerosim.core.errors import ScenarioError
from zerosim.core.words import toml
from zerosim.scenario import conditions, load

SMALL = {"world.ranks": 2, "model.hidden": [4, 3], "train.steps": 2, "train.micro_batch": 3, "train.micro_batches": 4}
GPT = SMALL | {"model.kind": "transformer", "model.layers": 2, "model.tied_embeddings": True}
FOUR = SMALL | {"world.ranks": 4}
PIPELINE = FOUR | {"parallel.pipeline_ranks": 2, "parallel.stages": ["ddp"]}
del GPT["model.hidden"]
BASES = (
    SMALL, PIPELINE, PIPELINE | {"parallel.recompute": True},
    GPT | {"world.ranks": 4, "parallel.pipeline_ranks": 2, "parallel.stages": ["ddp"]},
    GPT | {"model.kind": "mixture", "model.tied_embeddings": False, "parallel.expert_ranks": 2},
    FOUR | {"parallel.tensor_ranks": 2}, FOUR | {"parallel.tensor_ranks": 2, "world.ranks_per_host": 2},
    FOUR | {"world.ranks_per_host": 3}, FOUR | {"world.ranks_per_host": 2},
    FOUR | {"parallel.shard_ranks": 2}, FOUR | {"parallel.autocast": "bf16"}, FOUR | {"parallel.schedule": "gpipe"})
VALUES = {
    "world.ranks": (2, 3, 4, 6), "train.micro_batches": (4, 5, 6), "train.micro_batch": (3,),
    "train.warmup_steps": (9,), "model.frozen": ([0], [9]), "parallel.recompute": (False, True, [9]),
    "parallel.units": ([[0], [1]], [[1], [0]]), "parallel.bucket_mb": (1e-6, 1.0),
    "parallel.pipeline_layers": ([1, 9],), "parallel.stages": (["zero3"], ["ddp"]), "check.same_bits_on": ([3], [8]),
    "check.process_memory": (True,),
    "parallel.reduce_scatter": ("halving", "ring"), "parallel.all_gather": ("doubling", "ring"),
}
NUMBERS = (0, 1, 2, 3)


def values(key):
    """What a key is set to: nothing, and some of what it may hold."""
    some = [1.5] if key in ("check.volumes",) else [7]
    rows = [some] if key.startswith("check.") and key not in VALUES else None
    return (None, *(rows or VALUES.get(key) or KEYS.get(key) or NUMBERS))


def settings_of(keys):
    """Scenarios that set these keys to anything, from each base."""
    for base in BASES:
        for chosen in product(*(values(key) for key in keys)):
            yield base | {key: value for key, value in zip(keys, chosen, strict=True) if value is not None}


def refusal(settings, path):
    """The error of a scenario in a file, if there is one."""
    path.write_text(toml(settings))
    try:
        load(path)
    except ScenarioError as error:
        return error
    return None


OF_USERS_PARTS = ("a schedule has the loops", "train.optimizer {optimizer}", "parallel.broadcast {broadcast}")
"""What only a part of a user's own violates; see the tests of these."""
CONDITIONS = {f"{number} {each[0].split()[0]}": each for number, each in enumerate(conditions.CONDITIONS)
              if not any(words in each[2] for words in OF_USERS_PARTS)}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_condition_refuses_a_wrong_scenario_at_one_of_its_keys(condition, tmp_path, monkeypatch):
    keys, _, message = CONDITIONS[condition]
    monkeypatch.setattr(conditions, "CONDITIONS", (CONDITIONS[condition],))
    wanted = re.compile(".*: " + re.sub(r"\\{[^}]*\\}", ".*", re.escape(message)))
    errors = (error for settings in settings_of(keys.split()) if (error := refusal(settings, tmp_path / "a.toml")))
    error = next(filter(lambda error: wanted.fullmatch(str(error)), errors))
    place, _, words = str(error).partition(": ")
    line = (tmp_path / "a.toml").read_text().splitlines()[int(place.split(":")[1]) - 1]
    assert "\n" not in words
    assert "{" not in words
    assert any(line.startswith(f"{key} = ") for key in keys.split()), (str(error), line)
