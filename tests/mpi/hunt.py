"""Scenarios of the random hunt on the ranks of one start: each in a folder of its own, where its outcome is left."""

import sys
import tomllib
from pathlib import Path

import zerosim as zs
from zerosim.commands.cli import parse
from zerosim.commands.run import run_as_one_of_many

WAIT_SECONDS = 300.0

comm = zs.connect(WAIT_SECONDS)
for folder in sys.argv[1:]:
    own = comm.channel()
    path = Path(folder) / "scenario.toml"
    trains = tomllib.loads(path.read_text()).get("kind") != "collective"
    flags = ["--trace", f"{folder}/mpi_trace.json"] if trains else []
    run_as_one_of_many(own, parse(["run", str(path), "--json", f"{folder}/mpi.json", "--progress", "none", *flags]))
    own.close()
