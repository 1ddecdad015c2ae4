"""What students do: each file in `mistakes`, and each change in its `changed.toml`, is a wrong program."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.proofs.exercises import as_exercise, changed, skeletons
from tests.sampling import one_in
from zerosim.core.parts.loading import load_file
from zerosim.proofs.cause import diagnosis
from zerosim.proofs.parts import checked
from zerosim.proofs.proof import prove
from zerosim.proofs.subject import collective_in, subject
from zerosim.testing import LawBroken, laws

HERE = Path(__file__).parent / "mistakes"
FILES = {file.stem: file.read_text() for file in sorted(HERE.glob("*.py"))}
EXERCISES = skeletons()
PROGRAMS = FILES | {
    name: changed(program, HERE / "of")
    for name, program in tomllib.loads((HERE / "changed.toml").read_text()).items()}


def told(file):
    """What is said of the one function in a file, by its check if it is an exercise, else by its proof or the laws."""
    module = load_file(str(file))
    written = {name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == file.stem}
    function = next(value for known in (EXERCISES.__contains__, collective_in)
                    for name, value in written.items() if known(name))
    if function.__name__ in EXERCISES:
        return "\n".join(checked(str(file), as_exercise(function)).complaints)
    if "By: laws" in file.read_text():
        with pytest.raises(LawBroken) as broken:
            laws.check(function, examples=10)
        return str(broken.value)
    proofs = [prove(subject(function), size) for size in range(1, 6)]
    return next((f"{proof.faults[0].what}\n{diagnosis(proof)}" for proof in proofs if not proof.holds), "")


FIRST_DIFFERENCES = {
    "chunk_off_by_one": "in round 1 rank 0 sends chunk 0 as g0 to rank 1, where ring.reduce_scatter sends chunk 3",
    "does_not_add": "whose chunk 3 is then g0; with ring.reduce_scatter it is (g0 + g1)",
    "second_half_missing": "in round 4 rank 0 sends nothing to rank 1, where ring.all_reduce sends chunk 0",
    "runs_the_other_way":
        "sends chunk 3 as g0 to rank 3, where ring.reduce_scatter sends chunk 3 as g0 to rank 1 (line 12)",
    "same_neighbour_twice":
        "rank 0 waits in line 12 for a message from rank 1, and the one on its way there is from rank 3 (line 12)",
    "works_on_copies": "its messages are those of ring.reduce_scatter, received outside of the vector (line 13)",
    "returns_the_wrong_chunk": "rank 0 returns chunk 1, complete, where chunk 0 is due",
    "stage_gathers_once_for_all":
        "gets the gathered weights of layers.0 in step 1 as weights instead of the gathered weights of layers.0",
    "stage_reduced_twice": "line 14: replica.reduce_scatter(layers.1) is called 2 times, where 1 is due",
    "stage_keeps_a_buffer_of_its_own":
        "line 16: replica.keep(layers.1) gets the gradient of layers.1 instead of the reduced gradient of layers.1",
    "stage_not_reduced":
        "line 13: replica.keep(layers.1) gets the gradient of layers.1 instead of the reduced gradient of layers.1",
    "stage_doubled": "gets 2 times the gradient of layers.1 instead of the gradient of layers.1",
    "stage_averaged": "gets 0.25 times the reduced gradient of layers.1 instead of the reduced gradient of layers.1",
    "stage_gathers_nothing": "gets chunk 0 of the gathered weights of layers.0 and zeros as weights instead of",
    "stage_ranks_part_ways":
        "line 8: replica.reduce_scatter(layers.0) gets values that were never filled instead of the gradient of",
    "stage_mixes_up_units": "gets the reduced gradient of layers.1 instead of the reduced gradient of layers.0",
    "stage_never_updated": "replica.update(layers.0) is not called before replica.publish(layers.0) in line 16",
    "stage_not_published": "replica.publish(layers.0) is not called before replica.update(layers.1) in line 16",
    "stage_updates_in_the_loop":
        "line 17: replica.update(layers.1) is called before replica.unscale_and_clip() (line 18)",
    "stage_keeps_weights_alive":
        "line 10: replica.gather(layers.1) finds the gathered weights of layers.0 (line 10) still in memory",
    "stage_keeps_full_gradients": "line 14: replica.keep(layers.1) is called instead of replica.keep_shard(layers.1)",
}
"""What is said of the first difference, for some programs."""


@pytest.mark.parametrize("name", [
    *FIRST_DIFFERENCES, *one_in(3, [name for name in PROGRAMS if name not in FIRST_DIFFERENCES])])
def test_it_is_found_with_its_cause(name, tmp_path):
    file = tmp_path / f"{name}.py"
    file.write_text(PROGRAMS[name])
    said = told(file)
    assert said
    assert FIRST_DIFFERENCES.get(name, "") in said
    assert "AssertionError" not in said
    assert re.search(r"line \d|why: |has .*, expected|disagree|return the result|rounds; \d are declared", said)
