"""The command `zerosim memory`: the memory of model states by formula, as a table of bytes with bars of shares of DDP,
and as JSON."""

import argparse
import re
from collections.abc import Iterable, Sequence
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
from zerosim.show.grid import GAP, SHADES, Column, bar, show_grid, show_words
from zerosim.stages import STAGES
from zerosim.stages.optimizers import OPTIMIZERS
from zerosim.verdict.blocks import BlockActivations, transformer
from zerosim.verdict.memory import (
    PRECISIONS,
    TABLES,
    Estimate,
    EstimatedRow,
    ModelStates,
    PublishedTable,
    by_deepspeed,
    by_paper,
    optimizer_bytes,
    per_parameter,
)

SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
MOST_PARAMETERS = 10**15
MOST_RANKS = 10**9
FIGURE_1 = 7_500_000_000, 64
"""The numbers of parameters and ranks in Figure 1."""

MIXED_ADAM = ("precision", "optimizer", "optimizer_bytes", "fp32_accumulation")
"""Flags that contradict mixed precision with Adam."""

OFFLOADING = ("offload_optimizer", "offload_parameters")


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
        "--table", choices=["figure1", *TABLES],
        help="compute a table of the ZeRO paper from the formulas")
    parser.add_argument(
        "--ranks", type=whole_numbers(1, MOST_RANKS), metavar="N,N",
        help="data-parallel ranks; several numbers: a column for each")
    parser.add_argument(
        "--micro-batch", type=whole_number(1, 10**6), default=1, metavar="B",
        help="sequences in a micro-batch of --model; default %(default)s")
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="mixed",
        help="mixed: 2 bytes a weight, 2 a gradient, fp32 master weights; default %(default)s")
    parser.add_argument(
        "--optimizer", choices=OPTIMIZERS, default="adam", help="default %(default)s")
    parser.add_argument(
        "--optimizer-bytes", type=whole_number(0, 100), metavar="K",
        help="optimizer bytes per parameter, master weights included, instead of --optimizer's")
    parser.add_argument(
        "--fp32-accumulation", action="store_true",
        help="accumulate gradients over micro-batches in fp32: 4 more bytes per parameter")
    parser.add_argument(
        "--offload-optimizer", choices=["none", "host"], default="none",
        help="keep optimizer state, and reduced gradients, on the host; default %(default)s")
    parser.add_argument(
        "--offload-parameters", choices=["none", "host"], default="none",
        help="keep Stage III's weights on the host; default %(default)s")
    parser.add_argument(
        "--estimator", choices=["paper", "deepspeed"], default="paper",
        help="how to count: by the ZeRO paper, or by DeepSpeed's estimator; default %(default)s")
    parser.add_argument(
        "--largest-layer", type=parameter_count, metavar="COUNT",
        help="parameters of the largest layer, for DeepSpeed's estimate of Stage III")
    parser.add_argument(
        "--json", metavar="FILE", help="write the figures as JSON; - is standard output")
    parser.set_defaults(memory_parser=parser)


def main(args: argparse.Namespace) -> int:
    """Show the requested table, and write its JSON; 0. Wrong `args` exit with code 2."""
    refuse_contradictions(args)
    check_writable(args)
    console = standard_output(args)
    activations = None
    if args.model is not None:
        args.parameters, activations = transformer(args.model, args.micro_batch)
    if args.table in TABLES:
        table = TABLES[args.table]()
        show_published(console, table)
        figures = {"table": args.table, **asdict(table)}
    else:
        counts = args.ranks or [FIGURE_1[1]]
        estimates = [estimated(args, ranks) for ranks in counts]
        (show_estimate if len(estimates) == 1 else show_scaling)(console, *estimates)
        documents = [memory_document(each) for each in estimates]
        figures = documents[0] if len(documents) == 1 else {"each": documents}
        if activations is not None:
            show_activations(console, activations)
            figures["activations"] = asdict(activations)
    if args.json is not None:
        write_json(args.json, {"schema": "zerosim.memory/1", **figures})
    return 0


def refuse_contradictions(args: argparse.Namespace) -> None:
    """End with exit code 2 if a flag would have no effect, or one is missing."""
    if args.table:
        refuse(args, ("ranks", *MIXED_ADAM, *OFFLOADING, "estimator", "largest_layer"),
               f"--table {args.table} has fixed parameters; use --parameters without --table")
        return
    if args.ranks is None:
        given = "--parameters" if args.model is None else "--model"
        args.memory_parser.error(f"{given} needs --ranks, the number of data-parallel ranks")
    if args.model is None:
        refuse(args, ("micro_batch",), "it needs --model")
    if args.estimator == "deepspeed":
        refuse(args, MIXED_ADAM, "--estimator deepspeed is for mixed precision and adam alone")
        refuse(args, OFFLOADING, "--estimator deepspeed is without offloading")
    else:
        refuse(args, ("largest_layer",), "only --estimator deepspeed uses it")
    if args.precision == "fp32":
        refuse(args, ("fp32_accumulation",), "with --precision fp32 gradients are in fp32 already")
    if args.largest_layer is not None and args.parameters is not None and args.largest_layer > args.parameters:
        args.memory_parser.error(
            f"--largest-layer is {args.largest_layer} of {args.parameters} parameters; give at most --parameters")


