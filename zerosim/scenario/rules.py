"""Rules for the values of a scenario's keys: a rule reads one kind of value, or says which are allowed.

A rule stands beside its field, `steps: int = key(20, Integer())`, and `section_values` reads any section by the rules
of its fields. A new key is a new field; a new section a new dataclass.

A key may name a part: a row of one of the project's tables, or a user's Python, with keys of its own. A user's name is
resolved while the scenario is read, so that errors of the part have a line and a column. The value is then a `Named`,
which contains the part; tables of parts return it for that name.
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

from zerosim.errors import UsageError
from zerosim.parts import Named, code_of, is_python
from zerosim.parts.loading import Declared
from zerosim.scenario.origin import LARGEST_INTEGER, Origin, nearest, shown
from zerosim.scenario.positions import KeyPath, dotted, shortened

MOST_TABLES = 1000
"""The number of tables with one name, each a row or a program."""


class Rule(ABC):
    """The allowed values of one key."""

    brings_keys: ClassVar[bool] = False
    """Whether the part that it names may have keys of its own, which its section then accepts too."""

    @abstractmethod
    def __str__(self) -> str:
        """The allowed values, as the words after "must be"."""

    def allows(self, value: object) -> bool:
        """Whether a value that is read as it stands is allowed."""
        return True

    def read(self, value: object, path: KeyPath, origin: Origin) -> Any:
        """The Python value for a TOML value, or a `ScenarioError` at the value's position."""
        if not self.allows(value):
            raise self.refuse(value, path, origin)
        return value

    def own(self, value: Any, table: Mapping[str, object], path: KeyPath, origin: Origin) -> dict[str, Any]:
        """The values in `table` of the keys of the part `value`, with defaults."""
        return {}

    def refuse(self, value: object, path: KeyPath, origin: Origin, hint: str = "") -> Exception:
        message = f"{dotted(path)} must be {self}, found {shown(value)}{hint}"
        return origin.error(message, path)


def key(default: Any, rule: Rule, *, optional: bool = False) -> Any:
    """The field of a key; `optional`: it may be left out of a table that replaces a name."""
    return field(default=default, metadata={"rule": rule, "optional": optional})


def section(of: type[Any], *, optional: bool = False) -> Any:
    """The field of a section within a section."""
    return field(default_factory=of, metadata={"rule": SectionRule(of), "optional": optional})


@dataclass(frozen=True)
class TextRule(Rule):
    def __str__(self) -> str:
        return "a string in quotes"

    def allows(self, value: object) -> bool:
        return isinstance(value, str)


@dataclass(frozen=True)
class Switch(Rule):
    def __str__(self) -> str:
        return "true or false"

    def allows(self, value: object) -> bool:
        return isinstance(value, bool)


@dataclass(frozen=True)
class Integer(Rule):
    at_least: int = 0
    at_most: int = LARGEST_INTEGER

    def __str__(self) -> str:
        most = "" if self.at_most == LARGEST_INTEGER else f" and at most {self.at_most}"
        return f"an integer of at least {self.at_least}{most}"

    def allows(self, value: object) -> bool:
        return type(value) is int and self.at_least <= value <= self.at_most


@dataclass(frozen=True)
class Number(Rule):
    """A finite float; an integer is accepted."""

    at_least: float = 0
    below: float = math.inf

    def __str__(self) -> str:
        least = "" if self.at_least == -math.inf else f" of at least {self.at_least:g}"
        below = "" if self.below == math.inf else f" and below {self.below:g}"
        return f"a finite number{least}{below}"

    def read(self, value: object, path: KeyPath, origin: Origin) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.refuse(value, path, origin)
        too_long = isinstance(value, int) and abs(value) > LARGEST_INTEGER
        if too_long or not self.at_least <= value < self.below:
            raise self.refuse(value, path, origin)
        return float(value)


@dataclass(frozen=True)
class Written(Rule):
    """A finite number as it is written: an integer stays one, so that no digit of 64 bits is lost."""

    def __str__(self) -> str:
        return "a finite number"

    def read(self, value: object, path: KeyPath, origin: Origin) -> int | float:
        as_float = Number(-math.inf).read(value, path, origin)
        return value if isinstance(value, int) else as_float


