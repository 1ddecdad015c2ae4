"""The sections of the page, in reading order; each is HTML with placeholders for its pictures."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from zerosim.show.activities import ACTIVITIES, WORDS, activity, in_order, swatch
from zerosim.show.columns import PAGE, WRONG, facts, shown_in, why_peaks_stay
from zerosim.show.page.drawings import Drawings
from zerosim.show.page.markup import Markup, element, joined, scrolling, section, table
from zerosim.show.page.pictures import KIND_COLOURS, loss_curves
from zerosim.show.run_document import KIND_NAMES, RowDocument, RunDocument, element_name, unit_of
from zerosim.show.step import RecordedStep
from zerosim.words import grouped, ignored_in_words, percentage, plural, short
from zerosim.words import joined as listed

NO_TRACE = "No step of this run was traced. zerosim run SCENARIO --report FILE.html traces the last one."


def picture(spec: str, about: str, data: dict[str, str], columns: dict[str, str], *, timed: bool = False) -> Markup:
    """A placeholder for a picture, and its numbers as a collapsed table.

    `data` maps the names of data in the specification to those in the page; `columns` are the headings of the
    table, by the keys of the first of them.
    """
    numbers = element("details", element("summary", "The numbers"), class_="numbers",
                      data_of=next(iter(data.values())), data_columns=json.dumps(columns))
    place = element("div", class_="drawing", data_spec=spec, data_data=json.dumps(data), role="img", aria_label=about)
    if timed:
        place = element("div", class_="drawing timed", data_spec=spec, data_data=json.dumps(data), role="application",
                        aria_label=about, tabindex=0)
    return element("figure", place, numbers)


def head(runs: Sequence[RunDocument]) -> Markup:
    """The caption of each run, and its verdict in a sentence."""
    return element("header", *(heading(run) for run in runs))


def heading(run: RunDocument) -> Markup:
    title = run.title or "A run without a title"
    return element(
        "div", element("h1", f"{run.label}: {title}" if run.label else title),
        element("p", str(run.scenario["caption"]), class_="caption"),
        element("p", str(run.document["verdict"]), class_=verdict_class(run.document)), failures(run),
        element("p", element("a", "Where bits first differ", href="#divergence")) if run.diverging else joined())


def failures(run: RunDocument) -> Markup:
    found = [element("li", f"{each['name']}: {each['what']}") for each in run.document["failures"]]
    return element("ul", *found, class_="failures") if found else joined()


def results(runs: Sequence[RunDocument]) -> Markup:
    """A line for each row, the meaning of the columns, and the facts that all rows share."""
    rows = [row for run in runs for row in run.rows]
    notes = [why_peaks_stay(rows), *ignored_in_words((row.name, row.found.get("ignored", {})) for row in rows)]
    meanings = {
        "bits": "loss, weights, gradients and optimizer state of every step, compared with one process, or with the "
                "first row that adds in the same order",
        **{figure.heading.replace("\n", " "): figure.meaning for figure in shown_in(PAGE, rows)},
        WRONG: "not what the formula says",
    }
    return section("table", "Results", scrolling(rows_table(rows)),
        element("ul", *(element("li", f"{key}: {meaning}") for key, meaning in meanings.items()), class_="legend"),
        *(element("p", words) for words in notes if words), *map(shared, runs),
        *(element("p", words) for run in runs for words in run.shortages),
        picture("kept", "memory of a rank between steps, by kind", {"bars": "kept"},
                {"row": "row", "kind": "kind", "bytes": "bytes"}))


def checks(run: RunDocument) -> Markup:
    """The verdicts on each subject of a check, and what it observed; nothing for a run without one."""
    found = run.document.get("check")
    if found is None:
        return joined()
    return section("check", "Check",
        table([[each["what"], each["verdict"], each["why"]] for each in found["verdicts"]],
              ("subject", "verdict", "reason"), labelled=True),
        element("ul", *(element("li", f"{each['text']} {each['line']}") for each in found["observations"])))


def rows_table(rows: Sequence[RowDocument]) -> Markup:
    """The table of rows: whether bits are equal, and the figures of a page."""
    unit = unit_of(rows)
    columns = [("bits", [{None: "–", True: "equal", False: "differ"}[row.found["equal"]] for row in rows])]
    columns += [(figure.name(unit), figure.marked(rows, unit)) for figure in shown_in(PAGE, rows)]
    lines = [[row.name, row.also, *(cells[number] for _, cells in columns)] for number, row in enumerate(rows)]
    return table(lines, ("row", "", *(name for name, _ in columns)), class_="rows aliased", labelled=True,
                 wrong=lambda cell: cell == "differ" or cell.startswith(WRONG))


def verdict_class(document: Mapping[str, Any]) -> str:
    """The classes of a verdict; one without claims, which begins with "RAN", has no colour."""
    if not document["passed"]:
        return "verdict failed"
    return "verdict" if str(document["verdict"]).startswith("RAN") else "verdict passed"


def shared(run: RunDocument) -> Markup:
    """The facts that all rows share, or the rows to which they apply."""
    names = [row.name for row in run.rows]
    if not names:
        return joined()
    items = [
        element("li", f"{what}: {found[0] if len(set(found)) == 1 else grouped(names, found)}")
        for what, found in facts(run).items()
    ]
    whose = [element("p", f"{run.label}:")] if run.label else []
    return element("div", *whose, element("ul", *items, class_="facts"))


def step(rows: Sequence[RowDocument], drawings: Drawings, about_times: Sequence[str] = ()) -> Markup:
    """The timeline of a step and its memory for each row, on one scale of time."""
    traced = [row for row in rows if row.spans]
    missing = [row.name for row in rows if not row.spans]
    notes = [element("p", f"{listed(missing)}: {NO_TRACE}" if traced else NO_TRACE, class_="note")] if missing else []
    notes += [element("p", f"{row.name}: ranks 0 to {row.drawn - 1} are drawn, of {row.ranks}.", class_="legend")
              for row in traced if row.drawn < row.ranks]
    notes += [element("p", words, class_="note") for words in about_times if traced]
    chooser = element("fieldset", element("legend", "Rows shown"), *(
        element("label", element("input", type="checkbox", checked=True, data_row=number), row.name)
        for number, row in enumerate(rows, 1)
    ), class_="chooser")
    cards = [card(number, row) for number, row in enumerate(rows, 1)]
    keys = element(
        "p", "Click a picture, or reach it with the tab key. The wheel and + and − zoom all pictures; dragging and ← "
             "and → pan; 0 shows the whole step; n and p select the next and previous span, ↑ and ↓ the lane above "
             "and below; Escape clears the selection.", class_="legend")
    buttons = element("p", *(
        element("button", words, type="button", data_zoom=what, title=title) for words, what, title in
        (("−", "out", "zoom out"), ("+", "in", "zoom in"), ("←", "left", "earlier"), ("→", "right", "later"),
         ("whole step", "all", "the whole step"))
    ), element("span", "", class_="window", aria_live="polite"), class_="buttons")
    return section("step", "A step in time", *notes, step_times(traced), keys,
                   legends(drawings) if traced else joined(), kinds(),
                   element("div", chooser, buttons, class_="controls"), element("div", *cards, class_="cards"))


def step_times(traced: Sequence[RowDocument]) -> Markup:
    """The bytes and the time of each row relative to the first, and a table of times; empty if no step was traced."""
    if not traced:
        return joined()
    lines = [[row.name, *(short(ns / 1e6) for ns in (row.step_ns, row.computing_ns, row.step_ns - row.computing_ns)),
              percentage(row.hidden)] for row in traced]
    heads = ("row", "step, ms", "computes, ms", "not computing, ms", "communication overlapped")
    return element("div", *(element("p", comparison(traced[0], other), class_="answer") for other in traced[1:]),
                   scrolling(table(lines, heads, class_="rows", labelled=True)))


def comparison(first: RowDocument, other: RowDocument) -> str:
    """A sentence on the bytes and the time of a row relative to the first one."""
    ratios = []
    if first.sent_bytes:
        ratios.append(f"sends {other.sent_bytes / first.sent_bytes:.2f}× the bytes")
    if first.step_ns:
        ratios.append(f"takes {other.step_ns / first.step_ns:.2f}× the time")
    of = f" of {first.name}" if ratios else ""
    return f"{other.name} {' and '.join(ratios)}{of}: " + (
        "nothing is communicated." if other.hidden is None else f"{overlapped(other)}.")


def overlapped(row: RowDocument) -> str:
    """The overlapped share of a row's communication, in words."""
    return "" if row.hidden is None else f"{percentage(row.hidden)} of its communication is overlapped"


