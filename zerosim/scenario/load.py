"""A TOML file and its overrides -> a `Scenario`, or one error with line and column.

A file with the name on the command line takes precedence over a shipped scenario (see `shipped/__init__.py`). `load`
decides it, so that `run`, `plan`, `zs.run` and `zs.plan` cannot differ.
"""

import dataclasses
import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zerosim.errors import ScenarioError, did_you_mean
from zerosim.files import read_at_most
from zerosim.parts import Loader
from zerosim.parts.loading import Declared
from zerosim.scenario.collective import CollectiveScenario
from zerosim.scenario.origin import OVERRIDE, Origin, shown
from zerosim.scenario.positions import (
    MOST_BYTES,
    Document,
    KeyPath,
    Position,
    Positions,
    check_bounds,
    check_size,
    parse,
    place,
    positions,
)
from zerosim.scenario.rules import Choice, rules, section_values
from zerosim.scenario.schema import Scenario, plain
from zerosim.shipped import scenario_file, scenarios

Source = str | os.PathLike[str] | Mapping[str, Any] | Scenario
"""A path, the name of a shipped scenario, a dict with the types of TOML, or a scenario built in Python."""


def load(
    path: Source, overrides: Sequence[str] = (), *, python: bool = True
) -> Scenario | CollectiveScenario:
    """The scenario in the TOML file at `path`, or else the shipped one of that name, after `overrides`.

    An override has the form `"train.optimizer=sgd"`. The scenario is one of training, unless it has `kind =
    "collective"`.

    The caption of a scenario with changed keys names these instead of its own words, which may no longer be true.

    An override's value is TOML within the bounds of a scenario, or else a plain string; it replaces the file's.
    Without `python` keys that name Python are refused. Raises `ScenarioError` with the line and column of the error,
    in the file or in the override.
    """
    file, document, where = read_source(path)
    check_size(sum(map(len, overrides)), OVERRIDE)
    written = {key: (file, position) for key, position in where.items()}
    changed = {}
    for override in overrides:
        key, value, places = parse_override(override)
        if value_at(document, key) != value and key[0] not in SAY_NOTHING:
            changed[".".join(map(str, key))] = value
        apply((key, value, places), document, written)
    described = document.get("title") or document.get("caption")
    if changed and described and written.get(("caption",), (file,))[0] != OVERRIDE:
        document["caption"] = changed_caption("", changed)
    origin = Origin(file, written, Loader(python))
    kind = Choice(("training", "collective")).read(document.get("kind", "training"), ("kind",), origin)
    if kind == "collective":
        return CollectiveScenario(**section_values(CollectiveScenario, document, (), origin), origin=origin)
    return Scenario(**section_values(Scenario, document, (), origin), origin=origin)


CHANGED = "Changed from the file: "
SAY_NOTHING = ("title", "caption", "checkpoint")
"""The keys whose change leaves a caption true."""
MOST_CHANGES = 4
"""The most changed keys that a caption names."""


def changed_caption(caption: str, changed: Mapping[str, Any]) -> str:
    """The caption of a scenario whose keys were changed: these keys, because its own may no longer be true.

    >>> changed_caption("It fits on 8.", {"world.ranks": 2, "train.optimizer": "sgd"})
    'Changed from the file: world.ranks = 2, train.optimizer = sgd'
    """
    known = [caption.removeprefix(CHANGED)] if caption.startswith(CHANGED) else []
    keys = [f"{key} = {value if isinstance(value, str) else json.dumps(value, default=str)}"
            for key, value in changed.items()]
    more = f" and {len(keys) - MOST_CHANGES} more" * (len(keys) > MOST_CHANGES)
    return CHANGED + ", ".join([*known, *keys[:MOST_CHANGES]]) + more


def value_at(document: Any, path: KeyPath) -> Any:
    """The value at a path of a document; None if there is none."""
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def read_source(path: Source) -> tuple[str, Document, Positions]:
    """The file, its document and the positions of its keys; a dict or a `Scenario` of Python has no positions."""
    if isinstance(path, Mapping):
        return Origin().file, listed(path), {}
    if isinstance(path, Scenario):
        return path.origin.file, keys_set(path), {}
    file = scenario_file(path)
    return file, *parse(read_text(file), file)


def listed(value: Any) -> Any:
    """A Python value in TOML's own types: tuples as lists, section objects as tables."""
    if isinstance(value, Mapping):
        return {key: listed(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [listed(each) for each in value]
    if isinstance(value, np.generic):
        return value.item()
    return keys_set(value) if dataclasses.is_dataclass(value) and not isinstance(value, Declared) else value


def keys_set(section: Any) -> Document:
    """The keys of a section that are set, as a table."""
    found = plain(section)
    given = {key: found[key] for key in (*rules(type(section)), *getattr(section, "own", {}))}
    return {key: keys_set(getattr(section, key)) if dataclasses.is_dataclass(getattr(section, key, None)) else value
            for key, value in given.items() if value is not None and not (key in UNSAID and not value)}


UNSAID = ("variant", "fault")
"""The tables that may not be empty."""


def read_text(file: str) -> str:
    try:
        content = read_at_most(file, MOST_BYTES)
        check_size(max(len(content), os.stat(file).st_size), file)
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = error.object[: error.start].decode()
        line, column = place(before, len(before))
        message = f"found the byte 0x{error.object[error.start]:02x}; a scenario is UTF-8 text"
        raise ScenarioError(message, file=file, line=line, column=column) from None
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        missing = isinstance(error, FileNotFoundError)
        known = f", or one that zerosim scenarios lists{did_you_mean(Path(file).stem, scenarios())}" if missing else ""
        raise ScenarioError(f"{reason}; a scenario is a TOML file{known}", file=file) from None


def parse_override(override: str) -> tuple[KeyPath, Any, Positions]:
    """The key that an override sets, its value, and the positions of both in the override.

    >>> parse_override("train.optimizer=sgd")[:2]
    (('train', 'optimizer'), 'sgd')
    """
    key, equals, value = override.partition("=")
    if not equals or "\n" in key or key.lstrip().startswith("#"):
        message = f"an override is written section.key=value, found {shown(override)}"
        raise ScenarioError(message, file=OVERRIDE)
    stand_in = override.removesuffix(value.lstrip(" \t")) + "''"
    *_, path = parse(stand_in, OVERRIDE)[1]
    try:
        check_bounds(value, OVERRIDE)
        read = tomllib.loads(f"value={value}")
    except (ValueError, ScenarioError):
        read = {}
    if read.keys() == {"value"}:
        return path, read["value"], positions(override)
    return path, value.strip(), positions(stand_in)


def apply(
    override: tuple[KeyPath, Any, Positions],
    document: Document,
    written: dict[KeyPath, tuple[str, Position]],
) -> None:
    """Replace the value at the override's path, and its known positions."""
    path, value, where = override
    table: dict[Any, Any] = document
    for depth, name in enumerate(path[:-1], start=1):
        if not isinstance(table.get(name), dict):
            table[name] = {}
            written[path[:depth]] = OVERRIDE, where[path[:depth]]
        table = table[name]
    for old in paths(table.get(path[-1]), path):
        written.pop(old, None)
    table[path[-1]] = value
    for new in where:
        if new[: len(path)] == path:
            written[new] = OVERRIDE, where[new]


def paths(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    """The path of `value`, and those of everything in it.

    >>> list(paths({"betas": [0.9, 0.99]}, ("train",)))
    [('train',), ('train', 'betas'), ('train', 'betas', 0), ('train', 'betas', 1)]
    """
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from paths(child, (*path, key))
