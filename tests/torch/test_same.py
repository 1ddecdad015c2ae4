"""`zerosim torch --record` and `--same` on many layouts; these tests run where PyTorch is installed."""

import subprocess
import sys

import numpy as np
import pytest

from tests.torch.launch import PLAIN, findings, torchrun

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


def same(*folders):
    return subprocess.run([sys.executable, "-m", "zerosim.torch", "--same", *map(str, folders)], capture_output=True,
                          text=True, check=False, env=PLAIN)


@pytest.mark.mpi
def test_the_command_records_compares_and_starts_from_the_weights_of_another_run(tmp_path):
    (script := tmp_path / "train.py").write_text(SCRIPT)

    def record(name, ranks, *flags, words=()):
        outcome = torchrun(ranks, "-m", "zerosim.torch", "--double", "--record", tmp_path / name, *flags, script,
                           *words)
        assert outcome.returncode == 0, outcome.stderr
        return tmp_path / name

    one = record("one", 1, "--keep-weights")
    assert "zerosim: checked 2 steps: no findings" in same(one, record("two", 2)).stderr
    assert "initial weights" in same(one, record("other", 2, words=["other"])).stderr
    assert same(one, record("started", 2, "--start-from", one, words=["other"])).returncode == 0
    outcome = same(one, record("sum", 2, words=["sum"]))
    assert outcome.returncode == 1
    assert findings(outcome.stderr)[0].startswith(
        "zerosim: FOUND step 1, rank 0: another loss: "), outcome.stderr
    assert "8 times the reference's" in outcome.stderr
    (tmp_path / "two" / "rank00001").unlink()
    assert same(one, tmp_path / "two").returncode == 2
    assert "records of 1 of 2 ranks" in same(one, tmp_path / "two").stderr


def test_parts_add_up_to_the_projections_of_the_whole():
    from zerosim.torch.same.record import matrix, span
    from zerosim.torch.same.recorder import projections

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
                first, last, which = span(shape, place)
                of_rows, of_columns = projections(part, shape, place)
                rows[first:last] += of_rows.numpy()
                columns[which] += of_columns.numpy()
            assert np.allclose(rows, whole[0].numpy(), rtol=1e-12, atol=1e-12)
            assert np.allclose(columns, whole[1].numpy(), rtol=1e-12, atol=1e-12)
