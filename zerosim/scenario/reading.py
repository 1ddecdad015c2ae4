"""A table of a scenario -> a section, or an error with file, line and key.

msgspec checks the values by the annotations of a section's fields. Its errors are reported in the words of these
annotations, at the line of the key. A key that names a user's part is resolved first: the part travels in the section
as a `Named`, and its own keys, which its signature declares, in `section.own`.
"""

import difflib
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

import msgspec
from msgspec.inspect import DataclassType, Metadata, Type, UnionType, VarTupleType, type_info

from zerosim.core.errors import ScenarioError, UsageError
from zerosim.core.parts import Loader, Named, is_python, named
from zerosim.scenario.values import AnyInteger, Finite, names_in, shortened, shown, within, words

KeyPath = tuple[str | int, ...]
"""The keys and indices from the whole document to a value: ("train", "betas", 1)."""
TomlTable = dict[str, Any]
Section = TypeVar("Section")

OVERRIDE = "--set"
"""The file name in errors about an override."""
HIDDEN = ("own", "origin", "keys_set")
"""The fields of sections that are no keys."""

PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')"""
DOTTED = rf"{PART}(?:[ \t]*+\.[ \t]*+{PART})*+"
LINE = re.compile(rf"^[ \t]*+(?:(\[\[?)[ \t]*+({DOTTED})[ \t]*+\]|({DOTTED})[ \t]*+=[ \t]*+)", re.MULTILINE)
"""A line that begins a table, or a key."""
MULTI_LINE = re.compile(r'"""(?:\\.|[^\\])*?"""|\'\'\'.*?\'\'\'', re.DOTALL)
COMPLAINT = re.compile(r"(.*?)(?: \(at (?:line (\d+), column (\d+)|end of document)\))?", re.DOTALL)


class TextPlace(NamedTuple):
    """A line and a column, both from 1, and the number of steps of a path that are written there."""

    line: int
    column: int
    steps: int = 0


@dataclass(frozen=True)
class Origin:
    """The file and the text of a scenario, the keys that overrides have set, and an importer of users' Python."""

    file: str = "<scenario>"
    text: str = ""
    overrides: tuple[KeyPath, ...] = ()
    loader: Loader = field(default_factory=Loader)

    def error(self, message: str, *paths: KeyPath, at_key: bool = False) -> ScenarioError:
        """The error at one of `paths`: the first in an override, or else the first in the file; at the value there.

        >>> print(Origin("a.toml", "[train]\\nsteps = 5").error("train.steps is too large", ("train", "steps")))
        a.toml:2:9: train.steps is too large
        """
        places = [place(self.text, path, at_key=at_key) for path in paths]
        at = max(places, key=lambda place: place.steps, default=TextPlace(1, 1))
        implied = any(override[: len(path)] == path for path in paths for override in self.overrides)
        if implied or any(map(self.is_override, paths)):
            return ScenarioError(message, file=OVERRIDE)
        return ScenarioError(message, file=self.file, line=at.line, column=at.column)

    @contextmanager
    def blaming(self, path: KeyPath, value: object = None) -> Iterator[None]:
        """A context that turns errors of a user's part or file into errors at `path`, which name its value if given."""
        try:
            yield
        except UsageError as error:
            words = dotted(path) if value is None else f"{dotted(path)} {shown(value)}"
            raise self.error(f"{words}: {error}", path) from error

    def is_override(self, path: KeyPath) -> bool:
        """Whether an override has set this key, or a table that contains it."""
        return any(path[: len(override)] == override for override in self.overrides)

    def folder(self, path: KeyPath) -> Path:
        """The folder of relative file names at `path`: that of its file; for an override, the current folder."""
        return Path() if self.is_override(path) else Path(self.file).parent


