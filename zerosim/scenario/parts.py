"""Keys that name a part: a row of one of the project's tables, or a user's Python, with keys of its own.

A user's name is resolved while the scenario is read, so that errors of the part have a line and a column. The
value is then a `Named`, which contains the part; tables of parts return it for that name.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zerosim.errors import UsageError
from zerosim.parts import Named, Table, code_of, is_python
from zerosim.parts.loading import Declared
from zerosim.parts.signature import as_source
from zerosim.scenario.origin import Origin
from zerosim.scenario.positions import KeyPath
from zerosim.scenario.rules import ArrayRule, Choice, Integer, Number, Rule, Switch, TextRule, dotted


@dataclass(frozen=True)
class PartOf(Choice):
    """A name of a table, or a user's: `made(name, value)` makes the part from the Python object of that name."""

    made: Callable[[str, Any], Any]
    brings_keys: bool = False  # type: ignore[misc]
    optional: bool = False
    """Whether it may be empty."""

    def __str__(self) -> str:
        return f"{', '.join(self.names)} or FILE.py:NAME"

    def read(self, value: object, path: KeyPath, origin: Origin) -> str:
        if isinstance(value, Named):
            return value
        if value == "" and "" not in self.names and self.optional:
            return ""
        if not (is_python(value) if isinstance(value, str) else callable(value) or isinstance(value, Declared)):
            return super().read(value, path, origin)
        try:
            if isinstance(value, str):
                name, code = value, origin.loader.load(value, origin.folder(path))
            else:
                name, code = code_of(value)
            return Named(name, self.made(name, code.value), code.sha256)
        except UsageError as error:
            raise origin.error(f"{dotted(path)}: {error}", path) from error

    def own(self, value: Any, table: Mapping[str, object], path: KeyPath, origin: Origin) -> dict[str, Any]:
        keys = getattr(value.part, "keys", {}) if isinstance(value, Named) else {}
        return {
            key: rule_for(default).read(as_list(table[key]), (*path, key), origin) if key in table else default
            for key, default in keys.items()
        }


def part_of(default: str | None, table: Table[Any], made: Callable[[str, Any], Any]) -> Any:
    """A key that names a part of `table`, or a user's; its section then accepts the part's keys too."""
    rule = PartOf(tuple(table), made, brings_keys=True, optional=not default)
    return dataclasses.field(default=default, metadata={"rule": rule})


@dataclass(frozen=True)
class SourceOf(PartOf):
    """Any string, or a user's function that makes samples."""

    def __str__(self) -> str:
        return "a string in quotes"

    def read(self, value: object, path: KeyPath, origin: Origin) -> str:
        if isinstance(value, str) and not is_python(value):
            return value
        return super().read(value, path, origin)


def source_of(default: str) -> Any:
    """A key that names samples; its section then accepts the keys of a user's function too."""
    return dataclasses.field(default=default, metadata={"rule": SourceOf((), as_source, brings_keys=True)})


def parts_of(default: tuple[str, ...], table: Table[Any], made: Callable[[str, Any], Any]) -> Any:
    """A key that names at least one part of `table`, or a user's, each once."""
    rule = ArrayRule(PartOf(tuple(table), made), 1, distinct=True)
    return dataclasses.field(default=default, metadata={"rule": rule})


def own_keys() -> Any:
    """The field `own` of a section: the keys of its user's part, and their values."""
    return dataclasses.field(default_factory=dict, hash=False)


def settle(section: Any) -> None:
    """Resolve the objects that Python has put into a section in place of names: functions, parts, and names of Python.
    """
    for each in dataclasses.fields(section):
        rule, value = each.metadata.get("rule"), getattr(section, each.name)
        one = rule.element if isinstance(rule, ArrayRule) else rule
        if not isinstance(one, PartOf) or value is None:
            continue
        given = value if isinstance(rule, ArrayRule) else (value,)
        if not isinstance(given, tuple | list) or all(isinstance(part, str) and not is_python(part) for part in given):
            continue
        named = tuple(one.read(part, (each.name,), Origin()) for part in given)
        object.__setattr__(section, each.name, named if isinstance(rule, ArrayRule) else named[0])
        if isinstance(named[0], Named) and hasattr(section, "own"):
            object.__setattr__(section, "own", {**getattr(named[0].part, "keys", {}), **section.own})


def as_list(value: object) -> object:
    """A tuple from Python as TOML's list."""
    return list(value) if isinstance(value, tuple) else value


def rule_for(default: Any) -> Rule:
    """The rule for a key with this default: values of the same type."""
    match default:
        case bool():
            return Switch()
        case int():
            return Integer(-(2**63))
        case float():
            return Number(float("-inf"))
        case str():
            return TextRule()
    return ArrayRule(rule_for(default[0]) if default else TextRule())


def parts_in(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str, Named]]:
    """The users' parts in a scenario, with the keys that name them."""
    if isinstance(value, Named):
        yield dotted(path), value
    elif isinstance(value, tuple):
        for index, each in enumerate(value):
            yield from parts_in(each, (*path, index))
    elif dataclasses.is_dataclass(value) and not isinstance(value, Origin):
        for each in dataclasses.fields(value):
            yield from parts_in(getattr(value, each.name), (*path, each.name))


def python_run(scenario: Any) -> list[str]:
    """A line that names the Python files that a scenario runs, if any."""
    found = {f"{part} (sha256 {part.sha256[:8]}…)": None for _, part in parts_in(scenario)}
    return [f"runs your Python code: {', '.join(found)}"] if found else []
