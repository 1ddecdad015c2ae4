"""Two steps with 20 million parameters, by the stages named: for each and each rank, its process and its ledger.

With `prefetch` Stage III gathers ahead; with `hoards` steps also keep 8 million numbers that no allocator handed out.
"""

import json
import sys
from dataclasses import replace

import numpy as np

from zerosim.scenario import Check, ModelKeys, Parallel, Scenario, Train, WorldKeys
from zerosim.scenario.data import load_dataset
from zerosim.stages import STAGES
from zerosim.training.experiment import prepare
from zerosim.training.program import Progress
from zerosim.verdict.judged_run import run_on
from zerosim.worlds.mpi import MpiWorld, connect

words = sys.argv[1:]
stages = tuple(word for word in words if word in STAGES)
hoarded = []


def hoarding(stage):
    def step(replica, batch):
        hoarded.append(np.ones(8_000_000, np.float32))
        return stage.step(replica, batch)

    return replace(stage, step=step)


if "hoards" in words:
    STAGES.update({name: hoarding(stage) for name, stage in STAGES.items()})
comm = connect()
scenario = Scenario(
    world=WorldKeys(comm.size),
    model=ModelKeys(hidden=(2236,) * 5),
    train=Train(steps=2, micro_batch=2, micro_batches=comm.size),
    parallel=Parallel(stages=stages, prefetch="prefetch" in words),
    check=Check(reference=False),
)
experiment = prepare(scenario, load_dataset(scenario))
outcome = run_on(MpiWorld(comm), experiment, Progress())
if outcome is not None:
    print(json.dumps([
        {"parameters": experiment.rows[0].model.count, "resident": rank.resident_bytes, "ledger": rank.alive_bytes}
        for stage in outcome.trained for rank in stage.measured.memory
    ]))