@lru_cache
def place(text: str, path: KeyPath, *, at_key: bool = False) -> TextPlace:
    """Where the longest part of `path` is written, its value or its key; the beginning of the text if none is.

    >>> place("[[variant]]\\n[[variant]]\\nunits = [\\n[0]]", ("variant", 1, "units", 0))
    TextPlace(line=3, column=9, steps=3)
    """
    plain = MULTI_LINE.sub(lambda string: re.sub(r"[^\n]", " ", string[0]), text)
    place, header, numbers = TextPlace(1, 1), KeyPath(), Counter[KeyPath]()
    for line in LINE.finditer(plain):
        bracket, table, key = line.groups()
        names: KeyPath = tuple(part.strip("\"'") for part in re.findall(PART, table or key))
        here = (*header, *names)
        if bracket:
            here = header = (*names, numbers[names]) if bracket == "[[" else names
            numbers[names] += 1
        steps = min(len(here), len(path))
        if here[:steps] == path[:steps] and steps > place.steps:
            start = line.start(2) if bracket else line.start(3) if at_key else line.end()
            place = TextPlace(text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start), steps)
    return place


def parse(text: str, file: str) -> TomlTable:
    """The document in a TOML text. Raises `ScenarioError` with the position of what is no TOML."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ScenarioError("arrays or tables are nested too deeply", file=file) from None
    except ValueError as error:
        if str(error).startswith("Exceeds the limit"):
            raise ScenarioError("an integer has too many digits", file=file) from None
        complaint = COMPLAINT.fullmatch(str(error))
        assert complaint
        reason = shortened(complaint[1][:1].lower() + complaint[1][1:], 200)
        hint = " (strings need quotes)" if reason == "invalid value" else ""
        raise ScenarioError(
            f"this is not TOML: {reason}{hint}", file=file, line=int(complaint[2] or text.count("\n") + 1),
            column=int(complaint[3] or 1)) from None


def dotted(path: KeyPath) -> str:
    """
    >>> dotted(("model", "hidden", 1))
    'model.hidden[1]'
    """
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")


def nearest(name: str, names: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name.lower(), names, n=1)), None)


kind_of: Callable[[Any], Type] = cache(type_info)
"""The type of an annotation or a section, as msgspec describes it."""


def keys(section: type[Any]) -> dict[str, Type]:
    """The keys of a section, and the values that they may have."""
    return keys_in(kind_of(section))


def keys_in(kind: Type) -> dict[str, Type]:
    """The keys of a kind of value: those of its table, if it is or may be one."""
    match kind:
        case Metadata(type=inner):
            return keys_in(inner)
        case UnionType(types=kinds):
            return next(filter(None, map(keys_in, kinds)), {})
        case DataclassType(cls=cls, fields=fields) if cls is not Named:
            return {field.name: field.type for field in fields if field.name not in HIDDEN}
    return {}


def read(section: type[Section], table: object, path: KeyPath, origin: Origin) -> Section:
    """The section in a table; the whole scenario gets `origin`. Raises `ScenarioError` at the first wrong key."""
    value = prepared(kind_of(section), table, path, origin)
    instance: Section = converted(section, value if path else {**value, "origin": origin}, path, origin)
    return instance


def value_of(section: type[Any], key: str, value: object) -> Any:
    """The value of a key such as `train.steps`. Raises `ScenarioError` if it is not allowed."""
    kind: Any = section
    for step in key.split("."):
        kind = get_type_hints(kind, include_extras=True)[step]
    return converted(kind, value, tuple(key.split(".")), Origin())


def converted(kind: Any, value: object, path: KeyPath, origin: Origin) -> Any:
    """`value` as msgspec converts it. Raises `ScenarioError` with what was found, and what is allowed."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        what, _, steps = str(error).partition(" - at `$")
        allowed, at = kind_of(kind), path
        for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", steps):
            step = name or int(index)
            allowed, at = within(allowed, step) or allowed, (*at, step)
            value = value[step]  # type: ignore[index]
        if "missing required" in what:
            raise origin.error(f"[{dotted(at)}] lacks {what.split('`')[1]}; add it", at) from None
        raise refusal(value, allowed, at, origin) from None