def legends(drawings: Drawings) -> Markup:
    """The meaning of colours and textures."""
    words = (
        "A colour is an activity, and every other layer is paler. A pale box around messages is their collective, with "
        "the number of its layer; the grey part of a message is the wait before its first byte.")
    return element(
        "div", element("p", words),
        element("ul", *(element("li", Markup(swatch(each)), drawings.words.get(each, each))
                        for each in drawings.activities), class_="keys"),
        class_="legend")


def kinds() -> Markup:
    return element("div", element("p", "Memory below, from the bottom up:"), element(
        "ul", *map(colour_key, KIND_NAMES.values(), KIND_COLOURS), class_="keys"), class_="legend")


def colour_key(name: str, colour: str) -> Markup:
    return element("li", element("span", "", class_="patch", style=f"background:{colour}"), name)


SPAN_COLUMNS = {"rank": "rank", "kind": "lane", "channel": "channel", "what": "what", "unit": "unit",
                "begin_ns": "begins, ns", "end_ns": "ends, ns", "bytes": "bytes", "peer": "other rank",
                "waited_ns": "waited, ns"}
CURVE_COLUMNS = {"ns": "since, ns", "kind": "kind", "bytes": "bytes"}


def card(number: int, row: RowDocument) -> Markup:
    """A row's timeline, if it was traced, and its memory."""
    rank = row.fullest["rank"]
    timeline = picture(
        "timeline", f"{row.name}: computation and messages of every rank in a step",
        {"spans": f"spans-{number}", "links": f"links-{number}"}, SPAN_COLUMNS, timed=True)
    curve = picture(
        "memory", f"{row.name}: memory of rank {rank} by kind in a step", {"curve": f"curve-{number}"}, CURVE_COLUMNS,
        timed=True)
    return element(
        "article", element("h3", row.name, element("small", overlapped(row))), timeline if row.spans else joined(),
        element("h4", f"memory of rank {rank}, which holds the most"), curve, id=f"row-{number}")


