"""The public operations, or those of a file, for the Python prompt and for notebooks."""

from dataclasses import dataclass
from typing import Any

from zerosim.autograd.operations.table import EXAMPLES, OPERATIONS
from zerosim.errors import UsageError
from zerosim.notebook.display import Bundle, printed
from zerosim.notebook.shown import Shown
from zerosim.parts.loading import load_file
from zerosim.planner.operations import OperationFigures, declared, figures
from zerosim.report import operations_table


@dataclass(frozen=True, repr=False)
class ShownOperations(Shown):
    """The figures of operations, each on an example."""

    operations: tuple[OperationFigures, ...]

    @property
    def document(self) -> dict[str, Any]:
        """The operations in JSON's own types."""
        return {"schema": "zerosim.operations/1", "operations": self.rows()}

    def rows(self) -> list[dict[str, Any]]:
        """A plain dict for each operation."""
        return operations_table.rows(self.operations)

    def __str__(self) -> str:
        return printed(lambda console: operations_table.show_operations(console, self.operations), width=100)

    def __repr__(self) -> str:
        return f"<{len(self.operations)} operations: {', '.join(each.name for each in self.operations)}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        return {"text/plain": str(self)}


def operations_of(path: str | None) -> ShownOperations:
    """The public operations, or those of a file that have examples."""
    if path is None:
        found = {name: (each, EXAMPLES[name]) for name, each in OPERATIONS.items()}
    else:
        found = {name: (each, example) for name, (each, example) in declared(vars(load_file(path))).items() if example}
        if not found:
            raise UsageError(f"{path} declares no operation for which its EXAMPLES has shapes")
    return ShownOperations(tuple(figures(each, example) for each, example in found.values()))
