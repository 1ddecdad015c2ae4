"""`zerosim plan`: the cost of a scenario on a cluster, by the code of its stages on shapes."""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from zerosim.commands.arguments import NO_PYTHON, whole_numbers
from zerosim.commands.memory import parameter_count
from zerosim.commands.output import conclude, saying, standard_output
from zerosim.commands.report import name_and_file, save_pictures
from zerosim.core.errors import ScenarioError, UsageError
from zerosim.core.files import write_text
from zerosim.core.words import joined
from zerosim.plan import foreign
from zerosim.plan.foreign import ForeignKeys
from zerosim.plan.planned_row import Run
from zerosim.plan.reading import cluster_in, read_plan, read_search, scenario_of, with_usual_settings
from zerosim.plan.search import USUAL_MOST
from zerosim.scenario import Source
from zerosim.scenario.load import parse_override
from zerosim.scenario.schema import python_run
from zerosim.scenario.sections import MOST_RANKS
from zerosim.show.grid import show_words
from zerosim.show.pictures import converter, files
from zerosim.show.plan import csv_of, drawn_rows, shown_plan
from zerosim.show.table import show_heading
from zerosim.show.trace_events import trace_events


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim plan`."""
    parser.add_argument(
        "scenario", nargs="?", help="a scenario with a [cluster] table; with --model, by default 8 H100")
    parser.add_argument(
        "--ranks", "--devices", type=whole_numbers(1, MOST_RANKS), default=[], metavar="N,N",
        help="numbers of ranks to plan for, each with the scenario's micro-batches per rank; default: the scenario's "
             "ranks")
    parser.add_argument(
        "--set", metavar="A.B=VALUE", action="append", default=[], dest="overrides", type=key_and_value,
        help="replace a key of the scenario; may be given several times")
    parser.add_argument(
        "--sweep", metavar="A.B=V,V", nargs="+", action="extend", default=[], type=key_and_value,
        help="plan every combination of these values; may be given several times")
    parser.add_argument(
        "--cluster", metavar="FILE",
        help="take [cluster] from this file, such as zerosim bench collectives --toml writes")
    parser.add_argument(
        "--search", nargs="?", const=str(USUAL_MOST), metavar="N",
        help=f"find the N fastest layouts that fit, by default {USUAL_MOST}, or all: stage, groups, micro-batch and "
             "recomputation, and the keys of --sweep")
    parser.add_argument(
        "--tokens", type=parameter_count, metavar="COUNT",
        help="add the days, device-hours and energy of training on so many tokens, such as 300B or 1T")
    parser.add_argument("--price", type=float, metavar="P", help="with --tokens: the price of a device for an hour, in "
                                                                 "your currency")
    parser.add_argument("--model", metavar="FILE", help="take [model] from a Hugging Face config.json")
    sharding = parser.add_mutually_exclusive_group()
    sharding.add_argument("--ds-config", metavar="FILE", help="take stage, batch and precision from a DeepSpeed JSON "
                                                              "file")
    sharding.add_argument("--fsdp-config", metavar="FILE", help="take stage, recomputation and offloading from the "
                                                                "FSDP keys of an Accelerate JSON or YAML file")
    parser.add_argument("--no-python", action="store_true", help=NO_PYTHON)
    parser.add_argument("--json", metavar="FILE", help="write the plan as JSON; - is standard output")
    parser.add_argument("--csv", metavar="FILE", help="write the rows as CSV, with a column for each key of --sweep")
    parser.add_argument("--report", metavar="FILE", help="write an HTML page with the table and a step of each row")
    parser.add_argument(
        "--picture", metavar="NAME=FILE", action="append", default=[], type=name_and_file,
        help="write one picture of the page to an .svg or .png file: step-3 and memory-3 are those of the third row")
    parser.add_argument(
        "--trace", metavar="FILE", help="write a timeline of one rank of each row as trace events, for Perfetto")


def main(arguments: argparse.Namespace) -> int:
    """Show the plan; 0 if every claim held, 1 if one did not."""
    ranks, source = arguments.ranks, arguments.scenario
    if source is None and arguments.model is None:
        raise UsageError("found no scenario and no --model; name a scenario, such as llama3_8b, or give --model "
                         "config.json")
    if str(source).endswith(".json"):
        raise UsageError(f"{source} is JSON, not a scenario; if it is a Hugging Face configuration, use --model "
                         f"{source}")
    if arguments.price is not None and not (arguments.tokens and arguments.price > 0):
        raise UsageError(f"--price {arguments.price:g}: give a price above 0, and --tokens, the tokens of the training")
    if arguments.report or arguments.picture:
        converter()
    source = source or with_usual_settings(*ranks[:1])
    others, keys = foreign_keys(arguments, source)
    console = standard_output(arguments)
    run = Run(arguments.tokens, arguments.price or 0.0) if arguments.tokens else None
    try:
        with saying(arguments) as say:
            read = read_plan if arguments.search is None else partial(read_search, most=arguments.search, say=say)
            plan = replace(read(source, ranks, keys, swept(arguments.sweep), python=not arguments.no_python), run=run)
            if plan.best is None:
                say("Nothing fits: searching for a layout that does")
                _ = plan.advice
    except ScenarioError as error:
        raise next(filter(None, (file.in_its_words(error) for file in others)), error) from None
    if arguments.picture:
        save_pictures(arguments.picture, files(drawn_rows(plan), int(plan.rows[0].cluster.device.memory)))
    show_heading(console, plan.scenario.title, plan.scenario.caption, "\n".join(python_run(plan.scenario)))
    if chosen := [words for file in others for words in file.chosen]:
        show_words(console, f"Chosen: {joined(chosen)}", style="yellow")
    if unread := [name for file in others for name in file.unread]:
        show_words(console, f"Not planned: {joined(unread)}", style="yellow")
    if arguments.csv:
        write_text(arguments.csv, csv_of(plan))
    if arguments.trace:
        write_text(arguments.trace, json.dumps(trace_events([(row.name, row.trace) for row in plan.rows])))
    return conclude(arguments, shown_plan(plan, shlex.join(["zerosim", *sys.argv[1:]])))


def foreign_keys(arguments: argparse.Namespace, source: Source) -> tuple[list[ForeignKeys], dict[str, Any]]:
    """The files of other projects, and all changes of the scenario: [cluster], the keys of these files, then --set."""
    overrides = dict(arguments.overrides)
    changes = {} if arguments.cluster is None else cluster_in(arguments.cluster)
    files = [foreign.hugging_face(arguments.model)] if arguments.model else []
    changes |= files[0].keys if files else {}
    if arguments.ds_config or arguments.fsdp_config:
        scenario = scenario_of(source, changes | overrides, python=not arguments.no_python)
        if scenario.variant:
            raise UsageError(f"{arguments.scenario} has rows of its own, [[variant]], which override the stage of "
                             f"that file; use a scenario without [[variant]]")
        counts = arguments.ranks or [scenario.world.ranks]
        files.append(
            foreign.deepspeed(arguments.ds_config, scenario.rows[0].directions.data) if arguments.ds_config
            else foreign.fsdp(arguments.fsdp_config, max(counts), scenario.cluster.devices_per_host))
        changes |= files[-1].keys
    return files, changes | overrides


def swept(given: Sequence[tuple[str, str]]) -> dict[str, list[Any]]:
    """The values of each key in --sweep: an array of TOML without its brackets, or words between commas.

    >>> swept([("a.b", "1,[2, 3]"), ("a.c", "ddp,zero1")])
    {'a.b': [1, [2, 3]], 'a.c': ['ddp', 'zero1']}
    """
    values: dict[str, list[Any]] = {}
    for key, words in given:
        if key in values:
            raise UsageError(f"--sweep {key}={words}: {key} is swept twice; give all values in one --sweep")
        _, array = parse_override(f"{key}=[{words}]")
        values[key] = array if isinstance(array, list) else words.split(",")
    return values


def key_and_value(words: str) -> tuple[str, str]:
    """The argument KEY=VALUE of --set, or KEY=VALUES of --sweep. Raises `ArgumentTypeError` for anything else.

    >>> key_and_value("train.micro_batch=1,2")
    ('train.micro_batch', '1,2')
    """
    key, equals, value = words.partition("=")
    if not (key and equals and all(value.split(","))):
        raise argparse.ArgumentTypeError(f"{words!r}: give section.key=value; --sweep takes several, with commas")
    return key, value
