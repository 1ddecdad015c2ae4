"""The pages: of one run or two, of a schedule and of a step. Each is a list of sections, which `page.html` shows.

A section has blocks: `text`, `lines` of a list, `code`, `rows` of a table with `heads`, a `picture`, or `frames` to
step through.
"""

import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jinja2

from zerosim.core.errors import UsageError
from zerosim.core.words import grouped, ignored_in_words, percentage, plural, printable, short, toml
from zerosim.show.columns import PAGE, WRONG, facts, shown_in, why_peaks_stay
from zerosim.show.page import pictures
from zerosim.show.run_document import RowDocument, RunDocument, element_name, unit_of
from zerosim.show.schedule import Schedule
from zerosim.show.schedule_svg import schedule_picture
from zerosim.show.step import RecordedStep, show_step

Block = dict[str, Any]
NO_TRACE = "No step of this run was traced. zerosim run SCENARIO --report FILE.html traces the last one."


@dataclass(frozen=True)
class Head:
    """A title, and the verdict below it."""

    title: str
    verdict: Sequence[str]
    passed: bool
    caption: str = ""
    failures: Sequence[str] = ()

    @property
    def words(self) -> list[str]:
        return [*self.verdict, *self.failures]


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    blocks: list[Block] = field(default_factory=list)


@cache
def template() -> jinja2.Template:
    """The template; every word is escaped, and characters that cannot be printed are made visible."""
    found = jinja2.Environment(
        autoescape=True, loader=jinja2.PackageLoader("zerosim.show.page", "."), undefined=jinja2.ChainableUndefined,
        finalize=lambda each: printable(each) if type(each) is str else each)
    return found.get_template("page.html")


def html(heads: Sequence[Head], sections: Sequence[Section]) -> str:
    """The HTML of a page; with pictures it needs the extra [report]."""
    blocks = [block for section in sections for block in section.blocks]
    drawn, plays = (any(kind in block for block in blocks) for kind in ("picture", "frames"))
    return template().render(title=" · ".join(head.title for head in heads), heads=heads, sections=sections,
                             vega=pictures.script() if drawn else "", plays=plays) + "\n"


def picture(spec: pictures.Spec, about: str) -> Block:
    return {"picture": pictures.interactive(spec), "about": about}


def note(words: str) -> Block:
    return {"text": words, "look": "note"}


def page(runs: Sequence[RunDocument]) -> str:
    """The HTML of one run, or of several side by side."""
    rows = [row for run in runs for row in run.rows]
    sections = [*map(checks, runs), results(runs), differences(runs)]
    if any(row.steps for row in rows):
        sections += [step(rows, [run.about_times for run in runs if run.about_times]), traffic(rows), losses(rows)]
    sections += [calls(row) for row in rows if "calls" in row.found]
    sections += [Section("divergence", "Where bits first differ", [block for row in rows for block in divergence(row)]),
                 Section("apart", "Both correct, but different", [
                     block for run in runs for each in run.document.get("differences", [])
                     for block in row_difference(each)]), *map(origin, runs)]
    return html([*map(head, runs)], sections)


def head(run: RunDocument) -> Head:
    title = run.title or "A run without a title"
    return Head(f"{run.label}: {title}" if run.label else title, [str(run.document["verdict"])],
                bool(run.document["passed"]), str(run.scenario["caption"]),
                [f"{each['name']}: {each['what']}" for each in run.document["failures"]])


def checks(run: RunDocument) -> Section:
    """The verdicts on each subject of a check, and what it observed."""
    found = run.document.get("check")
    return Section("check", "Check", [] if found is None else [
        {"heads": ("subject", "verdict", "reason"),
         "rows": [[each["what"], each["verdict"], each["why"]] for each in found["verdicts"]]},
        {"lines": [f"{each['text']} {each['line']}" for each in found["observations"]]}])


