"""`zerosim torch --record` and `--same` on many layouts; these tests run where PyTorch is installed."""

import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.torch.launch import PLAIN, findings, judged, torchrun
from zerosim.torch.check.record import Entry, Facts, Frame, write

torch = pytest.importorskip("torch", reason="make oracles runs these in an environment that has PyTorch")


@pytest.mark.mpi
def test_faults_of_many_layouts_are_found_where_they_are_and_right_ones_are_not_accused():
    outcome = torchrun(4, "-m", "tests.torch.layouts")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


SCRIPT = """import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0 if "other" not in sys.argv else dist.get_rank() + 1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2).float())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(2):
    data = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
    loss = model(data.chunk(dist.get_world_size())[dist.get_rank()]).square()
    (loss.sum() if "sum" in sys.argv else loss.mean()).backward()
    optimizer.step()
    optimizer.zero_grad()
time.sleep(1), dist.destroy_process_group()
"""


def same(*folders, flags=()):
    return subprocess.run([sys.executable, "-m", "zerosim.torch", *map(str, flags), "--same", *map(str, folders)],
                          capture_output=True, text=True, check=False, env=PLAIN)


@pytest.mark.mpi
def test_the_command_records_and_compares_and_refuses_in_one_line_what_it_cannot_compare(tmp_path):
    (script := tmp_path / "train.py").write_text(SCRIPT)

    def record(name, ranks, *flags, words=()):
        outcome = torchrun(ranks, "-m", "zerosim.torch", "--double", "--record", tmp_path / name, *flags, script,
                           *words)
        assert outcome.returncode == 0, outcome.stderr
        return tmp_path / name

    one = record("one", 1)
    assert "zerosim: checked 2 steps: no findings" in same(one, record("two", 2)).stderr
    assert "initial weights" in same(one, record("other", 2, words=["other"])).stderr
    outcome = same(one, record("sum", 2, words=["sum"]))
    assert outcome.returncode == 1
    assert findings(outcome.stderr)[0].startswith(
        "zerosim: FOUND step 1, rank 0: another loss: "), outcome.stderr
    assert "8 times the reference's" in outcome.stderr
    check_records = tmp_path / "check"
    torchrun(1, "-m", "zerosim.torch", "--check", "--records", check_records, script)
    content = (tmp_path / "two" / "rank00001").read_bytes()
    for name, bad in (("cut", content[:-9]), ("first", content[:300]), ("empty", b""),
                      ("damaged", content[:300] + b"!" + content[301:])):
        shutil.copytree(tmp_path / "two", tmp_path / name)
        (tmp_path / name / "rank00001").write_bytes(bad)
    longer = record("longer", 2, "--check-steps", "1..1")
    (tmp_path / "two" / "rank00001").unlink()
    for folders, why in (([one, tmp_path / "two"], "records of 1 of 2 ranks"),
                         ([one, check_records], "those of a check"),
                         ([one, tmp_path / "cut"], "not recorded to its end"), ([one, longer], "same --check-steps"),
                         ([one, tmp_path / "first"], "rank00001 ends within its first frame"),
                         ([one, tmp_path / "empty"], "rank00001 ends within its first frame"),
                         ([one, tmp_path / "damaged"], "damaged"), ([one, tmp_path], "no records of --record"),
                         ([one, tmp_path / "none"], "No such file"), ([one, one, one], "without --noise")):
        outcome = same(*folders)
        assert (outcome.returncode, why in outcome.stderr.splitlines()[-1]) == (2, True), outcome.stderr
    assert "cannot be written" in same(one, one, flags=["--json", tmp_path / "no" / "file"]).stderr
    assert "records of --record" in judged(one).stderr
    again = torchrun(1, "-m", "zerosim.torch", "--record", one, script)
    assert "holds another run; give --record an empty folder" in again.stderr


ALONE = """import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("mpi4py", "torch"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden())
sys.argv = ["zerosim", "torch", *sys.argv[1:]]
from zerosim.__main__ import start
sys.exit(start())
"""


def test_records_are_compared_without_pytorch_and_without_an_mpi_library(tmp_path):
    """The second run has twice the gradient, draws random numbers, or has numbers that are none."""
    def run(name, factor=1.0, kinds=(), roundoff=2**-53):
        (tmp_path / name).mkdir()
        facts = Facts(recorded="1..2", updates={0: 1})
        rows = {"weight": 1.0, "output": 1.0, "loss": 1.0, "gradient": factor, "updated": 1.0}
        entries = [Entry(kind, 1, "a.w" if kind in ("weight", "gradient", "updated") else "a", shape=(3, 2),
                         place=((0, 3), (0, 2)), group=[0], roundoff=roundoff, rows=factor * np.arange(1.0, 4.0),
                         columns=factor * np.arange(1.0, 3.0)) for kind, factor in rows.items()]
        with open(tmp_path / name / "rank00000", "wb") as file:
            write(Frame(facts, entries=[*entries, *(Entry(kind, 1, "a", line="x.py:1") for kind in kinds)]), file)
            write(Frame(facts, ended="0"), file)
        return str(tmp_path / name)

    one = run("one")
    for other, code, said in ((run("equal"), 0, "no findings"), (run("double", 2.0), 1, "is 2 times the reference's"),
                              (run("nan", np.nan), 1, "another gradient"),
                              (run("short", roundoff=2**-8), 2, "in 16 bits give a third record"),
                              (run("drawn", 2.0, ["random"]), 2, "this run draws random numbers in the forward of a")):
        outcome = subprocess.run([sys.executable, "-c", ALONE, "--same", one, other], capture_output=True, text=True,
                                 check=False, env=PLAIN)
        assert (outcome.returncode, said in outcome.stderr) == (code, True), outcome.stderr


def test_parts_add_up_to_the_projections_of_the_whole():
    from zerosim.torch.same.recorder import projections
    from zerosim.torch.same.wholes import matrix

    generator = np.random.default_rng(0)
    for _ in range(40):
        shape = tuple(int(size) for size in generator.integers(1, 9, generator.integers(1, 4)))
        values = torch.randn(shape, dtype=torch.float64)
        whole = projections(values, shape, tuple((0, size) for size in shape))
        axis, size = int(generator.integers(len(shape))), values.numel()
        cut, at = int(generator.integers(0, shape[axis] + 1)), int(generator.integers(0, size + 1))
        blocks = [tuple((first, last) if axis == number else (0, length) for number, length in enumerate(shape))
                  for first, last in ((0, cut), (cut, shape[axis]))]
        for places in (blocks, [((0, at),), ((at, size),)]):
            rows, columns = (np.zeros(count) for count in matrix(shape))
            for place in places:
                part = (values[tuple(slice(*bounds) for bounds in place)] if len(place) == len(shape)
                        else values.reshape(-1)[slice(*place[0])])
                first, of_rows, of_columns = projections(part, shape, place)
                rows[first : first + len(of_rows)] += of_rows.numpy()
                columns += of_columns.numpy()
            assert np.allclose(rows, whole[1].numpy(), rtol=1e-12, atol=1e-12)
            assert np.allclose(columns, whole[2].numpy(), rtol=1e-12, atol=1e-12)
