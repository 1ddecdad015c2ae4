"""Small facts on which larger ones rest, each by itself: defaults, what is left in padding, the one NaN."""


import numpy as np

from zerosim.core.not_a_number import NOT_A_NUMBER, with_one_nan
from zerosim.core.precisions import PRECISIONS
from zerosim.models.mlp import mlp
from zerosim.stages.optimizers import OPTIMIZERS, Hyperparameters
from zerosim.stages.update import LearningRate, UpdateRule


def test_there_is_one_nan_and_it_is_this_processors():
    assert np.isnan(NOT_A_NUMBER)
    assert type(NOT_A_NUMBER) is np.float32
    nans = np.array([0x7FC00000, 0xFFC00000, 0x7FC00001, 0x7F800001], np.uint32).view(np.float32)
    assert with_one_nan(nans) is nans
    assert set(nans.view(np.uint32).tolist()) == {int(NOT_A_NUMBER.view(np.uint32))}
    assert with_one_nan(np.array([np.inf, -0.0], np.float32)).tolist() == [np.inf, -0.0]


(UNIT,) = mlp(2, [], 1, "relu", "mean_squared_error").units


def sgd(precision):
    return UpdateRule(OPTIMIZERS["sgd"], Hyperparameters(), LearningRate(0.25), PRECISIONS[precision])


def test_nothing_is_to_be_subtracted_from_padding():
    out = np.full(4, 9, np.float32)
    sgd("fp32").differences(
        UNIT, 0, np.ones(4, np.float32), np.ones(4, np.float32), {}, step=1, count=1, factor=1.0, out=out)
    assert out.tolist() == [0.25, 0.25, 0.25, 0.0]