@dataclass(frozen=True)
class Choice(Rule):
    names: tuple[str, ...]

    def __str__(self) -> str:
        *others, last = (name or '""' for name in self.names)
        return " or ".join(filter(None, [", ".join(others), last]))

    def read(self, value: object, path: KeyPath, origin: Origin) -> str:
        if not isinstance(value, str):
            raise self.refuse(value, path, origin)
        if value not in self.names:
            near = nearest(value, self.names)
            raise self.refuse(value, path, origin, f"; did you mean {shown(near)}?" if near else "")
        return value


@dataclass(frozen=True)
class ArrayRule(Rule):
    element: Rule
    at_least: int = 0
    at_most: float = math.inf
    distinct: bool = False

    def __str__(self) -> str:
        some = f" of length at least {self.at_least}" if self.at_least else ""
        most = f" of length at most {self.at_most}" if self.at_most < math.inf else some
        length = f" of length {self.at_most}" if self.at_least == self.at_most else most
        return f"an array{length}, each {self.element}"

    def read(self, value: object, path: KeyPath, origin: Origin) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise self.refuse(value, path, origin, "; arrays are written in brackets")
        if not self.at_least <= len(value) <= self.at_most:
            raise self.refuse(value, path, origin)
        elements = tuple(self.element.read(found, (*path, index), origin) for index, found in enumerate(value))
        if self.distinct:
            seen = set()
            for index, element in enumerate(elements):
                if element in seen:
                    raise origin.error(f"{dotted(path)} names {shown(value[index])} twice", (*path, index))
                seen.add(element)
        return elements


@dataclass(frozen=True)
class SectionRule(Rule):
    section: type[Any]

    def __str__(self) -> str:
        return "a table"

    def read(self, value: object, path: KeyPath, origin: Origin) -> Any:
        if not isinstance(value, dict):
            raise self.refuse(value, path, origin)
        return self.section(**section_values(self.section, value, path, origin))


@dataclass(frozen=True)
class Either(Rule):
    """A word, or a value of another rule."""

    word: str
    other: Rule

    def __str__(self) -> str:
        return f"{self.word} or {self.other}"

    def read(self, value: object, path: KeyPath, origin: Origin) -> Any:
        if value == self.word:
            return value
        if isinstance(value, str):
            raise self.refuse(value, path, origin)
        return self.other.read(value, path, origin)


@dataclass(frozen=True)
class ArrayOr(Rule):
    """One of some words, or an array; `words` says both."""

    words: str
    others: tuple[object, ...]
    array: ArrayRule

    def __str__(self) -> str:
        return self.words

    def read(self, value: object, path: KeyPath, origin: Origin) -> Any:
        if any(value is other or (isinstance(value, str) and value == other) for other in self.others):
            return value
        if isinstance(value, list) and len(value) >= self.array.at_least:
            return self.array.read(value, path, origin)
        raise self.refuse(value, path, origin)


@dataclass(frozen=True)
class NameOr(Rule):
    """A name, which the owner of the table of names looks up, or a table."""

    section: type[Any]

    def __str__(self) -> str:
        return f"a name in quotes, or a table with {', '.join(rules(self.section))}"

    def read(self, value: object, path: KeyPath, origin: Origin) -> Any:
        if isinstance(value, str):
            return value
        if not isinstance(value, dict):
            raise self.refuse(value, path, origin)
        needed = [each.name for each in dataclasses.fields(self.section) if not each.metadata.get("optional")]
        missing = [name for name in needed if name not in value]
        found = SectionRule(self.section).read(value, path, origin)
        if missing:
            raise origin.error(f"[{dotted(path)}] lacks {', '.join(missing)}", path, at="key")
        return found


@dataclass(frozen=True)
class Tables(Rule):
    """One table or more, written [[name]]."""

    section: type[Any]

    def __str__(self) -> str:
        return f"an array of tables, at most {MOST_TABLES}"

    def read(self, value: object, path: KeyPath, origin: Origin) -> tuple[Any, ...]:
        if not isinstance(value, list) or not value:
            hint = f"; write [[{dotted(path)}]]" if isinstance(value, dict) else ""
            raise self.refuse(value, path, origin, hint)
        if len(value) > MOST_TABLES:
            raise self.refuse(value, path, origin)
        one = SectionRule(self.section)
        return tuple(one.read(found, (*path, index), origin) for index, found in enumerate(value))


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
            key: rule_for(default).read(as_toml(table[key]), (*path, key), origin) if key in table else default
            for key, default in keys.items()
        }


