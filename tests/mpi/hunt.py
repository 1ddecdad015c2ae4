"""Scenarios of the random hunt on the ranks of one start: each in a folder of its own, where its outcome is left."""

import sys

import zerosim as zs
from zerosim.cli import parse
from zerosim.commands.run import run_as_one_of_many

WAIT_SECONDS = 15.0

comm = zs.connect(WAIT_SECONDS)
for folder in sys.argv[1:]:
    own = comm.channel()
    run_as_one_of_many(
        own, parse(["run", f"{folder}/scenario.toml", "--json", f"{folder}/mpi.json", "--progress", "none"])
    )
    own.close()
