"""Runs on the ranks of one start, one after another: each argument is a JSON list of the words of one `zerosim run`."""

import json
import sys

import zerosim as zs
from zerosim.commands.cli import parse
from zerosim.commands.run import run_as_one_of_many

comm = zs.connect(300.0)
failed = 0
for words in sys.argv[1:]:
    own = comm.channel()
    failed |= run_as_one_of_many(own, parse(json.loads(words)))
    own.close()
sys.exit(failed)