def results(runs: Sequence[RunDocument]) -> Section:
    """A line for each row, the meaning of the columns, and the facts that all rows share."""
    rows = [row for run in runs for row in run.rows]
    meanings = [
        "bits: loss, weights, gradients and optimizer state of every step, compared with one process, or with the "
        "first row that adds in the same order",
        *(f"{figure.heading.replace(chr(10), ' ')}: {figure.meaning}" for figure in shown_in(PAGE, rows)),
        f"{WRONG}: not what the formula says"]
    notes = [why_peaks_stay(rows), *ignored_in_words((row.name, row.found.get("ignored", {})) for row in rows),
             *(words for run in runs for words in run.shortages)]
    return Section("table", "Results", [
        *([rows_table(rows), {"lines": meanings}] if rows else []), *({"text": words} for words in notes if words),
        *({"lines": shared(run)} for run in runs if run.rows),
        *([picture(pictures.kept(rows), "memory of a rank between steps, by kind")] if rows else [])])


def rows_table(rows: Sequence[RowDocument]) -> Block:
    """The table of rows: whether bits are equal, and the figures of a page."""
    unit = unit_of(rows)
    columns = [("bits", [{None: "–", True: "equal", False: "differ"}[row.found["equal"]] for row in rows])]
    columns += [(figure.name(unit), figure.marked(rows, unit)) for figure in shown_in(PAGE, rows)]
    return {"heads": ["row", "", *(name for name, _ in columns)], "figures": True,
            "rows": [[row.name, row.also, *(cells[at] for _, cells in columns)] for at, row in enumerate(rows)]}


def shared(run: RunDocument) -> list[str]:
    """The facts that all rows share, or the rows to which they apply."""
    names = [row.name for row in run.rows]
    of = f"{run.label}: " if run.label else ""
    return [f"{of}{what}: {found[0] if len(set(found)) == 1 else grouped(names, found)}"
            for what, found in facts(run).items()]


def step(rows: Sequence[RowDocument], about_times: Sequence[str] = (), device_bytes: int = 0) -> Section:
    """The timeline of a step and its memory for each row, on one scale of time."""
    traced = [row for row in rows if row.spans]
    missing = [row.name for row in rows if not row.spans]
    lines = [[row.name, *(short(ns / 1e6) for ns in (row.step_ns, row.computing_ns, row.step_ns - row.computing_ns)),
              percentage(row.hidden)] for row in traced]
    heads = ("row", "step, ms", "computes, ms", "not computing, ms", "communication overlapped")
    return Section("step", "A step in time", [
        *([note(f"{', '.join(missing)}: {NO_TRACE}" if traced else NO_TRACE)] if missing else []),
        *(note(f"{row.name}: ranks 0 to {row.drawn - 1} are drawn, of {row.ranks}.") for row in traced
          if row.drawn < row.ranks),
        *(note(words) for words in about_times if traced),
        *({"text": comparison(traced[0], other)} for other in traced[1:]),
        {"heads": heads, "rows": lines, "figures": True},
        note("The wheel zooms all of these pictures, dragging pans them. Pointing at a message shows its other end."),
        picture(pictures.steps(rows, device_bytes), "what each rank computes, sends and holds in a step")])


def comparison(first: RowDocument, other: RowDocument) -> str:
    """A sentence on the bytes and the time of a row relative to the first one."""
    ratios = [f"sends {other.sent_bytes / first.sent_bytes:.2f}× the bytes"] if first.sent_bytes else []
    ratios += [f"takes {other.step_ns / first.step_ns:.2f}× the time"] if first.step_ns else []
    of = f" of {first.name}" if ratios else ""
    return f"{other.name} {' and '.join(ratios)}{of}: " + (
        "nothing is communicated." if other.hidden is None
        else f"{percentage(other.hidden)} of its communication is overlapped.")


def traffic(rows: Sequence[RowDocument]) -> Section:
    return Section("traffic", "Bytes between each pair of ranks", [
        picture(pictures.sent(rows), "bytes sent by a rank in a step, by collective"),
        *(picture(pictures.partners(row), f"{row.name}: bytes from each rank to each other in a step")
          for row in rows if row.spans and row.ranks > 1)])


