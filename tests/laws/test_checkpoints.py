"""A run that stops and resumes has the bits of one that was never interrupted; in another layout, of one process."""

import pytest

from tests.laws.digests import BITS, settings_left
from tests.laws.draws import DRAWS, toml
from tests.laws.runs import Refused, prepared, run, unjudged
from tests.sampling import one_in

LONG = [settings | {"train.schedule": "constant"} for draw in DRAWS
        if (settings := settings_left(draw["settings"])).get("train.steps", 0) >= 2]
SPLITS = [f"parallel.{direction}_ranks" for direction in ("tensor", "context", "expert", "pipeline")]
SPLIT = [settings for settings in LONG if any(settings.get(key, 1) > 1 for key in SPLITS)]
WHOLE_MODEL = {"world.ranks": 2, "world.ranks_per_host": 0, "parallel.order": "ring", **dict.fromkeys(SPLITS, 1)}
SAMPLE = [*SPLIT[:14:2], *LONG[3::4]]
LAYOUTS = (
    {"world.ranks": 2, "parallel.stages": ["zero3"]}, WHOLE_MODEL | {"parallel.stages": ["zero2"]},
    {"world.ranks": 4, "parallel.tensor_ranks": 2, "parallel.stages": ["zero3"]},
    WHOLE_MODEL | {"world.ranks": 4, "parallel.context_ranks": 2, "parallel.tensor_ranks": 2},
    WHOLE_MODEL | {"world.ranks": 4, "parallel.pipeline_ranks": 2, "parallel.stages": ["zero2"]},
)


def stopped(settings, folder):
    """The settings that train all steps but the last, and keep what they come to in a folder."""
    return settings | {"train.steps": settings["train.steps"] - 1, "checkpoint.folder": str(folder)}


def can_run(settings):
    try:
        return prepared(settings)
    except Refused:
        return None


@pytest.mark.parametrize("number", [*one_in(2, range(6)), *one_in(16, range(6, len(SAMPLE)))])
def test_a_run_stops_and_resumes_and_in_another_layout_too(number, tmp_path):
    settings = SAMPLE[number]
    fewer = settings | {"parallel.stages": ["ddp", "zero3"]}
    settings = fewer if can_run(fewer) else settings
    whole, _ = unjudged(prepared(settings)), unjudged(prepared(stopped(settings, tmp_path / "kept")))
    rest = run(prepared(settings), tmp_path / "kept")
    assert rest.failures == [], toml(settings)
    for (name, row), due in zip(rest.rows.items(), whole, strict=True):
        assert [row[what] for what in BITS] == [due[what] for what in BITS], (name, toml(settings))
    file = min((tmp_path / "kept").rglob("*.safetensors"))
    for other in LAYOUTS:
        if experiment := can_run(settings | other):
            assert run(experiment, file).failures == [], toml(settings | other)
