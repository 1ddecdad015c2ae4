"""The memory of model states on the terminal: a table of bytes, and bars of shares of DDP."""

from collections.abc import Sequence
from fractions import Fraction

from rich.console import Console

from zerosim.allocation import Tier
from zerosim.figures.blocks import BlockActivations
from zerosim.figures.estimate import Estimate, EstimatedRow
from zerosim.figures.published import PublishedTable
from zerosim.show.grid import GAP, Column, show_grid, show_words
from zerosim.show.legend import STATE_BARS, stacked
from zerosim.stages import STAGES
from zerosim.words import FAR, KEPT, UNITS, ByteUnit

PAGE_COLUMNS = 80
BAR_COLUMNS = 56
TIER_WORDS: dict[Tier, str] = {"device": "on device", "host": FAR["host"], "disk": FAR["disk"]}


def show_estimate(console: Console, estimate: Estimate) -> None:
    """Show each stage in bytes, then as a bar in shares of DDP."""
    ranks = "1 rank" if estimate.ranks == 1 else f"each of {estimate.ranks:,} ranks"
    unit = next(unit for unit in UNITS if largest(estimate.rows) >= unit.least)
    titles = [STAGES[row.stage].title for row in estimate.rows]
    show_title(console, f"Model states of {estimate.parameters:,} parameters on {ranks}", estimate.basis)
    show_grid(console, titles, bytes_columns(estimate, unit))
    console.print()
    show_grid(console, titles, bar_columns(estimate, min(console.width, PAGE_COLUMNS)))
    show_notes(console, [unit.legend, *estimate.notes])


def show_scaling(console: Console, *estimates: Estimate) -> None:
    """Show the sum of each stage in bytes, with a column for each number of ranks."""
    first = estimates[0]
    unit = next(unit for unit in UNITS if largest(first.rows) >= unit.least)
    show_title(console, f"Model states of {first.parameters:,} parameters on each rank", first.basis)
    show_grid(console, [STAGES[row.stage].title for row in first.rows], [
        Column(f"{each.ranks:,} ranks\n{unit.name}", [two_decimals(row.states.total / unit.size) for row in each.rows])
        for each in estimates])
    show_notes(console, [unit.legend, *first.notes])


def show_activations(console: Console, found: BlockActivations) -> None:
    """Show the activations of a transformer's micro-batch: kept ones, and the peak."""
    unit = next(unit for unit in UNITS if found.peak_bytes >= unit.least)
    show_title(console, "Activations of a micro-batch on a rank, in 16 bits")
    figures = {
        "a block keeps": found.block_bytes,
        "Korthikanti et al.": found.korthikanti_bytes,
        "peak of a pass": found.peak_bytes,
        "peak, recomputed": found.recomputed_peak_bytes,
    }
    show_grid(console, list(figures), [Column(unit.name, [two_decimals(Fraction(each, unit.size))
                                                          for each in figures.values()])])
    show_notes(console, [
        "A block of GPT-2's shape keeps s b h (32 + 2 a s / h) bytes; Korthikanti et al. (2022) count s b h (34 + 5 a "
        "s / h), with masks of dropout, which are drawn again here, and dropout within attention, which is not here. "
        "Recomputed: every unit keeps its input alone. Kernels are unfused: a scores matrix is kept whole, and the "
        "peak has what an operation holds within itself; zerosim plan with kernels = \"fused\" has neither.",
    ])


def show_published(console: Console, table: PublishedTable) -> None:
    """Show a published table, with a note on its rounding."""
    first, *others = table.columns
    show_title(console, table.title)
    columns = [Column(heading, [row[number] for row in table.rows]) for number, heading in enumerate(others, 1)]
    show_grid(console, [row[0] for row in table.rows], columns, first)
    show_notes(console, [table.note])


def show_title(console: Console, title: str, basis: str = "") -> None:
    """Print a title in bold, and what its figures count, with space around both."""
    console.print()
    for words, style in ((title, "bold"), (basis, "")):
        if words:
            show_words(console, words, style=style, most=PAGE_COLUMNS)
            console.print()


def show_notes(console: Console, notes: Sequence[str]) -> None:
    """Print each note as a paragraph, in lines of limited width."""
    console.print()
    for note in notes:
        show_words(console, note, most=PAGE_COLUMNS)
    console.print()


def bytes_columns(estimate: Estimate, unit: ByteUnit) -> list[Column]:
    """The columns of each kind, of each tier if states are offloaded, and of the sum in `unit`; the sum in its binary
    counterpart, and the formula of the sum.
    """

    def column(name: str, counts: Sequence[Fraction]) -> Column:
        return Column(f"{name}\n{unit.name}", [two_decimals(count / unit.size) for count in counts])

    rows = estimate.rows
    sums = [row.states.total for row in rows]
    far = [column(words, [row.kept(tier) for row in rows]) for tier, words in TIER_WORDS.items()
           if estimate.offloaded and any(row.kept(tier) for row in rows)]
    return [
        *(column(KEPT[kind.name], [getattr(row.states, kind.name) for row in rows]) for kind in STATE_BARS),
        *far,
        column("sum", sums),
        Column(f"sum\n{unit.binary_name}", [two_decimals(count / unit.binary_size) for count in sums]),
        Column("sum\nin bytes", [row.formula for row in rows]),
    ]


def bar_columns(estimate: Estimate, width: int) -> list[Column]:
    """The columns of bars: each stage's kinds side by side and its share of DDP, under a legend, as wide as possible.
    """
    whole = max(estimate.ddp_bytes, largest(estimate.rows))
    shares = [percent(row.states.total / estimate.ddp_bytes) for row in estimate.rows]
    share = Column("of DDP", shares)
    legend = "   ".join(f"{kind.shade} {KEPT[kind.name]}" for kind in STATE_BARS)
    titles = max(len(STAGES[row.stage].title) for row in estimate.rows)
    room = max(len(legend), min(BAR_COLUMNS, width - titles - 2 * GAP - share.width))
    bars = [stacked([getattr(row.states, kind.name) for kind in STATE_BARS], whole, room) for row in estimate.rows]
    for drawn in bars:
        drawn.pad_right(room - len(drawn))
    return [Column(f"{legend:<{room}}", bars), share]


def largest(rows: Sequence[EstimatedRow]) -> Fraction:
    return max(row.states.total for row in rows)


def two_decimals(value: Fraction) -> str:
    """`value`, rounded; a positive value is never shown as zero.

    >>> two_decimals(Fraction("31.40625")), two_decimals(Fraction(1, 1000))
    ('31.41', '<0.01')
    """
    return "<0.01" if 0 < value < Fraction(1, 200) else f"{float(value):.2f}"


def percent(share: Fraction) -> str:
    """A share of 1 as a percentage, to a tenth.

    >>> percent(Fraction(1)), percent(Fraction(1, 64)), percent(Fraction(1, 10_000))
    ('100.0%', '1.6%', '<0.1%')
    """
    return "<0.1%" if share < Fraction(1, 2000) else f"{float(100 * share):.1f}%"
