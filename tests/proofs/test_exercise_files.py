"""Each exercise file with the solutions that its own text prescribes, in one file, as a student hands it in."""

import re
from pathlib import Path

import pytest

import zerosim as zs
from tests.proofs.exercises import FEW_RANKS
from tests.sampling import one_in
from zerosim.core.parts.loading import load_file
from zerosim.proofs import parts
from zerosim.proofs.cause import diagnosis
from zerosim.proofs.proof import prove
from zerosim.proofs.subject import subject

EXERCISES = Path(__file__).parents[2] / "docs" / "exercises"
WALK = """\
    for step in range(comm.size - 1):
        comm.exchange(chunks[(comm.rank - step{0}) % comm.size], to=right(comm),
                      into=chunks[(comm.rank - step{1}) % comm.size], source=left(comm){2})
"""
DOUBLING = """\
    position, distances = (comm.rank - root) % comm.size, [1 << n for n in range((comm.size - 1).bit_length())]
    for distance in distances:
        if position < distance and position + distance < comm.size:
            comm.send(vector, to=(comm.rank + distance) % comm.size)
        elif distance <= position < 2 * distance:
            comm.recv(into=vector, source=(comm.rank - distance) % comm.size)
"""
BACKWARDS = (DOUBLING.replace("in distances", "in reversed(distances)").replace("comm.send(vector, to", "comm.recv(\0")
             .replace("comm.recv(into=vector, source", "comm.send(vector, to")
             .replace("comm.recv(\0=(comm.rank + distance) % comm.size)",
                      "comm.recv(into=vector, source=(comm.rank + distance) % comm.size, reduce=reduce)"))
STEP = """\
    tape, weights, loss = replica.tape, replica.state.weights, None
    replica.zero_grad(batch)
    for part in replica.parts(batch):
        activations = part.inputs
        for unit in replica.units:
            activations = tape.forward(unit, {full}, activations)
        loss, upstream = tape.loss(replica.loss_name, activations, part.targets, part.counted, loss)
        for unit in replica.backward_units:
            upstream, gradient = tape.backward(unit, {full}, upstream)
            gradient = replica.reduce_scatter(unit, gradient)
            replica.{keep}(unit, gradient)
            del gradient
    replica.unscale_and_clip()
    for unit in replica.units:
        replica.update(unit, {shard})
        {publish}
    return loss
"""
SHARE = {"full": "weights[unit]", "shard": "replica.own(weights[unit])",
         "publish": "replica.publish(unit, weights[unit])"}
SOLUTIONS = {
    "1_ring": {"reduce_scatter": WALK.format(" - 1", " - 2", ", reduce=reduce"),
               "all_gather": WALK.format("", " - 1", ""),
               "all_reduce": "    reduce_scatter(comm, chunks, reduce)\n    all_gather(comm, chunks)\n"},
    "2_tree": {"broadcast": DOUBLING, "reduce": BACKWARDS},
    "3_zero": {"zero1_step": STEP.format(keep="keep", **SHARE), "zero2_step": STEP.format(keep="keep_shard", **SHARE),
               "zero3_step": STEP.format(keep="keep_shard", full="replica.gather(unit)", shard="weights[unit]",
                                         publish="")},
    "4_variants": {"reduce_scatter_left": WALK.format(" + 1", " + 2", ", reduce=reduce").replace("- step", "+ step")
                   .replace("to=right", "to=\0").replace("left(", "right(").replace("to=\0", "to=left"),
                   "zero2_each_part_step": STEP.format(keep="keep_shard", **SHARE).replace(
                       "part in replica.parts(batch)", "x, y in zip(batch.inputs, batch.targets, strict=True)").replace(
                       "part.inputs", "[x]").replace("part.targets", "[y]").replace("part.counted", "batch.counted")},
}


def solved(exercise, folder):
    text = (EXERCISES / f"{exercise}.py").read_text()
    for name, body in SOLUTIONS[exercise].items():
        text, count = re.subn(rf"(def {name}\(.*?)    raise NotImplementedError\n", lambda m, b=body: m[1] + b, text,
                              count=1, flags=re.S)
        assert count == 1
    (folder / f"{exercise}.py").write_text(text)
    return folder / f"{exercise}.py"


@pytest.mark.parametrize("exercise", one_in(4, SOLUTIONS))
def test_the_prescribed_solution_holds(exercise, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "RANKS", FEW_RANKS)
    file = solved(exercise, tmp_path)
    for name in SOLUTIONS[exercise]:
        check = zs.check(f"{file}:{name}")
        assert check.passed, check