@dataclass(frozen=True)
class SourceOf(PartOf):
    """Any string, or a user's function that makes samples."""

    def __str__(self) -> str:
        return "a string in quotes"

    def read(self, value: object, path: KeyPath, origin: Origin) -> str:
        if isinstance(value, str) and not is_python(value):
            return value
        return super().read(value, path, origin)


def section_values(
    section: type[Any], table: dict[str, object], path: KeyPath, origin: Origin
) -> dict[str, Any]:
    """The values in `table` for fields of `section`, each read by the field's rule."""
    allowed = rules(section)
    named = {key: rule.read(table[key], (*path, key), origin) for key, rule in allowed.items()
             if rule.brings_keys and key in table}
    for name, value in named.items():
        for key in getattr(getattr(value, "part", None), "keys", {}).keys() & getattr(section, "shared", ()):
            told = f"{value} has a key {key}, which [{dotted(path)}] reserves; rename the parameter"
            raise origin.error(told, (*path, name))
    own = {key: value for name in named for key, value in allowed[name].own(named[name], table, path, origin).items()}
    for name in table:
        if name not in allowed and name not in own:
            moved = MOVED.get(dotted((*path, name)), [])
            raise unknown(name, (*allowed, *own), path, origin, homes=[*moved, *(
                dotted((*path, section, name)) for section, rule in allowed.items()
                if isinstance(rule, SectionRule) and name in rules(rule.section))])
    ours = {name: allowed[name].read(table[name], (*path, name), origin) for name in table
            if name not in own and name not in named}
    return named | ours | ({"own": own} if own else {})


def rules(section: type[Any]) -> dict[str, Rule]:
    """The keys of a section: those of its fields that have a rule."""
    fields = dataclasses.fields(section)
    return {each.name: each.metadata["rule"] for each in fields if "rule" in each.metadata}


MOVED = {"cluster.optimizer": ["parallel.offload_optimizer"]}
"""Former keys, and those that say the same now."""


def unknown(
    name: str, allowed: Iterable[str], path: KeyPath, origin: Origin, homes: Sequence[str] = ()
) -> Exception:
    """The error for a key that is not `allowed`; `homes` are keys of that name in subsections."""
    near = homes[0] if homes else nearest(name, allowed)
    mend = f"did you mean {near!r}?" if near else in_words(list(allowed))
    table = f" in [{dotted(path)}]" if path else ""
    return origin.error(f"unknown key {shortened(name)!r}{table}; {mend}", (*path, name), at="key")


MOST_NAMED = 24
"""The most keys that an error lists."""


def in_words(allowed: Sequence[str]) -> str:
    """
    >>> in_words(["ranks", "kind"]), in_words(list("abcdefghijklmnopqrstuvwxyz"))
    ('allowed are ranks, kind', 'allowed are the 26 keys in docs/scenario.md, such as a, b, c, d')
    """
    if len(allowed) > MOST_NAMED:
        return f"allowed are the {len(allowed)} keys in docs/scenario.md, such as {', '.join(allowed[:4])}"
    return f"allowed are {', '.join(allowed)}"


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


def as_toml(value: object) -> object:
    """A tuple from Python as TOML's list."""
    return list(value) if isinstance(value, tuple) else value


@cache
def keys_of_parts(section: type[Any]) -> list[tuple[str, PartOf, bool]]:
    """The keys of a section that name parts, with the rule of one, and whether a key names several."""
    found = [(name, rule.element if isinstance(rule, ArrayRule) else rule, isinstance(rule, ArrayRule))
             for name, rule in rules(section).items()]
    return [(name, one, several) for name, one, several in found if isinstance(one, PartOf)]


class Section:
    """A section whose keys may name parts, also as objects of Python: functions, parts, and names of Python."""

    def __post_init__(self) -> None:
        section: Any = type(self)
        for name, one, several in keys_of_parts(section):
            value = getattr(self, name)
            given = value if several else (value,)
            if value is None or not isinstance(given, tuple | list) or all(
                    isinstance(part, str) and not is_python(part) for part in given):
                continue
            named = tuple(one.read(part, (name,), Origin()) for part in given)
            object.__setattr__(self, name, named if several else named[0])
            if isinstance(named[0], Named) and hasattr(self, "own"):
                object.__setattr__(self, "own", {**getattr(named[0].part, "keys", {}), **self.own})
