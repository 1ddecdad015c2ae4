"""`zerosim prove`: runs a collective on symbols and prints what was proved, or the fault.

A collective on the tape runs on integers, forward and backward.
"""

import argparse

from zerosim.commands.arguments import add_collective, whole_numbers
from zerosim.commands.output import conclude
from zerosim.proofs.proof import MOST_PROVED_RANKS
from zerosim.show.proofs import proved

MOST_ELEMENTS = 1 << 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `zerosim prove`."""
    parser.add_argument(
        "subject", help="an algorithm (zerosim show --list names all), a collective on the tape such as copy_to, or "
                        "my_file.py:my_all_reduce")
    parser.add_argument(
        "--ranks", type=whole_numbers(1, MOST_PROVED_RANKS), default=[4], metavar="N",
        help="a number of ranks, a range or a list: 4, 2..9, 2,4,8; default 4; beyond 100 it takes minutes")
    parser.add_argument(
        "--elements", type=whole_numbers(0, MOST_ELEMENTS), metavar="N",
        help="the lengths of the vectors that are tried; default: several short ones, of your own function also long "
             "ones")
    add_collective(parser)
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON; - is standard output")


def main(arguments: argparse.Namespace) -> int:
    """Prove the collective: 0 if it holds for every number of ranks, 1 if not."""
    return conclude(arguments, proved(
        arguments.subject, arguments.ranks, arguments.collective, arguments.ranks_per_host, arguments.elements))
