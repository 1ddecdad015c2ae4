"""The positions of a scenario's keys, for error messages."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from zerosim.errors import ScenarioError, UsageError
from zerosim.parts import Loader
from zerosim.scenario.positions import KeyPath, Position, TextPlace

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
