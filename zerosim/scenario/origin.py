"""Error messages of scenarios: the positions of keys, and values and names in words."""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from zerosim.errors import ScenarioError, UsageError
from zerosim.parts import Loader
from zerosim.scenario.positions import KeyPath, Position, TextPlace, shortened

LARGEST_INTEGER = 2**63 - 1  # TOML's own
OVERRIDE = "--set"
"""The file name in errors about an override; columns count in the override itself."""


@dataclass(frozen=True)
class Origin:
    """The scenario's file; the file and position of every key written there or in an override."""

    file: str = "<scenario>"
    written: Mapping[KeyPath, tuple[str, Position]] = field(default_factory=dict)
    loader: Loader = field(default_factory=Loader)
    """Imports the Python that keys name."""

    def error(
        self, message: str, *paths: KeyPath, at: Literal["key", "value"] = "value"
    ) -> ScenarioError:
        """The error at one of `paths`: the first in an override, or else in the file.

        >>> print(Origin("a.toml").error("train.steps is too large", ("train", "steps")))
        a.toml:1:1: train.steps is too large
        """
        blamed = [self.written[path] for path in paths if path in self.written]
        blamed.sort(key=lambda mark: mark[0] != OVERRIDE)
        file, position = blamed[0] if blamed else (self.file, NOWHERE)
        line, column = getattr(position, at)
        return ScenarioError(message, file=file, line=line, column=column)

    @contextmanager
    def blaming(self, *paths: KeyPath) -> Iterator[None]:
        """A context that turns errors of a user's part into errors at one of `paths`."""
        try:
            yield
        except UsageError as error:
            raise self.error(f"{'.'.join(map(str, paths[0]))}: {error}", *paths) from error

    def overridden(self, *sections: str) -> bool:
        """Whether an override has set a key in one of these sections.

        >>> Origin("a.toml", {("train", "steps"): (OVERRIDE, NOWHERE)}).overridden("world", "train")
        True
        """
        return any(file == OVERRIDE and path[0] in sections for path, (file, _) in self.written.items())

    def is_override(self, path: KeyPath) -> bool:
        """Whether an override has set this key itself."""
        return self.written.get(path, ("", NOWHERE))[0] == OVERRIDE

    def folder(self, path: KeyPath) -> Path:
        """The folder of relative file names at `path`: that of its file; for an override, the current folder."""
        file, _ = self.written.get(path, (self.file, NOWHERE))
        return Path(file).parent


NOWHERE = Position(TextPlace(1, 1), TextPlace(1, 1))


def nearest(name: str, names: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name.lower(), names, n=1)), None)


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


class Conflict:
    """A violated condition in words, and the keys at one of which it is reported."""

    def __init__(self, message: str, *keys: str, at_key: bool = False) -> None:
        self.message, self.keys, self.at_key = message, keys, at_key

    def error(self, origin: Origin) -> Exception:
        """The error at the first of the keys that an override sets, or else the file."""
        return origin.error(self.message, *map(path, self.keys), at="key" if self.at_key else "value")


def path(key: str) -> KeyPath:
    """The path of a key.

    >>> path("variant.0.units")
    ('variant', 0, 'units')
    """
    return tuple(int(step) if step.isdigit() else step for step in key.split("."))
