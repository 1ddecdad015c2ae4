"""Grades for the Python prompt: of a function for an exercise, or of a user's part."""

from dataclasses import dataclass
from typing import Any

from zerosim.errors import UsageError
from zerosim.grading.exercises import Grade
from zerosim.grading.parts import grade_named
from zerosim.notebook.display import Bundle
from zerosim.notebook.shown import Shown
from zerosim.parts import Loader, code_of, is_python


@dataclass(frozen=True, repr=False)
class ShownGrade(Shown):
    """The grade of a function or a part: its claims, its points, and a complaint about the first fault."""

    grade: Grade

    @property
    def passed(self) -> bool:
        """Whether all claims hold."""
        return self.grade.complaint is None and self.grade.state != "not yet written"

    @property
    def document(self) -> dict[str, Any]:
        """The grade in JSON's own types."""
        return {"schema": "zerosim.grade/1", "function": self.grade.function, "state": self.grade.state,
                "complaint": self.grade.complaint, "items": self.rows()}

    def rows(self) -> list[dict[str, Any]]:
        """A plain dict for each claim: `says`, `state`, `points`, `earned`, `complaint`."""
        return [{"says": item.says, "state": item.state, "points": item.points, "earned": item.earned,
                 "complaint": item.complaint} for item in self.grade.items]

    def __str__(self) -> str:
        lines = [f"{item.state:>15}  {item.says} ({item.earned} of {item.points})" for item in self.grade.items]
        return "\n".join([f"{self.grade.function}: {self.grade.state}", *lines, *filter(None, [self.grade.complaint])])

    def __repr__(self) -> str:
        return f"<grade of {self.grade.function}: {self.grade.state}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        return {"text/plain": str(self)}


def graded(part: Any) -> ShownGrade:
    """The grade of a part or a function, or of `FILE.py:NAME`; an exercise is known by its name."""
    if isinstance(part, str):
        if not is_python(part):
            raise UsageError(f"found {part!r}; give FILE.py:NAME, or a function")
        return ShownGrade(grade_named(part, Loader().load(part).value))
    name, _ = code_of(part)
    return ShownGrade(grade_named(name, part))
