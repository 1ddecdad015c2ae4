"""The memory of model states by formula: a table of bytes, with bars of shares of DDP, and JSON."""

from collections.abc import Sequence
from fractions import Fraction

from rich.console import Console

from zerosim.core.allocation import Tier
from zerosim.core.words import KEPT, ON_HOST, UNITS, ByteUnit, plural
from zerosim.show.grid import SHADES, Column, bar, show_grid, show_words
from zerosim.stages import STAGES
from zerosim.verdict.blocks import BlockActivations
from zerosim.verdict.model_states import Estimate, PublishedTable

BAR_COLUMNS = 56
TIER_WORDS: dict[Tier, str] = {"device": "on device", "host": ON_HOST}
ACTIVATIONS = {"block_bytes": "a block keeps", "korthikanti_bytes": "Korthikanti et al.",
               "peak_bytes": "peak of a pass", "recomputed_peak_bytes": "peak, recomputed"}
ABOUT_ACTIVATIONS = (
    "A block of GPT-2's shape keeps s b h (32 + 2 a s / h) bytes; Korthikanti et al. (2022) count s b h (34 + 5 a s / "
    "h), with masks of dropout, which are drawn again here, and dropout within attention, which is not here. "
    "Recomputed: every unit keeps its input alone. Kernels are unfused: a scores matrix is kept whole, and the peak "
    "has what an operation holds within itself; zerosim plan with kernels = \"fused\" has neither.")


def show_table(console: Console, table: PublishedTable) -> None:
    """Show a table of the ZeRO paper."""
    corner, *headings = table.columns
    names, *columns = zip(*table.rows, strict=True)
    show(console, table.title, [table.note], names, [*map(Column, headings, columns)], corner)


def show_activations(console: Console, activations: BlockActivations) -> None:
    """Show what a block keeps, and the peaks of a pass."""
    unit = unit_of(activations.peak_bytes)
    show(console, "Activations of a micro-batch on a rank, in 16 bits", [ABOUT_ACTIVATIONS], [*ACTIVATIONS.values()],
         [Column(unit.name, in_hundredths([getattr(activations, name) for name in ACTIVATIONS], unit.size))])


def show_estimates(console: Console, estimates: Sequence[Estimate]) -> None:
    """Show each stage in bytes, then as a bar in shares of DDP; the sums alone for several numbers of ranks."""
    first, *others = estimates
    rows, unit = first.rows, unit_of(max(row.states.total for row in first.rows))
    titles, notes = [STAGES[row.stage].title for row in rows], [first.basis, unit.legend, *first.notes]
    title = f"Model states of {first.parameters:,} parameters on "
    if others:
        show(console, f"{title}each rank", notes, titles, [
            Column(f"{plural(estimate.ranks, 'rank')}\n{unit.name}", in_hundredths(
                [row.states.total for row in estimate.rows], unit.size)) for estimate in estimates])
        return
    figures = {words: [getattr(row.states, kind) for row in rows] for kind, words in KEPT.items()}
    figures |= {words: [row.kept(tier) for row in rows] for tier, words in TIER_WORDS.items()
                if first.offloaded and any(row.kept(tier) for row in rows)}
    sums = [row.states.total for row in rows]
    legend = "   ".join(f"{SHADES[kind][0]} {words}" for kind, words in KEPT.items())
    room = min(BAR_COLUMNS, console.width - 24)
    show(console, f"{title}{'each of ' * (first.ranks > 1)}{plural(first.ranks, 'rank')}", notes, titles, [
        *(Column(f"{words}\n{unit.name}", in_hundredths(counts, unit.size)) for words, counts in figures.items()),
        Column(f"sum\n{unit.name}", in_hundredths(sums, unit.size)),
        Column(f"sum\n{unit.binary_name}", in_hundredths(sums, unit.binary_size)),
        Column("sum\nin bytes", [row.formula for row in rows])], below=[
        Column(legend if len(legend) <= room else legend.replace("   ", "\n"), [
            bar({kind: getattr(row.states, kind) for kind in KEPT}, sums[0], room) for row in rows], to_the_left=True),
        Column("of DDP", [f"{float(100 * count / sums[0]):.1f}%" for count in sums])])


def show(
    console: Console, title: str, notes: Sequence[str], names: Sequence[str], columns: Sequence[Column],
    corner: str = "", below: Sequence[Column] = (),
) -> None:
    """Print a title, one table or two with these names, and notes, with space between them."""
    console.print()
    show_words(console, title, style="bold")
    for some in filter(None, (columns, below)):
        console.print()
        show_grid(console, names, some, corner)
    console.print()
    for note in notes:
        show_words(console, note)
    console.print()


def unit_of(most: Fraction | int) -> ByteUnit:
    """The unit of figures up to `most`."""
    return next(unit for unit in UNITS if most >= unit.least)


def in_hundredths(counts: Sequence[Fraction | int], size: int) -> list[str]:
    """Counts in a unit, rounded; a positive one is never shown as zero.

    >>> in_hundredths([Fraction("31.40625"), Fraction(1, 1000)], 1)
    ['31.41', '<0.01']
    """
    return ["<0.01" if 0 < count * 200 < size else f"{float(Fraction(count) / size):.2f}" for count in counts]
