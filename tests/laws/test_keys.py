"""Every key acts: some value of it changes the bits or a figure of some run, for each kind of model that accepts it.

Rows and their reference read a scenario alike, so a key that both ignore leaves "the same bits". Here a run is compared
with the run of other settings. A key that a kind of model refuses is not ignored, and some kind has to accept it.
An MLP has two kinds of data: labels, and numbers (regression).
"""

from functools import cache

import pytest

from tests.laws.runs import DEFAULTS, KEYS, Refused, planned, prepared, unjudged
from tests.laws.scenarios import CORNERS, DRAWN, GPT, in_sections
from tests.sampling import one_in
from zerosim.models import MODELS

KINDS = ("mlp", "transformer", *sorted(MODELS.keys() - {"mlp", "transformer"}))
REGRESSION = "mlp on numbers"
TRIALS = (1, 2, 3, 4, 6, 0.1, 0.5, 30.0, [0], [1], [1, 1, 2], [0.5, 0.9])
"""What a key is set to that is neither a choice nor a switch, and is not drawn; most is refused."""
PLANNED = GPT | {"ranks": 16, "layers": 2, "width": 512, "heads": 8, "vocabulary": 1000, "sequence": 512,
                 "micro_batches": 16, "precision": "bf16", "stages": ["zero3"]}
SILENT = {
    "cluster.reserve": "it moves the memory at which a row no longer fits",
    "model.weights": "it names a file of first weights",
}
"""Keys that change no bits and no figure, each with its reason."""


@cache
def bases(kind):
    """The corners of a kind of model, then those of the others with its model; all without a reference."""
    if kind == REGRESSION:
        return [base | {"data.regression": True, "data.loud": 1} for base in bases("mlp")]
    own = [in_sections(corner) for corner in CORNERS if corner.get("kind", "mlp") == kind]
    model = {key: value for key, value in own[0].items() if key.startswith("model.")}
    others = [model | {key: value for key, value in in_sections(corner).items() if not key.startswith("model.")}
              for corner in CORNERS if corner.get("kind", "mlp") != kind]
    small = {"check.reference": False, "parallel.stages": ["zero2", "zero3"]}
    return [small | base for base in (*own, *filter(accepted, others))]


def accepted(settings):
    try:
        return prepared(settings)
    except Refused:
        return None


@cache
def base_figures(kind, number):
    return repr(unjudged(prepared(bases(kind)[number])))  # as text, in which NaN is NaN


def effect(key, kind):
    """`acts`, `silent`, or `refused` where no value is accepted other than the one that a corner has."""
    said, all_bases = "refused", list(enumerate(bases(kind)))
    for number, base in [*all_bases[:1], *(each for each in all_bases if key in each[1]), *all_bases[1:3]]:
        for value in DRAWN.get(key) or KEYS.get(key) or TRIALS:
            if value != base.get(key, DEFAULTS[key]) and (changed := accepted(base | {key: value})):
                if repr(unjudged(changed)) != base_figures(kind, number):
                    return "acts"
                said = "silent"
    return said


LINK = {"latency_us": 5, "gigabytes_per_second": 1.0}
MACHINES = {"cluster.device": ("a100_80gb",), "cluster.inside": (LINK,), "cluster.between": (LINK,),
            "cluster.host_memory": (LINK,), "cluster.figures": ({"memory_share": 0.3},),
            "cluster.live_parameters": (10**9,), "cluster.expert_slices": (4,)}
PLANS = [in_sections(PLANNED | keys) for keys in (
    {}, {"offload_optimizer": "host"}, {"all_gather": "auto"}, {"cluster.software": "compiled"}, {"layers": 6},
    {"cluster.adapter_rank": 4}, {"kind": "mixture", "experts": 16, "expert_ranks": 16, "micro_batch": 16})]


def plan_of(settings):
    try:
        return planned(settings)
    except Refused:
        return None


@pytest.mark.parametrize("key", [key for key in KEYS if key.startswith("cluster.") and key not in SILENT])
def test_a_key_of_the_machine_acts_in_a_plan(key):
    values = MACHINES.get(key) or [value for value in KEYS[key] if value != DEFAULTS[key]] or (1, 2, 0.5, 1e6)
    assert any((rows := plan_of(base | {key: value})) and rows != planned(base) for base in PLANS for value in values)


ACTING = [key for key in KEYS if key.startswith(("model.", "train.", "parallel.")) and key not in SILENT]


@pytest.mark.parametrize("number", one_in(3, range(len(ACTING))))
def test_a_key_acts_in_a_kind_of_model(number):
    """In the first that accepts it: every second key begins with an MLP, and the others with a transformer."""
    effects = (effect(ACTING[number], kind) for kind in (*KINDS[number % 2 : 2], *KINDS[: number % 2], *KINDS[2:]))
    assert next(found for found in effects if found != "refused") == "acts", (
        f"{ACTING[number]} changes no bits and no figure; what acts only beside another key needs a corner with both")


@pytest.mark.parametrize("key", one_in(2, [key for key in ACTING if not key.startswith("parallel.")]))
def test_a_key_acts_in_regression_too_or_is_refused(key):
    assert effect(key, REGRESSION) != "silent", f"{key} does nothing where targets are numbers; refuse it there"


@pytest.mark.long
@pytest.mark.parametrize("key", ACTING)
def test_a_key_acts_in_every_kind_of_model_that_accepts_it(key):
    assert {effect(key, kind) for kind in KINDS} <= {"acts", "refused"}


@pytest.mark.long
def test_a_key_that_one_kind_of_model_or_data_drops_is_seen(monkeypatch):
    honest = prepared

    def dropping(settings):
        drops = settings.get("model.kind") == "mixture" or "data.regression" in settings
        return honest({key: value for key, value in settings.items() if not drops or key != "train.clip_norm"})

    base_figures.cache_clear()
    monkeypatch.setitem(globals(), "prepared", dropping)
    effects = {kind: effect("train.clip_norm", kind) for kind in (*KINDS, REGRESSION)}
    base_figures.cache_clear()
    assert effects == {"mlp": "acts", "transformer": "acts", "mixture": "silent", REGRESSION: "silent"}


def test_the_keys_that_are_silent_are_keys():
    assert set(SILENT) <= set(KEYS)
