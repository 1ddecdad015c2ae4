"""A TOML file and its overrides -> a `Scenario`, or one error with the line and column to mend."""

import os
import re
import tomllib
from collections.abc import Sequence
from typing import Any

from zerosim.errors import ScenarioError
from zerosim.scenario.collective import CollectiveScenario
from zerosim.scenario.origin import OVERRIDE, Origin
from zerosim.scenario.positions import KeyPath, Place, Position, place, positions
from zerosim.scenario.rules import Choice, section_values, shown
from zerosim.scenario.schema import Scenario

Document = dict[str, Any]
Positions = dict[KeyPath, Position]


def load(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Scenario | CollectiveScenario:
    """The scenario in the TOML file at `path`, after `overrides` such as `"train.optimizer=sgd"`.

    It is one of training, unless it says `kind = "collective"`.

    An override's value is TOML or, where it is not, a plain string; it replaces the file's. Raises
    `ScenarioError` with the line and column of what is wrong, in the file or the override's text.
    """
    file = os.fspath(path)
    document, where = parse(read_text(file), file)
    written = {key: (file, position) for key, position in where.items()}
    for override in overrides:
        apply(parse_override(override), document, written)
    origin = Origin(file, written)
    kind = Choice(("training", "collective")).read(document.get("kind", "training"), ("kind",), origin)
    if kind == "collective":
        return CollectiveScenario(**section_values(CollectiveScenario, document, (), origin), origin=origin)
    return Scenario(**section_values(Scenario, document, (), origin), origin=origin)


def read_text(file: str) -> str:
    try:
        with open(file, "rb") as stream:
            return stream.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = error.object[: error.start].decode()
        line, column = place(before, len(before))
        message = f"found the byte 0x{error.object[error.start]:02x}; a scenario is text in UTF-8"
        raise ScenarioError(message, file=file, line=line, column=column) from None
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise ScenarioError(f"{reason}; a scenario is a TOML file", file=file) from None


def parse(text: str, file: str) -> tuple[Document, Positions]:
    try:
        return tomllib.loads(text), positions(text)
    except RecursionError:
        raise ScenarioError("arrays or tables are nested too deeply", file=file) from None
    except ValueError as error:
        message, (line, column) = explained(str(error), text)
        message = f"this is not TOML: {message}"
        raise ScenarioError(message, file=file, line=line, column=column) from None


def explained(complaint: str, text: str) -> tuple[str, Place]:
    """tomllib's complaint, and the place that stands at its end in words.

    >>> explained("Invalid value (at line 3, column 9)", "")
    ('invalid value (strings need quotes)', Place(line=3, column=9))
    """
    what, _, where = complaint.partition(" (at ")
    what = what[:1].lower() + what[1:]
    if what == "invalid value":
        what += " (strings need quotes)"
    if numbers := re.match(r"line (\d+), column (\d+)", where):
        return what, Place(int(numbers[1]), int(numbers[2]))
    return what, place(text, len(text)) if where else Place(1, 1)


def parse_override(override: str) -> tuple[KeyPath, Any, Positions]:
    """The key that an override sets, its value, and where both stand in the override's text.

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
        read = tomllib.loads(f"value={value}")
    except (ValueError, RecursionError):
        read = {}
    if read.keys() == {"value"}:
        return path, read["value"], positions(override)
    return path, value.strip(), positions(stand_in)


def apply(
    override: tuple[KeyPath, Any, Positions],
    document: Document,
    written: dict[KeyPath, tuple[str, Position]],
) -> None:
    """Replace what is at the override's path, and what was known of where it stood."""
    path, value, where = override
    table: dict[Any, Any] = document
    for depth, name in enumerate(path[:-1], start=1):
        if not isinstance(table.get(name), dict):
            table[name] = {}
            written[path[:depth]] = OVERRIDE, where[path[:depth]]
        table = table[name]
    table[path[-1]] = value
    for old in [old for old in written if old[: len(path)] == path]:
        del written[old]
    for new in where:
        if new[: len(path)] == path:
            written[new] = OVERRIDE, where[new]
