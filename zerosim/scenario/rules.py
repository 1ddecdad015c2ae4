"""Rules for the values of a scenario's keys: a rule reads one kind of value, or says which are allowed.

A rule stands beside its field, `steps: int = integer(20, at_least=0)`, and `section_values` reads
any section by the rules of its fields. A new key is a new field; a new section a new dataclass.
"""

import dataclasses
import difflib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from zerosim.scenario.origin import Origin
from zerosim.scenario.positions import KeyPath

LARGEST_INTEGER = 2**63 - 1  # TOML's own
MOST_TABLES = 1000
"""The number of tables with one name, each a row or a program."""


class Rule(ABC):
    """The allowed values of one key."""

    brings_keys: ClassVar[bool] = False
    """Whether the part that it names may have keys of its own, which its section then accepts too."""

    @abstractmethod
    def __str__(self) -> str:
        """The allowed values, as the words after "must be"."""

    @abstractmethod
    def read(self, value: object, path: KeyPath, origin: Origin) -> Any:
        """The Python value for a TOML value, or a `ScenarioError` at the value's position."""

    def own(self, value: Any, table: Mapping[str, object], path: KeyPath, origin: Origin) -> dict[str, Any]:
        """The values in `table` of the keys of the part `value`, with defaults."""
        return {}

    def refuse(self, value: object, path: KeyPath, origin: Origin, hint: str = "") -> Exception:
        message = f"{dotted(path)} must be {self}, found {shown(value)}{hint}"
        return origin.error(message, path)


@dataclass(frozen=True)
class TextRule(Rule):
    def __str__(self) -> str:
        return "a string in quotes"

    def read(self, value: object, path: KeyPath, origin: Origin) -> str:
        if not isinstance(value, str):
            raise self.refuse(value, path, origin)
        return value


@dataclass(frozen=True)
class Switch(Rule):
    def __str__(self) -> str:
        return "true or false"

    def read(self, value: object, path: KeyPath, origin: Origin) -> bool:
        if not isinstance(value, bool):
            raise self.refuse(value, path, origin)
        return value


@dataclass(frozen=True)
class Integer(Rule):
    at_least: int
    at_most: int = LARGEST_INTEGER

    def __str__(self) -> str:
        most = "" if self.at_most == LARGEST_INTEGER else f" and at most {self.at_most}"
        return f"an integer of at least {self.at_least}{most}"

    def read(self, value: object, path: KeyPath, origin: Origin) -> int:
        if type(value) is not int or not self.at_least <= value <= self.at_most:
            raise self.refuse(value, path, origin)
        return value


@dataclass(frozen=True)
class Number(Rule):
    """A finite float; an integer is accepted."""

    at_least: float
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
        return " or ".join(filter(None, [", ".join(self.names[:-1]), self.names[-1]]))

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
class SwitchOr(Rule):
    """True, false, or a value of another rule."""

    other: Rule

    def __str__(self) -> str:
        return f"true, false or {self.other}"

    def read(self, value: object, path: KeyPath, origin: Origin) -> Any:
        if isinstance(value, bool):
            return value
        if not isinstance(value, list):
            raise self.refuse(value, path, origin)
        return self.other.read(value, path, origin)


@dataclass(frozen=True)
class Groups(Rule):
    """The grouping of layers into units."""

    def __str__(self) -> str:
        return "layer, model or an array of arrays of layer numbers such as [[0, 1], [2]]"

    def read(self, value: object, path: KeyPath, origin: Origin) -> Any:
        if value in ("layer", "model"):
            return value
        if isinstance(value, list) and value:
            return ArrayRule(ArrayRule(Integer(0), 1), 1).read(value, path, origin)
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
    mend = f"did you mean {near!r}?" if near else f"allowed are {', '.join(allowed)}"
    table = f" in [{dotted(path)}]" if path else ""
    return origin.error(f"unknown key {shortened(name)!r}{table}; {mend}", (*path, name), at="key")


def nearest(name: str, names: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name.lower(), names, n=1)), None)


def dotted(path: KeyPath) -> str:
    """
    >>> dotted(("model", "hidden", 1))
    'model.hidden[1]'
    """
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")


def shown(value: object) -> str:
    """`value` in TOML, on one short line.

    >>> shown("a\\nb"), shown(True), shown([1, 2])
    ('"a\\\\nb"', 'true', 'an array of length 2')
    """
    match value:
        case bool():
            return str(value).lower()
        case str():
            short = shortened(value)
            return json.dumps(short, ensure_ascii=not short.isprintable())
        case int() if abs(value) > LARGEST_INTEGER:
            return "an integer beyond 64 bits"
        case list():
            return f"an array of length {len(value)}"
        case dict():
            return "a table"
    return str(value)


def shortened(words: str, most: int = 60) -> str:
    """
    >>> shortened("a" * 99, most=3)
    'aaa...'
    """
    return words if len(words) <= most else f"{words[:most]}..."