def traffic(rows: Sequence[RowDocument]) -> Markup:
    bars = picture("sent", "bytes sent by a rank in a step, by collective", {"bars": "sent"},
                   {"row": "row", "collective": "collective", "bytes": "bytes", "messages": "messages"})
    squares = [
        element("article", element("h3", row.name), picture(
            "partners", f"{row.name}: bytes from each rank to each other in a step",
            {"partners": f"partners-{number}"},
            {"source": "from rank", "to": "to rank", "bytes": "bytes", "messages": "messages"}))
        for number, row in enumerate(rows, 1) if row.spans
    ]
    return section("traffic", "Bytes between each pair of ranks", bars, element("div", *squares, class_="squares"))


def losses(rows: Sequence[RowDocument]) -> Markup:
    curves = loss_curves(rows)
    words = "All rows have the same losses, bit for bit." if len(curves) == 1 < len(rows) and all(
        row.found["equal"] for row in rows) else ""
    return section("losses", "Losses", element("p", words, class_="legend") if words else joined(), picture(
        "losses", "the loss of every step", {"losses": "losses", "divergences": "divergences"},
        {"row": "row", "step": "step", "loss": "loss"}))


def verdict_of(title: str, about: str, verdict: Sequence[str], *, passed: bool) -> Markup:
    """The head of a page with one drawing: what it shows, and whether that is as it should be."""
    lines = (element("p", words, class_=f"verdict {'passed' if passed else 'failed'}") for words in verdict)
    return element("header", element("div", element("h1", title), element("p", about), *lines))


