"""A TOML file and its overrides -> a `Scenario`, or one error with file, line and key.

Overrides are merged into the file's document; then each section is validated once. A file with the name on the command
line takes precedence over a shipped scenario (see `shipped/__init__.py`). `load` decides it, so that `run`, `plan`,
`zs.run` and `zs.plan` cannot differ.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zerosim.core.errors import ScenarioError, did_you_mean
from zerosim.core.files import content, reason
from zerosim.core.parts import Loader
from zerosim.models import MODELS
from zerosim.models.users_model import TOKEN_KEYS
from zerosim.scenario.collective import CollectiveScenario
from zerosim.scenario.reading import OVERRIDE, KeyPath, Origin, TomlTable, keys, parse, read, unknown
from zerosim.scenario.schema import Scenario, plain
from zerosim.scenario.sections import OF_ALL_ROWS, Parallel, Variant
from zerosim.scenario.shipped import scenario_file, scenarios
from zerosim.scenario.values import shown

Source = str | os.PathLike[str] | Mapping[str, Any] | Scenario
"""A path, the name of a shipped scenario, a dict with the types of TOML, or a scenario built in Python."""

CHANGED = "With "
SAY_NOTHING = ("title", "caption", "checkpoint")
"""The keys whose change leaves a caption true."""


def load(
    path: Source, overrides: Sequence[str] = (), *, python: bool = True
) -> Scenario | CollectiveScenario:
    """The scenario in the TOML file at `path`, or else the shipped one of that name, after `overrides`.

    An override has the form `"train.optimizer=sgd"`. The scenario is one of training, unless it has `kind =
    "collective"`.

    The caption of a scenario with changed keys names these instead of its own words, which may no longer be true.

    An override's value is TOML within the bounds of a scenario, or else a plain string; it replaces the file's.
    Without `python`, keys that name Python are refused. Raises `ScenarioError` with the file and the line of the error.
    """
    if isinstance(path, Mapping | Scenario):
        file, text, document = getattr(path, "origin", Origin()).file, "", as_tables(path)
    else:
        file = scenario_file(path)
        text = read_text(file)
        document = parse(text, file)
    pairs = [parse_override(override) for override in overrides]
    changed = [override for override, (key, _) in zip(overrides, pairs, strict=True) if key[0] not in SAY_NOTHING]
    for key, value in pairs:
        table = document
        for name in key[:-1]:
            if not isinstance(table.get(name), dict):
                table[name] = {}
            table = table[name]
        table[key[-1]] = value
    origin = Origin(file, text, tuple(key for key, _ in pairs), Loader(python))
    if changed and (document.get("title") or document.get("caption")) and not origin.is_override(("caption",)):
        document["caption"] = changed_caption("", changed)
    drop_keys_of_other_kinds(document, origin)
    if document.get("kind") == "collective":
        for name in sorted(({*keys(Scenario)} - {*keys(CollectiveScenario)}) & {*document}):
            raise origin.error(f"[{name}] is for training, and this is a scenario of collectives", (name,), at_key=True)
        return read(CollectiveScenario, document, (), origin)
    if not isinstance(path, Scenario):
        refuse_stages_beside_variants(document, origin)
    if isinstance(document.get("variant"), list):
        document["variant"] = [
            variant(table, ("variant", index), origin) for index, table in enumerate(document["variant"])]
    return read(Scenario, document, (), origin)


def refuse_stages_beside_variants(document: TomlTable, origin: Origin) -> None:
    """Raise `ScenarioError` for rows that are listed twice; variants of an override replace a file's stages.

    The usual stages, which a resolved scenario has, are those of variants too.
    """
    parallel, stages = document.get("parallel"), ("parallel", "stages")
    if not document.get("variant") or not isinstance(parallel, dict) or (
            parallel.get("stages", [*Parallel.stages]) == [*Parallel.stages]):
        return
    if origin.is_override(stages) or not origin.is_override(("variant",)):
        raise origin.error("parallel.stages does nothing beside [[variant]], whose rows are trained; leave it out, or "
                           "give each variant its stage", stages, at_key=True)
    del parallel["stages"]


def variant(table: Any, path: KeyPath, origin: Origin) -> Any:
    """The row of a [[variant]], whose keys are those of [parallel]; what is no table is returned as it is."""
    if not isinstance(table, dict):
        return table
    own = {key: value for key, value in table.items() if key not in keys(Variant)}
    allowed = {**keys(Variant), **{key: kind for key, kind in keys(Parallel).items() if key not in OF_ALL_ROWS}}
    for key in own:
        if key not in allowed:
            raise unknown(key, allowed, path, origin)
    named = read(Variant, {key: value for key, value in table.items() if key not in own}, path, origin)
    row = read(Parallel, own, path, origin)
    return Variant(named.name, named.stage, **{key: getattr(row, key) for key in own})


def drop_keys_of_other_kinds(document: TomlTable, origin: Origin) -> None:
    """Leave out the file's keys of a kind of model that an override has replaced."""
    model = document.get("model")
    if not isinstance(model, dict) or not origin.is_override(("model", "kind")):
        return
    kind = str(model.get("kind"))
    own = MODELS[kind].own_keys if kind in MODELS else TOKEN_KEYS
    others = {key for other in MODELS.values() for key in other.own_keys} - set(own)
    document["model"] = {key: value for key, value in model.items()
                         if key not in others or origin.is_override(("model", key))}


def changed_caption(caption: str, changes: Sequence[str]) -> str:
    """The caption of a scenario with other keys than its file's: these keys, because its own may no longer be true.

    >>> changed_caption(changed_caption("It fits on 8.", ["world.ranks=2"]), ["train.optimizer=sgd"])
    'With world.ranks=2, train.optimizer=sgd'
    """
    before = [caption.removeprefix(CHANGED)] if caption.startswith(CHANGED) else []
    return CHANGED + ", ".join([*before, *changes])


def as_tables(value: Any) -> Any:
    """A dict or a scenario of Python in TOML's types: users' parts stay as they are, and keys that are not set are left
    out, as are lists of tables that may not be empty."""
    match plain(value, lambda part: part):
        case dict(table):
            return {key: as_tables(item) for key, item in table.items()
                    if item is not None and not (key in ("variant", "fault") and item == [])}
        case list(array):
            return [as_tables(item) for item in array]
        case other:
            return other


def read_text(file: str) -> str:
    try:
        return content(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        message = f"found the byte 0x{error.object[error.start]:02x}; a scenario is UTF-8 text"
        raise ScenarioError(message, file=file, line=line) from None
    except (OSError, ValueError) as error:
        missing = isinstance(error, FileNotFoundError)
        known = f", or one that zerosim scenarios lists{did_you_mean(Path(file).stem, scenarios())}" if missing else ""
        raise ScenarioError(f"{reason(error)}; a scenario is a TOML file{known}", file=file) from None


def parse_override(override: str) -> tuple[tuple[str, ...], Any]:
    """The key that an override sets, and its value.

    >>> parse_override("train.optimizer=sgd")
    (('train', 'optimizer'), 'sgd')
    """
    key, equals, value = override.partition("=")
    if not equals or "\n" in key or key.lstrip().startswith("#"):
        raise ScenarioError(f"an override is written section.key=value, found {shown(override)}", file=OVERRIDE)
    path, rest = list[str](), parse(f"{key} = 0", OVERRIDE)
    while rest:
        (name, inner), = rest.items()
        path, rest = [*path, name], inner or {}
    try:
        parsed = parse(f"value={value}", OVERRIDE)
    except ScenarioError:
        parsed = {}
    return tuple(path), parsed["value"] if parsed.keys() == {"value"} else value.strip()
