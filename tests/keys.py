"""The keys in `docs/scenario.md`: names, defaults and allowed values from the sections, sentences from the page.

    python -m tests.keys

writes the lists again. A new key needs a sentence first: an item `- `section.key` (): The sentence.` in any list of
the page.
"""

import dataclasses
import json
import re
from pathlib import Path

from msgspec.inspect import DataclassType, Metadata, VarTupleType

from zerosim.core.parts import Named
from zerosim.scenario.reading import keys, keys_in
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import OF_ALL_ROWS, Parallel
from zerosim.scenario.values import either, names_in, words

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "scenario.md"
LIST = re.compile(r"(?:^- .*\n)+", re.MULTILINE)
ITEM = re.compile(r"^- `([\w.]+)` \(.*?\): (.+)$", re.MULTILINE)
SHORTER = (
    (r"an integer of at least (\S+) and at most (\S+)", r"\1…\2"), (r"an integer of at least (\S+)", r"integer ≥ \1"),
    (r"a finite number of at least (\S+) and below (\S+)", r"\1 ≤ number < \2"),
    (r"a finite number of at least (\S+)", r"number ≥ \1"), ("a finite number", "number"), ("an array", "array"),
    (", each", " of"), ("a string in quotes", "string"), ("a name in quotes or a table with", "name, or table of"),
    ("a table with", "table of"), ("true or false", "boolean"), ("array of length at most", "at most"),
    ("array of length at least 1", "one or more"), ("array of length 2", "two"),
    (r"array of (integer|number|string)", r"\1s"))
"""What errors say in words, as the page has it."""


def sections():
    """The keys of each table of a scenario, "" for those at the top: fields by name."""
    found = {"": {}}
    for each in dataclasses.fields(Scenario):
        inner = section_of(keys(Scenario).get(each.name))
        if inner is not None:
            found[each.name] = {field.name: field for field in dataclasses.fields(inner) if field.name in keys(inner)}
        elif each.name in keys(Scenario):
            found[""][each.name] = each
    return found


def section_of(kind):
    """The section that a key contains, or several of."""
    match kind:
        case Metadata(type=inner) | VarTupleType(item_type=inner):
            return section_of(inner)
        case DataclassType(cls=cls) if cls is not Named:
            return cls
    return None


def allowed(kind):
    """What a key may contain, as the page has it.

    >>> from msgspec.inspect import type_info
    >>> from zerosim.scenario.values import Natural, bounded
    >>> allowed(type_info(tuple[Natural, ...]))
    'integers ≥ 0'
    """
    said, names, part = words(kind), names_in(kind), "FILE.py:NAME"
    if names:
        said = said.replace(either([*filter(None, names), part]), code([*filter(None, names), part]))
        said = said.replace(either(name or '""' for name in names), code(names))
    if keys_in(kind):
        said = said.replace(", ".join(keys_in(kind)), code(keys_in(kind)))
    for long, short in SHORTER:
        said = re.sub(long, short, said)
    return said


def code(names):
    return ", ".join(f"`{name or json.dumps(name)}`" for name in names)


def default(field):
    if field.default in (None, dataclasses.MISSING):
        return "not set"
    value = field.default
    return f"`{value:g}`" if isinstance(value, float) else f"`{json.dumps(value)}`"


def sentences(page):
    """The meaning of each key, as the page says it."""
    return dict(ITEM.findall(page))


def items(section, fields, meanings):
    """The keys of one section."""
    kinds = keys_in(keys(Scenario)[section]) if section in keys(Scenario) else {}
    if section in ("variant", "fault"):
        kinds = keys(section_of(keys(Scenario)[section]))
    kinds = kinds or keys(Scenario)
    found = [
        f"- `{key}` ({default(field)}; {allowed(kinds[name])}): {meanings.get(key, '')}\n"
        for name, field in fields.items() for key in [f"{section}.{name}".lstrip(".")]
    ]
    if section == "variant":
        other = ", ".join(f"`{name}`" for name in keys(Parallel) if name in OF_ALL_ROWS)
        found.append(f"- all keys of `[parallel]` but {other} (not set; the same): The same, for this row.\n")
    return "".join(found)


def written(page):
    """The page with its lists as the sections have them; raises `KeyError` if a section has no heading."""
    meanings = sentences(page)
    for section, fields in sections().items():
        heading = f"## `[{section}]`\n" if section and section not in ("variant", "fault") else (
            f"## `[[{section}]]`\n" if section else "## At the top\n")
        before, found, after = page.partition(heading)
        if not found:
            raise KeyError(f"no heading {heading!r}")
        page = before + found + LIST.sub(lambda _, s=section, k=fields: items(s, k, meanings), after, count=1)
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