def step_by_step(found: RecordedStep, kinds: dict[str, dict[str, str]]) -> Markup:
    """A stage's step, shown event by event."""
    done = in_order(activity(event.what) for event in found.events)
    activities = [colour_key(WORDS.get(each, each), ACTIVITIES[each]) for each in done]
    memory = [colour_key(each["words"], each["colour"]) for each in kinds.values()]
    letters = ", ".join(f"{event.letter} {event.words.removesuffix(event.unit).strip()}" for event in {
        each.letter: each for each in found.events if each.letter}.values())
    heads = ["", "sends, kB", *(f"{each['words']}, kB" for each in kinds.values()), "in all, kB"]
    return section(
        "step", "Event by event",
        element("p", f"A row of letters for each rank: {letters}. A colour is an activity, and every other layer is "
                     "paler. Below: the memory of the rank at the end of the event. All ranks run the same events; "
                     f"durations are not drawn. {keys_to('first and the last event')}", class_="legend"),
        element("ul", element("li", "activity"), *activities, class_="keys"),
        element("ul", element("li", "memory"), *memory, class_="keys"),
        *player("step", "event", "activity and memory of every rank in each event", spoken=True),
        element("div", element("table", element("thead", element("tr", *(element("th", head) for head in heads))),
                               element("tbody", "", id="step-rows"), class_="rows"), class_="scrolling"))


def schedules(stepped: Sequence[dict[str, Any]], ranks: int) -> Markup:
    """Collectives, shown round by round, for a run on `ranks` ranks."""
    options = [element("option", f"{each['name']} on {plural(each['ranks'], 'rank')}", value=number)
               for number, each in enumerate(stepped)]
    shown = stepped[0]["ranks"]
    fewer = [element("p", f"Drawn on {shown} ranks, of the run's {ranks}.", class_="legend")] if shown != ranks else []
    title = "Round by round" if len(stepped) == 1 else "The collectives, round by round"
    return section(
        "schedule", title,
        element("p", "Columns are ranks, rows are chunks. A cell says whose contributions a rank holds there, in "
                     "their order of addition: 2+3+0 is rank 2's, then 3's, then 0's; 1…7+0…2 is rank 1's to 7's, one "
                     "by one, then 0's to 2's. ✓ is what the collective promises. If a sum does not fit, the filled "
                     "part shows how many ranks it contains; point at it to read it, or press D for words. A thick "
                     f"border marks a change in this round. {keys_to('start and the end')}", class_="legend"),
        *fewer,
        element("div",
                *player("schedule", "round", "contents of every rank after this round",
                        element("label", "collective ", element("select", *options, id="schedule-name"))),
                element("p", "", id="schedule-detail", class_="legend", aria_live="polite"),
                element("p", "", id="schedule-words", aria_live="polite"), id="player"))


def player(name: str, each: str, label: str, *before: Markup, spoken: bool = False) -> Iterator[Markup]:
    """The buttons that play a drawing, after others, and the place of the drawing."""
    yield element("p", *before, element("button", "play", type="button", id=f"{name}-play"),
        element("label", f"{each} ", element(
            "input", type="range", min=0, max=0, value=0, step=1, id=f"{name}-{each}")),
        element("output", "", id=f"{name}-heading", aria_live="polite" if spoken else False), class_="buttons")
    yield element("div", "", id=f"{name}-drawing", class_="scrolling", tabindex=0, role="application",
                  aria_label=label)


def keys_to(ends: str) -> str:
    """The keys of such a drawing."""
    return (f"← and → step, as do Page Up and Page Down; Home and End go to the {ends}; space plays; P doubles the "
            "size of all text for a projector.")