def refuse(args: argparse.Namespace, names: Iterable[str], reason: str) -> None:
    """End with exit code 2 if one of the flags `names` is not at its default."""
    for name in names:
        if getattr(args, name) != args.memory_parser.get_default(name):
            args.memory_parser.error(f"remove --{name.replace('_', '-')}: {reason}")


def estimated(args: argparse.Namespace, ranks: int) -> Estimate:
    """The figures of every stage for these flags on `ranks` ranks."""
    if args.table == "figure1":
        each = per_parameter("mixed", 12)
        return by_paper(*FIGURE_1, each, "ZeRO paper, Figure 1; " + basis("mixed", "adam", each))
    if args.estimator == "deepspeed":
        return by_deepspeed(args.parameters, ranks, args.largest_layer)
    if args.optimizer_bytes is None:
        k, optimizer = optimizer_bytes(args.precision, args.optimizer), args.optimizer
    else:
        k, optimizer = args.optimizer_bytes, f"K = {args.optimizer_bytes}"
    each = per_parameter(args.precision, k, fp32_accumulation=args.fp32_accumulation)
    offloading = {name: getattr(args, name) for name in OFFLOADING}
    far = [f"{name.removeprefix('offload_')} offloaded to host"
           for name, tier in offloading.items() if tier == "host"]
    counted = "; ".join([basis(args.precision, optimizer, each), *far])
    return by_paper(args.parameters, ranks, each, counted, **offloading)


def basis(precision: str, optimizer: str, each: ModelStates) -> str:
    """The basis of a figure, in words."""
    terms = f"{each.parameters} + {each.gradients} + {each.optimizer}"
    return f"{precision} precision, {optimizer}: {terms} bytes per parameter"


def memory_document(estimate: Estimate) -> dict[str, Any]:
    """`estimate` as JSON."""
    return {
        "parameters": estimate.parameters,
        "ranks": estimate.ranks,
        "basis": estimate.basis,
        "stages": [
            {
                "stage": row.stage,
                "parameters_bytes": number(row.states.parameters),
                "gradients_bytes": number(row.states.gradients),
                "optimizer_bytes": number(row.states.optimizer),
                "total_bytes": number(row.states.total),
                **({"tiers_bytes": tiers(row)} if estimate.offloaded else {}),
                "formula": row.formula,
            }
            for row in estimate.rows
        ],
        "notes": estimate.notes,
    }


def tiers(row: EstimatedRow) -> dict[str, int | float]:
    """The bytes that a rank keeps in each tier of memory."""
    return {tier: number(row.kept(tier)) for tier in TIER_WORDS}


def number(exact: Fraction) -> int | float:
    """An int if `exact` is whole, else a float."""
    return exact.numerator if exact.denominator == 1 else float(exact)


def transformer_shape(text: str) -> ModelKeys:
    """The transformer of `--model`, with the keys and the bounds of a scenario's [model].

    >>> transformer_shape("layers=12,width=768,heads=12,vocabulary=50257,sequence=1024").layers
    12
    """
    if not text.endswith(".json") and not all("=" in pair for pair in text.split(",")):
        raise argparse.ArgumentTypeError(f"found {text!r}; give key=value pairs, with commas between them")
    try:
        pairs = hugging_face(text).keys.items() if text.endswith(".json") else [
            (path[-1], value) for path, value in map(parse_override, text.split(","))]
        values = {str(key).removeprefix("model."): value for key, value in pairs}
        if len(values) < len(pairs):
            raise argparse.ArgumentTypeError(f"found {text!r}; give each key once")
        model = read(ModelKeys, {**values, "kind": "transformer"}, ("model",), Origin("--model"))
    except ScenarioError as error:
        _, _, message = str(error).partition(f"{error.line}:{error.column}: ")
        raise argparse.ArgumentTypeError(message) from None
    wrong = problem(shape_of(model, Task(model.sequence, model.vocabulary, "cross_entropy", tokens=True)))
    if min(model.vocabulary, model.sequence) == 0:
        raise argparse.ArgumentTypeError("give vocabulary and sequence, since there are no data to take them from")
    if wrong is not None:
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


PAGE_COLUMNS = 80
BAR_COLUMNS = 56
TIER_WORDS: dict[Tier, str] = {"device": "on device", "host": ON_HOST}


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
        *(column(KEPT[kind], [getattr(row.states, kind) for row in rows]) for kind in KEPT),
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
    legend = "   ".join(f"{SHADES[kind][0]} {KEPT[kind]}" for kind in KEPT)
    titles = max(len(STAGES[row.stage].title) for row in estimate.rows)
    room = max(len(legend), min(BAR_COLUMNS, width - titles - 2 * GAP - share.width))
    bars = [bar({kind: getattr(row.states, kind) for kind in KEPT}, whole, room) for row in estimate.rows]
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
