"""Two steps of one stage with 20 million parameters: for each rank, what its process has in memory and its ledger.

With a second argument every step also keeps 8 million numbers that no allocator has handed out.
"""

import json
import sys
from dataclasses import replace

import numpy as np

from zerosim.commands.run import training
from zerosim.recipe import prepare
from zerosim.run import Silent, run_as_rank
from zerosim.scenario import Check, Model, Parallel, Scenario, Train, World, load_dataset
from zerosim.stages import STAGES
from zerosim.worlds.mpi import connect

stage, *hoards = sys.argv[1:]
hoarded = []


def step(replica, batch):
    hoarded.extend(np.ones(8_000_000, np.float32) for _ in hoards)
    return honest.step(replica, batch)


honest = STAGES[stage]
STAGES[stage] = replace(honest, step=step)
comm = connect()
scenario = Scenario(
    world=World(comm.size),
    model=Model(hidden=(2236,) * 5),
    train=Train(steps=2, micro_batch=2, micro_batches=comm.size),
    parallel=Parallel(stages=(stage,)),
    check=Check(reference=False),
)
recipe = prepare(scenario, load_dataset(scenario))
outcome = run_as_rank(comm, training(comm, recipe, Silent(), keep_weights=False))
if outcome is not None:
    print(json.dumps([
        {"parameters": recipe.model.count, "resident": rank.resident_bytes, "ledger": sum(rank.curve[-1][1].values())}
        for rank in outcome.stages[0].memory
    ]))
