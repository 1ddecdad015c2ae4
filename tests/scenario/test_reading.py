"""A file and overrides make a scenario; a wrong value is one line: where, what was found, what is allowed."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.inspect import BoolType, FloatType, IntType, Metadata, StrType, TupleType, VarTupleType

from zerosim.core.errors import ScenarioError
from zerosim.core.words import toml
from zerosim.models import MODELS
from zerosim.scenario import ModelKeys, Scenario, Train, WorldKeys, load, resolved
from zerosim.scenario.reading import keys
from zerosim.scenario.sections import Check, Checkpoint, Data, Parallel, Variant
from zerosim.scenario.values import names_in
from zerosim.stages.gathering import PUBLISHING
from zerosim.stages.optimizers import OPTIMIZERS

SECTIONS = {"world": WorldKeys, "data": Data, "model": ModelKeys, "train": Train, "parallel": Parallel, "check": Check,
            "checkpoint": Checkpoint}
KEYS = {f"{name}.{key}": kind for name, section in SECTIONS.items() for key, kind in keys(section).items()}


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


def wrong_values(kind):
    """Values in TOML that an annotation does not allow: of another type, out of its bounds, or a name misspelt."""
    match kind:
        case Metadata(type=inner):
            yield from wrong_values(inner)
            for name in list(filter(None, names_in(kind)))[:1]:
                yield f'"{name}z"'
        case BoolType():
            yield from ("1", '"true"')
        case IntType(ge=least, le=most):
            yield from ("1.5", '"1"', "true", f"{least - 1}", f"{most + 1}")
        case FloatType(ge=least):
            yield from ('"1"', "nan", "inf", *([] if least is None or least < -1e300 else [f"{least - 1.0}"]))
        case StrType():
            yield "1"
        case TupleType(item_types=(item, *_)) | VarTupleType(item_type=item):
            yield from ("1", *(f"[{each}]" for each in wrong_values(item)))
        case _:
            yield "{}"


@pytest.mark.parametrize("key", KEYS)
def test_a_wrong_value_of_a_key_is_one_line_at_the_key(key, complaint):
    section, name = key.split(".")
    for value in wrong_values(KEYS[key]):
        said = complaint(f"title = 'a'\n[{section}]\n\n{name} = {value}")
        assert re.match(rf"a\.toml:4: {re.escape(key)}(\[\d\])* must be .+, found .+", said), said
        assert complaint("", f"{key}={value}").startswith(f"--set:1: {key}")


def test_what_is_found_and_allowed_is_told_with_the_nearest_name(complaint):
    assert complaint("[train]\noptimizer = 'adm'") == (
        f"a.toml:2: train.optimizer must be {', '.join(OPTIMIZERS)} or FILE.py:NAME, "
        'found "adm"; did you mean "adam"?')
    assert complaint("[train]\nsteps = -1") == "a.toml:2: train.steps must be an integer of at least 0, found -1"
    assert complaint("[parallel]\nstages = 'ddp'").endswith('found "ddp"; arrays are written in brackets')
    assert complaint("variant = 1").endswith("found 1; write [[variant]]")


@pytest.mark.parametrize("key", KEYS)
def test_a_misspelt_key_is_told_the_nearest(key, complaint):
    section, name = key.split(".")
    said = complaint(f"[{section}]\n{name}z = 1")
    assert said.startswith(f"a.toml:2: unknown key '{name}z' in [{section}]; did you mean '")


@pytest.mark.parametrize(("text", "expected"), [
    ("a = 1\r\nb = adam\r\n", "a.toml:2: this is not TOML: invalid value (strings need quotes)"),
    ("x = [1,\n2", "a.toml:2: this is not TOML: "),
    ("a = 1\nb = é".encode("latin-1"), "a.toml:2: found the byte 0xe9; a scenario is UTF-8 text"),
    ("\ufefftitle = 1", "a.toml:1: title must be a string in quotes, found 1"),
    ("[[variant]]\nname = 'a'\n[[variant]]\nunits = [[0, 'a']]", "a.toml:4: variant[1].units"),
])
def test_text_that_is_no_scenario(complaint, text, expected):
    assert complaint(text).startswith(expected)


@pytest.mark.parametrize(("override", "key", "value"), [
    ("train.optimizer=sgd", "optimizer", "sgd"), ('train."optimizer" = "sgd" # yes', "optimizer", "sgd"),
    ("train.steps=0x10", "steps", 16), ("train.betas=[0.5, 0.5]", "betas", (0.5, 0.5)),
    ("train={steps = 7}", "steps", 7)])
def test_an_override_is_toml_or_else_a_string(loaded, override, key, value):
    assert getattr(loaded("[train]\nsteps = 5\nseed = 3", override).train, key) == value


def test_overrides_replace_in_order_and_mend(loaded):
    scenario = loaded(
        "world.ranks = 3\n[train]\nsteps = 'ten'", "train.steps=1", "train.steps=2", "train.micro_batches=9")
    assert (scenario.train.steps, scenario.train.micro_batches) == (2, 9)
    assert loaded("", "title=a=b").title == "a=b"


@pytest.mark.parametrize("override", ["train.steps", "", "# a=1", "[train]\nsteps=1", "=5", "train..steps=5"])
def test_an_override_that_is_none(complaint, override):
    assert re.match("--set:1: (an override is written|this is not TOML)", complaint("", override))


def test_keys_that_do_not_agree_are_refused_in_python_too():
    with pytest.raises(ScenarioError, match=r"multiple of world\.ranks = 3"):
        Scenario(world=WorldKeys(3))


@settings(max_examples=40)
@given(st.builds(
    Scenario,
    title=st.text(st.characters(codec="utf-8")),
    model=st.builds(ModelKeys, hidden=st.lists(st.integers(1, 10**6), max_size=3).map(tuple)),
    train=st.builds(Train, steps=st.integers(0, 2**63 - 1), learning_rate=st.floats(0, allow_infinity=False),
                    optimizer=st.sampled_from(list(OPTIMIZERS))),
    variant=st.lists(st.builds(
        Variant, name=st.text(st.characters(codec="utf-8")), stage=st.sampled_from(("zero1", "zero2")),
        publish=st.none() | st.sampled_from([*PUBLISHING]), overlap=st.none() | st.booleans()), max_size=2).map(tuple)))
def test_a_resolved_scenario_written_as_toml_is_the_scenario(tmp_path_factory, scenario):
    path = tmp_path_factory.getbasetemp() / "resolved.toml"
    path.write_text(toml(resolved(scenario)), encoding="utf-8")
    assert load(path) == scenario


@pytest.mark.parametrize(("text", "expected"), [
    ("stage = 'ddp'\naccumulation = 'micro_batch'",
     'a.toml:3: variant[0].accumulation = "micro_batch" does nothing in stage ddp: it reduces once a step, at the '
     "boundary; leave it out, or name another stage"),
    ("stage = 'zero2'\nprefetch = true", "prefetch = true does nothing in stage zero2: it gathers no weights"),
    ("publish = 'broadcasts'", 'a.toml:2: variant[0].publish = "broadcasts" does nothing in stage zero3'),
    ("stage = 'ddp'\npublish = 'updates'", "every rank updates all weights, and publishes none")])
def test_a_variant_is_refused_what_its_stage_cannot_follow(complaint, text, expected):
    assert expected in complaint("[[variant]]\n" + text)


OF_ANOTHER = {kind: [key for other in MODELS.values() for key in other.own_keys if key not in MODELS[kind].own_keys]
              for kind in MODELS}


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind, others in OF_ANOTHER.items() for key in others])
def test_a_key_of_another_kind_of_model_is_refused(kind, key, complaint):
    value = {"hidden": "[3]", "unused_parameters": "[3]", "activation": "'tanh'", "architecture": "'llama'",
             "tied_embeddings": "true", "dropout": "0.5", "gelu": "'exact'"}.get(key, "3")
    assert complaint(f"[model]\nkind = '{kind}'\n{key} = {value}").startswith(
        f"a.toml:3: model.{key} is for model.kind ")


def test_a_kind_in_an_override_drops_the_files_keys_of_the_other_kind_and_no_key_of_an_override(loaded, complaint):
    text, kind = "[model]\nhidden = [3]", "model.kind=transformer"
    assert loaded(text, kind).model.hidden == ModelKeys().hidden
    assert "model.hidden is for model.kind mlp" in complaint(text, kind, "model.hidden=[4]")


def test_every_key_of_a_model_is_of_one_kind_or_of_all():
    both = {"kind", "frozen", "weights", "own"}
    assert {key.name for key in fields(ModelKeys)} == both | {key for kind in MODELS.values() for key in kind.own_keys}