def losses(rows: Sequence[RowDocument]) -> Section:
    same = len(rows) > 1 and len({tuple(row.losses) for row in rows}) == 1 and all(row.found["equal"] for row in rows)
    return Section("losses", "Losses", [
        *([note("All rows have the same losses, bit for bit.")] if same else []),
        picture(pictures.losses(rows), "the loss of every step")])


def calls(row: RowDocument) -> Section:
    """A table of the calls of rank 0, in order."""
    heads = ("collective", "called by", "fills", "bytes sent", "messages", "waits, ms")
    return Section("calls", f"{row.name}: calls of collectives", [
        note("Rank 0 in the last step. A line of PyTorch is followed by the line of the script that called it, and by "
             "the unit of FSDP2. On a CPU, FSDP2 waits for each collective where it calls it, so none is overlapped."),
        {"heads": heads, "rows": [
            [call["collective"], call["by"], call.get("tensors", ""), f"{call['sent_bytes']:,}",
             f"{call['messages']:,}", f"{call.get('waited_ns', 0) / 1e6:.2f}"] for call in row.found["calls"][0]]}])


def divergence(row: RowDocument) -> Iterator[Block]:
    """The first differing bits of a row, with both orders of addition."""
    first = row.found["first_divergence"]
    if not first:
        return
    what, order = element_name(first, first["state"]), first["order_of_addition"]
    yield {"text": f"{row.name}: {what} is the first element that differs, after step {first['step']}.",
           "look": "verdict failed"}
    yield {"rows": [
        ["chunk", f"{first['chunk']}, {plural(first['differing_elements'], 'element')} of it differing"],
        ["noticed by", f"rank {first['rank']}"], [f"{row.name} holds", f"{first['ours']!r} ({first['ours_bits']})"],
        [f"{row.found['compared_with']} holds", f"{first['reference']!r} ({first['reference_bits']})"],
        ["distance", "not comparable in ULPs" if first["ulps"] is None else f"{first['ulps']:,} ULP apart"]]}
    if order is not None:
        yield from ({"code": f"{side} adds {words}"} for side, words in order.items())


def row_difference(found: dict[str, Any]) -> Iterator[Block]:
    """Why two rows differ although each equals one process."""
    yield {"text": f"Each of {found['first']} and {found['other']} has the bits of one process. "
                   f"{found['cause'][:1].upper()}{found['cause'][1:]}."}
    yield {"rows": [
        ["step", f"{found['step']}"], ["element", element_name(found, found["what"])],
        *([f"{found[who]} has", f"{value!r}, in chunk {chunk}"] for who, value, chunk in zip(
            ("first", "other"), found["values"], found["chunks"], strict=True)), ["distance", f"{found['ulps']:,} ULP"],
        *([f"{count:,} elements differ by", f"{ulps} ULP"] for ulps, count in found["histogram"].items() if count)]}
    yield from ({"code": f"{found[who]}: {order}"} for who, order in zip(
        ("first", "other"), found["orders"], strict=True))


def differences(runs: Sequence[RunDocument]) -> Section:
    """The keys in which the scenarios of two runs differ, and whether their rows have the same weights."""
    if len(runs) < 2:
        return Section("differences", "")
    one, other = (flat(run.scenario) for run in runs)
    lines = [[key, *(json.dumps(each.get(key), ensure_ascii=False) for each in (one, other))]
             for key in dict.fromkeys([*one, *other])
             if one.get(key) != other.get(key) and key not in ("title", "caption")]
    mine, theirs = ({row.found["weights_sha256"] for row in run.rows} for run in runs)
    words = ("All rows of both end with the same weights, bit for bit." if mine == theirs and len(mine) == 1 else
             "Some rows of both end with the same weights." if mine & theirs else "They end with different weights.")
    return Section("differences", "Differences of the scenarios", [
        {"heads": ("key", *(run.label for run in runs)), "rows": lines} if lines else
        {"text": "Both have the same scenario, except for titles and captions."}, {"text": words}])


