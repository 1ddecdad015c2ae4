"""The command `zerosim memory`: the memory of model states by formula, as a table of bytes with bars of shares of DDP,
and as JSON."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import asdict
from fractions import Fraction
from typing import Any

from rich.console import Console

from zerosim.commands.arguments import whole_number, whole_numbers
from zerosim.commands.output import check_writable, standard_output, write_json
from zerosim.core.allocation import Tier
from zerosim.core.errors import ScenarioError
from zerosim.core.words import KEPT, ON_HOST, UNITS, ByteUnit
from zerosim.models.transformer import problem, shape_of
from zerosim.models.units import Task
from zerosim.plan.foreign import hugging_face
from zerosim.scenario.load import parse_override
from zerosim.scenario.reading import Origin, read
from zerosim.scenario.sections import ModelKeys
from zerosim.show.grid import SHADES, Column, bar, show_grid, show_words
from zerosim.stages import STAGES
from zerosim.stages.optimizers import OPTIMIZERS
from zerosim.verdict.blocks import transformer
from zerosim.verdict.memory import PRECISIONS, TABLES, Estimate, EstimatedRow, estimate

SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
MOST_PARAMETERS, MOST_RANKS = 10**15, 10**9
FIGURE_1 = 7_500_000_000, [64]
"""The numbers of parameters and ranks in Figure 1 of the ZeRO paper."""
PAGE_COLUMNS, BAR_COLUMNS = 80, 56
TIER_WORDS: dict[Tier, str] = {"device": "on device", "host": ON_HOST}
ACTIVATIONS = {"block_bytes": "a block keeps", "korthikanti_bytes": "Korthikanti et al.",
               "peak_bytes": "peak of a pass", "recomputed_peak_bytes": "peak, recomputed"}
ABOUT_ACTIVATIONS = (
    "A block of GPT-2's shape keeps s b h (32 + 2 a s / h) bytes; Korthikanti et al. (2022) count s b h (34 + 5 a s / "
    "h), with masks of dropout, which are drawn again here, and dropout within attention, which is not here. "
    "Recomputed: every unit keeps its input alone. Kernels are unfused: a scores matrix is kept whole, and the peak "
    "has what an operation holds within itself; zerosim plan with kernels = \"fused\" has neither.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim memory`."""
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument(
        "--parameters", type=parameter_count, metavar="COUNT",
        help="number of parameters: 7500000000, 7.5e9, 7.5B or 350M")
    asked.add_argument(
        "--model", type=transformer_shape, metavar="SHAPE",
        help="a Hugging Face config.json, or the [model] keys of a transformer: layers=32,width=4096,heads=32,"
             "vocabulary=32000,sequence=4096,...; this adds activations")
    asked.add_argument(
        "--table", choices=["figure1", *TABLES], help="compute a table of the ZeRO paper from the formulas")
    parser.add_argument(
        "--ranks", type=whole_numbers(1, MOST_RANKS), metavar="N,N",
        help="data-parallel ranks; several numbers: a column for each")
    parser.add_argument(
        "--micro-batch", type=whole_number(1, 10**6), default=1, metavar="B",
        help="sequences in a micro-batch of --model; default %(default)s")
    for flag, choices, words in (
        ("--precision", [*PRECISIONS], "mixed: 2 bytes a weight, 2 a gradient, fp32 master weights"),
        ("--optimizer", [*OPTIMIZERS], ""),
        ("--offload-optimizer", ["none", "host"], "keep optimizer state, and reduced gradients, on the host"),
        ("--offload-parameters", ["none", "host"], "keep Stage III's weights on the host"),
    ):
        usual = {"--optimizer": "adam"}.get(flag, choices[0])
        parser.add_argument(
            flag, choices=choices, default=usual, help="; ".join(filter(None, [words, "default %(default)s"])))
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON; - is standard output")
    parser.set_defaults(memory_parser=parser)


def main(args: argparse.Namespace) -> int:
    """Show the requested table, and write its JSON; 0. Wrong `args` exit with code 2."""
    if (args.ranks is None) != (args.table is not None):
        args.memory_parser.error("give --ranks, the number of data-parallel ranks, with --parameters and --model; "
                                 "--table has its own")
    check_writable(args)
    console = standard_output(args)
    if args.table in TABLES:
        table = TABLES[args.table]()
        corner, *headings = table.columns
        names, *columns = zip(*table.rows, strict=True)
        show(console, table.title, "", [table.note], names, [*map(Column, headings, columns)], corner)
        figures: dict[str, Any] = {"table": args.table, **asdict(table)}
    else:
        parameters, counts = FIGURE_1 if args.table else (args.parameters, args.ranks)
        if args.model is not None:
            parameters, activations = transformer(args.model, args.micro_batch)
        estimates = [
            estimate(parameters, ranks, args.precision, args.optimizer, offload_optimizer=args.offload_optimizer,
                     offload_parameters=args.offload_parameters) for ranks in counts]
        show_estimates(console, estimates)
        documents = [memory_document(each) for each in estimates]
        figures = documents[0] if len(documents) == 1 else {"each": documents}
        if args.model is not None:
            figures["activations"] = asdict(activations)
            unit = unit_of(activations.peak_bytes)
            show(console, "Activations of a micro-batch on a rank, in 16 bits", "", [ABOUT_ACTIVATIONS],
                 [*ACTIVATIONS.values()],
                 [Column(unit.name, in_hundredths([getattr(activations, name) for name in ACTIVATIONS], unit.size))])
    if args.json is not None:
        write_json(args.json, {"schema": "zerosim.memory/1", **figures})
    return 0


