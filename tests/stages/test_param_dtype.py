"""FSDP2's mixed precision: float32 shards that are cast as they are gathered, beside DeepSpeed's 16-bit weights."""

from dataclasses import replace

import numpy as np
import pytest

from tests.training import labelled
from tests.training.variants import run, tensors
from zerosim.core.precisions import PRECISIONS

WIDE = {"reduce_dtype": "fp32", "accumulate_dtype": "fp32"}


@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize(("theirs", "ours"), [({}, {}), (WIDE, {"reduce_dtype": "fp32"})], ids=["16 bits", "32 bits"])
def test_deepspeeds_way_and_fsdp2s_are_one_computation_with_other_bytes(name, theirs, ours):
    """A master copy that is rounded to 16 bits, and a shard that is cast when it is gathered, are the same numbers."""
    labels = labelled()
    y = np.random.default_rng(1).standard_normal((len(labels.x), 2)).astype(np.float32)
    values = replace(labels, y=y, y_test=y[:8], classes=None)
    sixteen, = run(stages=("zero3",), precision=name, dataset=values, **theirs).trained
    cast, = run(stages=("zero3",), param_dtype=name, dataset=values, **ours).trained
    assert sixteen.measured.losses == cast.measured.losses
    assert sixteen.measured.test == cast.measured.test
    dtype = PRECISIONS[name].weights
    assert bits(tensors(sixteen)) == bits({each: w.astype(dtype) for each, w in tensors(cast).items()})
    kept = [row.measured.memory[0].resting_bytes for row in (sixteen, cast)]
    half = kept[0]["parameters"]
    assert kept[0] == {"parameters": half, "gradients": 3 * half if theirs else half, "optimizer": 6 * half}
    assert kept[1] == {"parameters": 2 * half, "gradients": 2 * half, "optimizer": 4 * half}


def bits(arrays):
    return {name: array.tobytes() for name, array in arrays.items()}