def flat(scenario: dict[str, Any]) -> dict[str, Any]:
    """The keys of a scenario with their sections before them.

    >>> flat({"title": "x", "world": {"ranks": 2}})
    {'title': 'x', 'world.ranks': 2}
    """
    found: dict[str, Any] = {}
    for key, value in scenario.items():
        found |= {f"{key}.{name}": each for name, each in value.items()} if isinstance(value, dict) else {key: value}
    return found


def origin(run: RunDocument) -> Section:
    """The resolved scenario, versions, digests and the command that repeats the run."""
    world, prefix = run.document["world"], f"mpirun -n {run.ranks} " * (run.document["world"]["kind"] == "mpi")
    command = run.document["command"]
    return Section(f"origin{run.label}", f"{f'{run.label}: ' if run.label else ''}How to reproduce it", [
        *([{"text": "This was run as"}, {"code": str(command)}] if command else []),
        *([] if run.is_script else [
            {"text": "The resolved scenario, with all defaults. Saved as again.toml, it reproduces the same bits with "
                     f"{prefix}zerosim run again.toml --report again.html."}, {"code": toml(run.scenario)}]),
        {"rows": [["world", f"{world['kind']}, {plural(world['ranks'], 'rank')}, {world['library']}"],
                  *([name, str(found)] for name, found in run.document["versions"].items())]},
        {"heads": ("SHA-256", "weights", "optimizer state"),
         "rows": [[row.name, row.found["weights_sha256"], row.found["optimizer_sha256"]] for row in run.rows]}])


def schedule_page(schedule: Schedule, first: int = 0) -> str:
    """The HTML of one collective, shown round by round from round `first` on; it needs no extra."""
    frames = [schedule_picture(schedule, number) for number in range(len(schedule.states))]
    return html([Head(schedule.title, schedule.verdict.split("; "), not schedule.faults,
                      f"{schedule.cost}; {schedule.about}")],
                [Section("schedule", "Round by round", [{"frames": frames, "first": first}])])


def step_page(found: RecordedStep) -> str:
    """The HTML of a stage's step, event by event; it needs no extra."""
    from zerosim.show.shown import printed  # noqa: PLC0415 - which imports pictures

    drawing = printed(lambda console: show_step(console, found, most=found.size), 2000)
    return html([Head(found.title, [found.verdict], found.fault is None, found.about)],
                [Section("step", "Event by event", [{"code": drawing}])])


def excerpt(run: RunDocument) -> str:
    """The verdict, the table, and pictures of kept and sent bytes; a sentence if pictures cannot be drawn."""
    if not run.rows:
        return excerpt_of(head(run), {})
    try:
        drawn = [b64encode(pictures.svg(each(run.rows)).encode()).decode() for each in (pictures.kept, pictures.sent)]
    except UsageError as error:
        return excerpt_of(head(run), rows_table(run.rows)) + f"<p>{error}</p>"
    images = "".join(f'<p><img src="data:image/svg+xml;base64,{each}"></p>' for each in drawn)
    return excerpt_of(head(run), rows_table(run.rows)) + images


def excerpt_of(head: Head, table: Block) -> str:
    """The verdict and the table, for a cell of a notebook: no script and no style of its own."""
    cell = template().environment.from_string(
        "<p><strong>{{ head.title }}</strong></p>{% for words in [head.caption] + head.words %}<p>{{ words }}</p>"
        "{% endfor %}{% if table %}<table><tr>{% for each in table.heads %}<th>{{ each }}</th>{% endfor %}</tr>"
        "{% for row in table.rows %}<tr>{% for each in row %}<td>{{ each }}</td>{% endfor %}</tr>{% endfor %}</table>"
        "{% endif %}")
    return cell.render(head=head, table=table)