def calls(row: RowDocument) -> Markup:
    """A table of the calls of rank 0, in order."""
    lines = [
        [call["collective"], call["by"], call.get("tensors", ""), f"{call['sent_bytes']:,}", f"{call['messages']:,}",
         f"{call.get('waited_ns', 0) / 1e6:.2f}"]
        for call in row.found["calls"][0]
    ]
    heads = ("collective", "called by", "fills", "bytes sent", "messages", "waits, ms")
    return section(
        "calls", f"{row.name}: calls of collectives",
        element("p", "Rank 0 in the last step. A line of PyTorch is followed by the line of the script that called it, "
                     "and by the unit of FSDP2. On a CPU, FSDP2 waits for each collective where it calls it, so none "
                     "is overlapped.", class_="legend"),
        scrolling(table(lines, heads)))


def divergence(rows: Sequence[RowDocument]) -> Markup:
    """The section on the first differing bits, with both orders of addition; empty if there are none."""
    found = [row for row in rows if row.found["first_divergence"]]
    return section("divergence", "Where bits first differ", *map(one_divergence, found)) if found else joined()


def row_differences(runs: Sequence[RunDocument]) -> Markup:
    """The section on rows that differ although each equals one process; empty if there are none."""
    found = [each for run in runs for each in run.document.get("differences", [])]
    return section("apart", "Both correct, but different", *map(row_difference, found)) if found else joined()


def row_difference(found: dict[str, Any]) -> Markup:
    first, other = found["first"], found["other"]
    facts = {
        "step": f"{found['step']}", "element": element_name(found, found["what"]),
        f"{first} has": f"{found['values'][0]!r}, in chunk {found['chunks'][0]}",
        f"{other} has": f"{found['values'][1]!r}, in chunk {found['chunks'][1]}",
        "distance": f"{found['ulps']:,} ULP",
        **{f"{count:,} elements differ by": f"{bin_} ULP" for bin_, count in found["histogram"].items() if count},
    }
    cause = f"{found['cause'][:1].upper()}{found['cause'][1:]}."
    mine, theirs = found["orders"]
    orders = {first: mine, other: theirs} if mine != theirs else {f"{first} and {other}": mine}
    return element(
        "article", element("h3", f"{first} and {other}"), element("p", "Each has the bits of one process. " + cause),
        table(facts.items(), class_="facts"),
        *(element("pre", f"{name}: {order}", class_="order") for name, order in orders.items()))


def one_divergence(row: RowDocument) -> Markup:
    first = row.found["first_divergence"]
    what = element_name(first, first["state"])
    facts = {
        "step": f"{first['step']}", "element": what,
        "chunk": f"{first['chunk']}, {plural(first['differing_elements'], 'element')} of it differing",
        "noticed by": f"rank {first['rank']}",
        f"{row.name} holds": f"{first['ours']!r} ({first['ours_bits']})",
        f"{row.found['compared_with']} holds": f"{first['reference']!r} ({first['reference_bits']})",
        "distance": "not comparable in ULPs" if first["ulps"] is None else f"{first['ulps']:,} ULP apart",
    }
    return element(
        "article", element("h3", row.name),
        element("p", element("strong", what), f" is the first element that differs, after step "
                f"{first['step']}.", class_="verdict failed"),
        table(facts.items(), class_="facts"), *orders(first["order_of_addition"]))


def orders(order: dict[str, str] | None) -> Iterator[Markup]:
    """Both orders in which the chunk was added, marked where they differ."""
    if order is None:
        return
    ours, reference = order["ours"], order["reference"]
    if ours == reference:
        yield element("p", "Both sides add this chunk in the same order:", class_="legend")
        yield element("pre", ours, class_="order")
        return
    for side, one, other in (("ours adds", ours, reference), ("reference adds", reference, ours)):
        yield element("p", side, class_="legend")
        yield element("pre", marked(one, other), class_="order")


def marked(ours: str, others: str) -> Markup:
    """A sum with a mark at each part that differs from the other sum's.

    >>> marked("(g0 + g1)", "(g1 + g0)")
    '(<mark>g0</mark> + <mark>g1</mark>)'
    """
    one, other = (re.findall(r"g\[?\d+\]?|.", words) for words in (ours, others))
    return joined(*(
        part if part == there else element("mark", part) for part, there in zip_longest(one, other[:len(one)])
    ))
