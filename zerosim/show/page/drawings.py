"""All pictures of the rows of a page: each specification once, and the data that it names, row by row."""

from collections.abc import Iterator, Sequence

from zerosim.instruments.memory import MEMORY_KINDS
from zerosim.show.activities import activity, in_order, legend_words
from zerosim.show.page import pictures, step_pictures
from zerosim.show.page.pictures import PictureValues
from zerosim.show.page.vega import Spec
from zerosim.show.run_document import RowDocument
from zerosim.words import common_unit


class Drawings:
    """Specifications by the name of the picture, and data by name; all pictures share one scale of time and of bytes.
    """

    def __init__(self, rows: Sequence[RowDocument], device_bytes: int = 0) -> None:
        self._rows = rows
        self._device_bytes = device_bytes
        self.words = legend_words(span for row in rows for span in row.spans)
        waited = ["wait" for row in rows for span in row.spans if span["waited_ns"]]
        self.activities = in_order([*(activity(span["what"]) for row in rows for span in row.spans), *waited])
        self.lanes = 1 + max((span["lane"] for row in rows for span in row.spans), default=0)
        self.specs = self._specs()
        for name, axis in (("memory", "y"), ("kept", "x")) if device_bytes else ():
            self.specs[name] = pictures.beside_device(self.specs[name], axis, device_bytes)
        self.values = self._values()

    def _specs(self) -> dict[str, Spec]:
        rows = self._rows
        until = max((row.end_ns for row in rows), default=0) or 1
        peaks = [row.fullest["peak_bytes"]["total"] for row in rows]
        most_bytes = max([*peaks, self._device_bytes]) or 1
        curves = pictures.loss_curves(rows)
        losses = [loss for curve in curves.values() for loss in curve if loss is not None]
        logarithmic = bool(losses) and 0 < 20 * min(losses) < max(losses)
        return {
            "timeline": step_pictures.timeline(
                self.activities, self.words.get("other", "other"), max((row.drawn for row in rows), default=1),
                self.lanes, until),
            "memory": pictures.memory(until, most_bytes),
            "partners": pictures.partners(
                max((row.ranks for row in rows), default=1), common_unit(self._most_sent)),
            "kept": pictures.kept(rows),
            "sent": pictures.sent(rows),
            "losses": pictures.losses(list(curves), max((row.steps for row in rows), default=1), logarithmic),
        }

    def _values(self) -> dict[str, PictureValues]:
        rows = self._rows
        found = {
            "kept": pictures.kind_values(MEMORY_KINDS[:3], [(row.name, row.fullest["resting_bytes"]) for row in rows]),
            "sent": pictures.sent_values(rows), "losses": pictures.loss_values(rows),
            "divergences": [{"row": row.name, "step": row.found["first_divergence"]["step"]} for row in rows
                            if row.found["first_divergence"]]}
        for number, row in enumerate(rows, 1):
            found[f"curve-{number}"] = pictures.curve_values(row.curve, row.end_ns)
            if row.spans:
                found[f"spans-{number}"] = step_pictures.span_values(row)
                found[f"links-{number}"] = step_pictures.link_values(row)
                found[f"partners-{number}"] = pictures.partner_values(row, common_unit(self._most_sent))
        return found

    @property
    def _most_sent(self) -> int:
        """The most bytes that a rank of any row sends in a step."""
        return max((row.sent_bytes for row in self._rows), default=0)

    def for_a_page(self) -> dict[str, Spec]:
        """The specifications for a page, without the legends of pictures that share one above them."""
        shared = {"config": pictures.CONFIG | {"legend": {"disable": True}}}
        return {name: spec | shared if name in ("timeline", "memory") else spec for name, spec in self.specs.items()}

    def files(self) -> Iterator[tuple[str, Spec]]:
        """Every picture with data, with its data inside, and a name for its file; rows are numbered from 1."""
        once = {"kept": {"bars": "kept"}, "sent": {"bars": "sent"},
                "losses": {"losses": "losses", "divergences": "divergences"}}
        for name, data in once.items():
            if any(self.values[each] for each in data.values()):
                yield name, self._filled(name, data)
        for number, row in enumerate(self._rows, 1):
            memory = self._filled("memory", {"curve": f"curve-{number}"})
            yield f"memory-{number}", memory | pictures.headed(row.heading)
            if row.spans:
                timeline = self._filled("timeline", {"spans": f"spans-{number}", "links": f"links-{number}"})
                yield f"step-{number}", pictures.above(timeline, memory, row.heading)
            if row.spans and row.ranks > 1:
                yield f"partners-{number}", self._filled("partners", {"partners": f"partners-{number}"})

    def _filled(self, spec: str, data: dict[str, str]) -> Spec:
        return pictures.with_values(self.specs[spec], {name: self.values[each] for name, each in data.items()})