PARTS = """\
import numpy as np
from zerosim.extend import Layer, collective, model, optimizer, stage
@collective(order="rank")
def my_reduce(comm, vector, root, reduce=np.add): return comm, vector, root
@stage(sharded=("optimizer",))
def step(replica, batch): return replica, batch
@optimizer()
def signs(g, *, t, h, a, b): return g, t
@model()
def layers(task, *, width=3): return [task, width]
"""


def test_a_decorated_function_is_called_as_it_is_written(tmp_path):
    (tmp_path / "mine.py").write_text(PARTS)
    mine = load_file(str(tmp_path / "mine.py"))
    assert mine.my_reduce("comm", "vector", root=2) == ("comm", "vector", 2)
    assert mine.step("replica", "batch") == ("replica", "batch")
    assert mine.signs("g", t=1, h=0, a=0, b=0) == ("g", 1)
    assert mine.layers("task", width=5) == ["task", 5]


@pytest.mark.parametrize(("name", "old", "new", "words"), [
    ("3_zero:zero1_step", "weights[unit], activations", "weights, activations",
     "forward of layers.0 got a dict as weights; give the unit's array"),
    ("3_zero:zero1_step", "weights[unit], activations", "replica.weights[unit], activations",
     "did you mean 'state.weights'?, in line"),
    ("3_zero:zero1_step", "weights[unit], activations", "replica.own(weights[unit]), activations",
     "any other keeps them in full, replica.state.weights[unit]"),
    ("3_zero:zero1_step", "        activations = part.inputs",
     "        replica.zero_grad(batch)\n        activations = part.inputs",
     "zero_grad is called within the loop over replica.parts(batch)"),
    ("3_zero:zero3_step", "replica.update(unit, weights[unit])", "replica.update(unit, replica.own(weights[unit]))",
     "pass replica.state.weights[unit], this rank's shard"),
    ("3_zero:zero3_step", "        replica.update(unit, weights[unit])",
     "        replica.update(unit, weights[unit])\n        weights[unit] = replica.gather(unit)",
     "after the step replica.state.weights has 28 elements of layers.0, where 7 are kept"),
    ("2_tree:broadcast", "range((comm.size - 1).bit_length())", "range(int(np.log2(comm.size)))",
     "in round 2 rank 0 sends nothing to rank 2, where a tree of distances 1, 2, 4 sends the whole vector"),
    ("2_tree:reduce", "    for distance in reversed(distances):", "    for distance in distances:",
     "g3 of chunk 0 is missing on rank 0: it goes 3 → 1 in round 2 (line"),
    ("2_tree:broadcast", "to=(comm.rank + distance) % comm.size", "to=comm.rank", "rank 0 sends to itself (line"),
    ("1_ring:reduce_scatter", "chunks, reduce=np.add", "chunks", "has no parameter reduce, so it can only add"),
    ("1_ring:all_gather", "to=right(comm)", "to=right", "to is the function right; call it"),
    ("1_ring:all_gather", "comm.exchange", "comm.sendrecv", "no attribute 'sendrecv'; did you mean 'exchange'?"),
    ("1_ring:all_gather", "chunks):", "chunks, seen=[]):\n    seen.append(len(seen))\n    comm.rank or seen[2:] or 1/0",
     "each call changes the default of seen, which all ranks share"),
])
def test_a_mistake_in_it_is_named(name, old, new, words, tmp_path):
    exercise, _, function = name.partition(":")
    file = solved(exercise, tmp_path)
    before, mark, rest = file.read_text().partition(f"def {function}(")
    assert old in rest
    file.write_text(before + mark + rest.replace(old, new, 1))
    assert words in " ".join(str(zs.check(f"{file}:{function}")).split())


def test_a_cause_is_told_on_four_ranks_only_if_it_is_wrong_there():
    def lossy_all_gather(comm, chunks):
        for step in range(comm.size - 1 - comm.size % 2):
            comm.exchange(chunks[(comm.rank - step) % comm.size], to=(comm.rank + 1) % comm.size,
                          into=chunks[(comm.rank - step - 1) % comm.size], source=(comm.rank - 1) % comm.size)

    assert prove(subject(lossy_all_gather), 4).holds
    told = diagnosis(prove(subject(lossy_all_gather), 3))
    assert told.cause.startswith("in round 2 rank 0 sends nothing to rank 1, where ring.all_gather")
