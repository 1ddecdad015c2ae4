"""The pages: of a run, of a plan, of a schedule and of a step. Each is a list of sections for `page.html`.

A section has blocks of six kinds: `text`, `lines` of a list, `code`, which may `fold` under a sentence, `rows` of a
table with `heads`, a `picture` or a `film` with its numbers. `page.html` has the only HTML and CSS, and escapes every
word; `film.js` steps through films.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zerosim.core.words import grouped, plural, printable, toml
from zerosim.show import pictures
from zerosim.show.columns import PAGE, bits, facts, legend, notes, shown_in
from zerosim.show.document import RowDocument, RunDocument, unit_of
from zerosim.show.grid import Column
from zerosim.show.table import ABOUT_TIMES, step_times

Block = dict[str, Any]
Section = tuple[str, str, list[Block]]
"""Its id, its title, and its blocks; one without blocks is left out."""


@dataclass(frozen=True)
class Head:
    """A title, and the verdict below it."""

    title: str
    verdict: Sequence[str]
    passed: bool
    caption: str = ""


def html(head: Head, sections: Sequence[Section]) -> str:
    """The HTML of a page; every word is escaped, and characters that cannot be printed are made visible.

    Raises `UsageError` if the extra [report] is missing.
    """
    pictures.converter()
    import jinja2  # noqa: PLC0415

    template = jinja2.Environment(
        autoescape=True, loader=jinja2.PackageLoader("zerosim.show", "."), undefined=jinja2.ChainableUndefined,
        trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value).get_template("page.html")
    drawn, stepped = (any(kind in block for *_, blocks in sections for block in blocks)
                      for kind in ("picture", "film"))
    return template.render(head=head, sections=sections, vega=pictures.script() if drawn else "", film=stepped) + "\n"


def picture(spec: pictures.Spec, about: str) -> Block:
    return {"picture": pictures.interactive(spec), "numbers": pictures.numbers(spec), "about": about}


def note(words: str) -> Block:
    return {"text": words, "look": "note"}


def page(run: RunDocument) -> str:
    """The HTML of a run."""
    rows, sections = run.rows, [results(run)]
    if rows and run.steps:
        pairs = [row for row in rows if row.traced and row.ranks > 1]
        sections += [step(rows, run.about_times, ordered=run.times_mislead), (
            "traffic", "Bytes between each pair of ranks", [
                picture(pictures.sent(rows), "bytes sent by a rank in a step, by collective"),
                *[picture({"concat": [*map(pictures.partners, pairs)], "columns": 4,
                           "resolve": {"scale": {"opacity": "independent"}}},
                          "bytes from each rank to each other in a step")] * bool(pairs)]), (
            "losses", "Losses", [picture(pictures.losses(rows), "the loss of every step")])]
    sections.append(("divergence", "Where bits first differ", [
        block for row in rows if row.first_divergence for block in (
            {"text": f"{row.name}: {row.first_divergence.words}", "look": "verdict failed"},
            *({"code": f"{side} adds {words}"}
              for side, words in (row.first_divergence.order_of_addition or {}).items()))]))
    sections.append(("apart", "Both correct, but different", [
        {"lines": difference.lines} for difference in run.differences]))
    return html(Head(run.title or "A run without a title", [
        run.verdict, *(f"{failure['name']}: {failure['what']}" for failure in run.failures)], run.passed,
        str(run.scenario["caption"])), [*sections, origin(run)])


def results(run: RunDocument) -> Section:
    """A line for each row, the meaning of the columns, and the facts that all rows share."""
    rows, misfits = run.rows, [{"text": misfit.words} for misfit in run.did_not_fit]
    if not rows:
        return ("table", "Results", misfits)
    figures, unit, names = shown_in(PAGE, rows), unit_of(rows), [row.name for row in rows]
    columns = [Column("", [row.stage_words.also.partition(",")[0] for row in rows]), Column("same bits", bits(rows)), *(
        Column(f"{figure.name}{f', {unit.name}' * figure.in_bytes}", figure.cells(rows, unit)) for figure in figures)]
    return ("table", "Results", [
        table(names, columns), {"lines": [f"{word}: {meaning}" for word, meaning in legend(run, figures)]}, *misfits,
        *({"text": words} for words in notes(run)),
        {"lines": [f"{what}: {words[0] if len({*words}) == 1 else grouped(names, words)}"
                   for what, words in facts(run).items()]},
        picture(pictures.kept(rows), "memory of a rank between steps, by kind")])


def table(names: Sequence[str], columns: Sequence[Column]) -> Block:
    """A table of figures with a line for each name."""
    return {"heads": ["row", *(column.heading.replace("\n", " ") for column in columns)], "figures": True,
            "rows": [[name, *(str(column.cells[at]) for column in columns)] for at, name in enumerate(names)]}


def step(
    rows: Sequence[RowDocument], about_times: str = "", device_bytes: int = 0, *, ordered: bool = False,
) -> Section:
    """The timeline of a step and its memory for each row, on one scale of time or, if `ordered`, of events."""
    traced, untraced = ([row for row in rows if bool(row.traced) is wanted] for wanted in (True, False))
    along = pictures.Axis(rows, ordered)
    blocks: list[Block] = []
    for row in rows:
        memory = pictures.memory(row, along, device_bytes)
        if row.traced:
            blocks.append(picture(
                pictures.timeline(row, along), f"{row.name}: what ranks compute and send in a step"))
        else:
            memory["title"] = pictures.titled(row)
        blocks.append(picture(memory, f"{row.name}: memory of the fullest rank in a step, by kind"))
    return ("step", "A step in time", [
        *([note(f"{', '.join(row.name for row in untraced)}: no step of this run was traced; zerosim run SCENARIO "
                "--report FILE.html traces the last one")] if untraced else []),
        *(note(f"{row.name}: ranks 0 to {pictures.DRAWN_RANKS - 1} are drawn, of {row.ranks}.")
          for row in traced if row.ranks > pictures.DRAWN_RANKS),
        *[note(about_times)] * bool(traced and about_times),
        *([note("Times of this run would mislead: its ranks wait for cores or for each other most of the step. The "
                "pictures show the order of events instead; zerosim plan computes times for a cluster, and zerosim run "
                "-v prints what was measured.")] if ordered and traced else [
            table([row.name for row in traced], step_times([row.trace for row in traced if row.trace])),
            note(ABOUT_TIMES)]),
        note("Dragging pans a picture, the wheel zooms it with Ctrl. Pointing at a message shows its other end."),
        *blocks])


def origin(run: RunDocument) -> Section:
    """The resolved scenario, versions, digests and the command that repeats the run."""
    prefix = f"mpirun -n {run.ranks} " * (not run.takes_turns)
    return ("origin", f"How to reproduce {run.title or 'it'}", [
        *([{"text": "This was run as"}, {"code": run.command}] if run.command else []),
        {"code": toml(run.scenario), "fold": "The resolved scenario, with all defaults. Saved as again.toml, it "
            f"reproduces the same bits with {prefix}zerosim run again.toml --report again.html."},
        {"rows": [["world", f"{run.world['kind']}, {plural(run.ranks, 'rank')}, {run.world['library']}"],
                  *([name, words] for name, words in run.versions.items())]},
        {"heads": ("SHA-256", "weights", "optimizer state"),
         "rows": [[row.name, row.weights_sha256, row.optimizer_sha256] for row in run.rows]}])