def memory_document(found: Estimate) -> dict[str, Any]:
    """An estimate as JSON: whole numbers as integers, others as floats."""

    def number(exact: Fraction) -> int | float:
        return exact.numerator if exact.denominator == 1 else float(exact)

    def stage(row: EstimatedRow) -> dict[str, Any]:
        tiers = {"tiers_bytes": {tier: number(row.kept(tier)) for tier in TIER_WORDS}} if found.offloaded else {}
        states = {f"{kind}_bytes": number(getattr(row.states, kind)) for kind in (*KEPT, "total")}
        return {"stage": row.stage, **states, **tiers, "formula": row.formula}

    return {"parameters": found.parameters, "ranks": found.ranks, "basis": found.basis,
            "stages": [stage(row) for row in found.rows], "notes": found.notes}


def transformer_shape(text: str) -> ModelKeys:
    """The transformer of `--model`, with the keys and the bounds of a scenario's [model].

    >>> transformer_shape("layers=12,width=768,heads=12,vocabulary=50257,sequence=1024").layers
    12
    """
    try:
        keys = hugging_face(text).keys if text.endswith(".json") else {
            str(path[-1]): value for path, value in map(parse_override, text.split(","))}
        values = {key.removeprefix("model."): value for key, value in keys.items()}
        model = read(ModelKeys, {**values, "kind": "transformer"}, ("model",), Origin("--model"))
    except ScenarioError as error:
        _, _, message = str(error).partition(f"{error.line}:{error.column}: ")
        raise argparse.ArgumentTypeError(message) from None
    if min(model.vocabulary, model.sequence) == 0:
        raise argparse.ArgumentTypeError("give vocabulary and sequence, since there are no data to take them from")
    if wrong := problem(shape_of(model, Task(model.sequence, model.vocabulary, "cross_entropy", tokens=True))):
        raise argparse.ArgumentTypeError(f"{wrong[0]}: {wrong[1]}")
    return model


def parameter_count(text: str) -> int:
    """A number of parameters on a command line.

    >>> parameter_count("7.5e9") == parameter_count("7.5B") == 7_500_000_000
    True
    """
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?(?:e\+?\d{1,2})?)([kmbt]?)", text, re.A | re.I)
    count = Fraction(match[1]) * SUFFIXES[match[2].upper()] if match else Fraction(0)
    if count.denominator != 1 or not 1 <= count <= MOST_PARAMETERS:
        raise argparse.ArgumentTypeError(
            f"found {text!r}; give a whole number from 1 to {MOST_PARAMETERS:.0e}, such as 7500000000, 7.5e9, 7.5B or "
            "350M")
    return int(count)


def show_estimates(console: Console, estimates: Sequence[Estimate]) -> None:
    """Show each stage in bytes, then as a bar in shares of DDP; the sums alone for several numbers of ranks."""
    found, *others = estimates
    rows, unit = found.rows, unit_of(max(row.states.total for row in found.rows))
    titles, notes = [STAGES[row.stage].title for row in rows], [unit.legend, *found.notes]
    title = f"Model states of {found.parameters:,} parameters on"
    if others:
        show(console, f"{title} each rank", found.basis, notes, titles, [
            Column(f"{each.ranks:,} ranks\n{unit.name}", in_hundredths(
                [row.states.total for row in each.rows], unit.size)) for each in estimates])
        return
    figures = {words: [getattr(row.states, kind) for row in rows] for kind, words in KEPT.items()}
    figures |= {words: [row.kept(tier) for row in rows] for tier, words in TIER_WORDS.items()
                if found.offloaded and any(row.kept(tier) for row in rows)}
    sums = [row.states.total for row in rows]
    legend = "   ".join(f"{SHADES[kind][0]} {words}" for kind, words in KEPT.items())
    room = max(len(legend), min(BAR_COLUMNS, console.width - 24))
    show(console, f"{title} {'1 rank' if found.ranks == 1 else f'each of {found.ranks:,} ranks'}", found.basis, notes,
         titles, [
        *(Column(f"{words}\n{unit.name}", in_hundredths(counts, unit.size)) for words, counts in figures.items()),
        Column(f"sum\n{unit.name}", in_hundredths(sums, unit.size)),
        Column(f"sum\n{unit.binary_name}", in_hundredths(sums, unit.binary_size)),
        Column("sum\nin bytes", [row.formula for row in rows])], below=[
        Column(legend, [bar({kind: getattr(row.states, kind) for kind in KEPT}, sums[0], room) for row in rows],
               to_the_left=True),
        Column("of DDP", [f"{float(100 * count / sums[0]):.1f}%" for count in sums])])


def show(
    console: Console, title: str, basis: str, notes: Sequence[str], names: Sequence[str], columns: Sequence[Column],
    corner: str = "", below: Sequence[Column] = (),
) -> None:
    """Print a title, what its figures count, one table or two with these names, and notes, with space between them."""
    for words, style in ((title, "bold"), (basis, "")):
        if words:
            console.print()
            show_words(console, words, style=style, most=PAGE_COLUMNS)
    for some in filter(None, (columns, below)):
        console.print()
        show_grid(console, names, some, corner)
    console.print()
    for note in notes:
        show_words(console, note, most=PAGE_COLUMNS)
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