def refusal(value: object, allowed: Type, path: KeyPath, origin: Origin) -> ScenarioError:
    """The error for a value that is not allowed."""
    near, hint = nearest(value, names_in(allowed)) if isinstance(value, str) else None, ""
    many = allowed.type if isinstance(allowed, Metadata) else allowed
    if isinstance(many, VarTupleType) and not isinstance(value, list):
        tables = isinstance(many.item_type, DataclassType)
        hint = f"; write [[{dotted(path)}]]" if tables else "; arrays are written in brackets"
    elif near:
        hint = f"; did you mean {shown(near)}?"
    wanted = "a table" if isinstance(many, DataclassType) else words(allowed)
    return origin.error(f"{dotted(path)} must be {wanted}, found {shown(value)}{hint}", path)


def prepared(kind: Type, value: Any, path: KeyPath, origin: Origin) -> Any:
    """A value in which users' parts are made, and their keys are apart. Raises `ScenarioError` for unknown keys."""
    match kind:
        case Metadata(type=inner):
            return prepared(inner, value, path, origin)
        case VarTupleType(item_type=item) if isinstance(value, list | tuple):
            return [prepared(item, item_value, (*path, index), origin) for index, item_value in enumerate(value)]
    known = keys_in(kind)
    if not isinstance(value, dict):
        return value
    if not known:
        raise refusal(value, kind, path, origin)
    section: Any = next(member.cls for member in (kind, *getattr(kind, "types", ()))
                        if isinstance(member, DataclassType) and member.cls is not Named)
    table = value | {key: made_in(value[key], make, (*path, key), origin)
                     for key, make in getattr(section, "names_parts", {}).items() if key in value}
    own = own_keys(section, table, path, origin)
    for name in table:
        if name not in known and name not in own:
            raise unknown(name, {**known, **dict.fromkeys(own, kind)}, path, origin)
    values = {key: prepared(known[key], entry, (*path, key), origin) for key, entry in table.items() if key not in own}
    return values | ({"own": own} if own else {})


def made_in(value: Any, make: Callable[[str, Any], Any], path: KeyPath, origin: Origin) -> Any:
    """The parts that a value names, or that one name in it does."""
    if isinstance(value, list | tuple):
        return [made_in(element, make, (*path, index), origin) for index, element in enumerate(value)]
    wanted = is_python(value) if isinstance(value, str) else callable(value)
    if not wanted:
        return value
    try:
        given = origin.loader.load(value, origin.folder(path)) if isinstance(value, str) else named(value)
        return replace(given, part=make(given.source, given.part))
    except UsageError as error:
        raise origin.error(f"{dotted(path)}: {error}", path) from error


def own_keys(section: Any, table: TomlTable, path: KeyPath, origin: Origin) -> TomlTable:
    """The keys that the parts of a table declare, with their values there or else their defaults."""
    values: TomlTable = {}
    for key in getattr(section, "names_parts", {}):
        declared: Mapping[str, Any] = getattr(getattr(table.get(key), "part", None), "keys", {})
        for name in declared.keys() & keys(section).keys() - set(section.free):
            raise origin.error(f"{table[key]} has a key {name}, which [{dotted(path)}] reserves; rename the parameter",
                               (*path, key))
        for name, default in declared.items():
            like = like_default(default)
            values[name] = converted(like, table[name], (*path, name), origin) if name in table else default
    return values


def like_default(default: Any) -> Any:
    """The annotation of a key with this default: values of the same type."""
    for plain, kind in ((bool, bool), (int, AnyInteger), (float, Finite), (str, str)):
        if isinstance(default, plain):
            return kind
    return tuple[like_default(default[0]) if default else str, ...]  # type: ignore[misc]


def unknown(name: str, known: Mapping[str, Type], path: KeyPath, origin: Origin) -> ScenarioError:
    """The error for a key that is not known here; it names the section that has it, or the nearest key."""
    home = next((f"{dotted((*path, key))}.{name}" for key, kind in known.items() if name in keys_in(kind)), None)
    near = home or nearest(name, known)
    table = f" in [{dotted(path)}]" if path else ""
    mend = f"did you mean {near!r}?" if near else "docs/scenario.md lists the keys"
    return origin.error(f"unknown key {shortened(name)!r}{table}; {mend}", (*path, name), at_key=True)
