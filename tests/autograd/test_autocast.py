"""Torch's autocast: float32 weights, and a dtype for each operation."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.training.variants import run, tensors
from zerosim.autograd.autocast import FLOAT32, Autocast
from zerosim.autograd.graph import Graph, GraphPlan
from zerosim.autograd.operations.attention import softmax
from zerosim.autograd.operations.elementwise import scale
from zerosim.autograd.operations.linear import linear
from zerosim.autograd.operations.normalization import layer_norm, rms_norm
from zerosim.autograd.player import Contribution, Player, Precise
from zerosim.core.allocation import allocate
from zerosim.core.extents import Extent, owner
from zerosim.models.transformer import TransformerShape, transformer
from zerosim.plan.costs import Costs, moved_bytes
from zerosim.plan.software import Software
from zerosim.verdict.shapes import extent

BF16 = {"autocast": "bf16"}


def test_an_mlp_has_the_bits_of_fsdp2_reduced_in_float32_which_casts_all_that_it_casts():
    """Linear maps and activations are all that an MLP has, so every number is rounded where FSDP2 rounds it."""
    one, = run(stages=("zero3",), **BF16).trained
    other, = run(stages=("zero3",), param_dtype="bf16", reduce_dtype="fp32").trained
    assert [loss.tobytes() for loss in one.measured.losses] == [loss.tobytes() for loss in other.measured.losses]
    assert {k: v.tobytes() for k, v in tensors(one).items()} == {k: v.tobytes() for k, v in tensors(other).items()}


def steps_of(plan):
    return " ".join(f"{step.instruction.operation.name}:{step.dtype.itemsize * 8}" for step in plan.steps)


def autocast(graph):
    """The plan of a graph with an input of float32, cast to float16, where all gradients are wanted."""
    return Autocast(np.dtype(np.float16))(GraphPlan(graph, of_parameters=True, of_input=True), FLOAT32)


@pytest.mark.parametrize(("operation", "parameters"), [(softmax, 0), (layer_norm, 2), (rms_norm, 1)])
def test_softmax_and_norms_of_products_are_computed_in_float32(operation, parameters):
    graph = Graph((4, 3))
    product = linear(graph.input, graph.parameter("product", (3, 3)))
    graph.output = operation(product, *(graph.parameter(number, (3,)) for number in range(parameters)))
    assert steps_of(autocast(graph)) == f"cast:16 cast:16 linear:16 cast:32 {operation.name}:32"


def two_products():
    """One weight that two products read, and an activation that both read."""
    graph = Graph((4, 3))
    weight = graph.parameter("weight", (3, 3))
    graph.output = linear(graph.input, weight) + linear(scale(graph.input, factor=2.0), weight) + graph.input
    return graph


def test_a_weight_is_cast_once_and_an_activation_for_each_product():
    graph = two_products()
    graph.output = graph.output + linear(graph.input, graph.parameters["weight"])
    assert steps_of(autocast(graph)) == (
        "cast:16 cast:16 linear:16 scale:32 cast:16 linear:16 add:16 add:32 cast:16 linear:16 add:32")


def test_a_gradient_has_the_dtype_of_its_value():
    """Gradients that several products give of one float32 value are added in float32, those of a cast weight in 16."""
    plan, random = autocast(two_products()), np.random.default_rng(0)
    x, upstream = (random.standard_normal((4, 3)).astype(np.float32) for _ in range(2))
    weight, flat = random.standard_normal((3, 3)).astype(np.float32), np.zeros(9, np.float32)
    player = Player(plan, {"weight": weight}, Precise(allocate, "unit"), lambda _: None)
    y, kept = player.forward(x)
    assert y.dtype == np.float32
    contribution = Contribution(flat, {"weight": flat.reshape(3, 3)})
    gradient, = player.backward(kept, upstream.copy(), contribution)

    def half(a):
        return a.astype(np.float16)

    def wide(a):
        return half(a).astype(np.float32)

    g, w = wide(upstream), wide(weight)
    through, again = wide(np.matmul(g, w)), wide(np.matmul(g, w))
    assert gradient.tobytes() == (upstream + again * np.float32(2) + through).tobytes()
    one, two = half(np.matmul(g.T, wide(x * np.float32(2)))), half(np.matmul(g.T, wide(x)))
    assert flat.tobytes() == (one + two).astype(np.float32).tobytes()


def test_a_plan_counts_every_array_in_its_own_dtype():
    graph = Graph((4, 3))
    graph.output = linear(graph.input, graph.parameter("weight", (3, 3))) + graph.input
    one, other, product, add = autocast(graph).steps
    assert [moved_bytes(each, "forward", 4) for each in (one, other, product, add)] == [72, 54, 66, 120]
    assert moved_bytes(product, "backward", 4) == 2 * (12 + 9 + 12 + 12 + 9)


def test_a_norm_spelt_out_moves_as_much_whatever_its_operands_have():
    """Its passes are counted over 16-bit operands: 36 bytes of a number instead of 4."""
    graph = Graph((4, 8))
    graph.output = rms_norm(graph.input, graph.parameter("weight", (8,)))
    plan = GraphPlan(graph, of_parameters=True, of_input=True)
    assert [kernel_bytes(each.steps[-1], width) for each in (plan, autocast(graph)) for width in (2, 4)] == [1296.0] * 4


def kernel_bytes(step, width):
    cluster = SimpleNamespace(software=Software(passes={"rms_norm": (9.0, 13.0)}))
    return Costs(cluster, 4, width).kernel_bytes(step, "forward")


# Held activations, by hand.


def held(plan, *parameters):
    """Bytes that stay from forward to backward, of an input that is kept too."""
    player = Player(plan, dict(enumerate(Extent(each, np.float32) for each in parameters)), Precise(extent, ""),
                    lambda _: None)
    _, kept = player.forward(Extent(plan.graph.input_shape, np.float32))
    arrays = {id(owner(each)): owner(each) for each in (*kept.values.values(), *kept.saved.values())}
    return sum(each.nbytes for each in arrays.values())


@pytest.mark.parametrize(("b", "s", "d", "a"), [(1, 4, 6, 2), (3, 5, 8, 4)])
def test_a_block_holds_36_bytes_of_a_number_its_softmax_and_a_copy_of_its_matrices(b, s, d, a):
    """The input of each norm has 4 bytes of a number and of each product 2, queries, keys and values 6, gelu's input 8.

    A block in 16 bits holds 32, as Korthikanti et al. (2022) count without dropout, and no copy.
    """
    shape = TransformerShape("gpt2", 1, d, a, a, 4 * d, 11, s, tied_embeddings=False)
    unit = transformer(shape).units[1]
    plan = unit.segments[0].plan((b, s, d), of_parameters=True, of_input=True)
    copies = 2 * (3 * d * d + d * d + 4 * d * d + 4 * d * d)
    found = held(Autocast(np.dtype(np.float16))(plan, FLOAT32), *(place.shape for place in unit.places))
    assert found == b * s * d * (4 + 2 + 6 + 2 + 4 + 2 + 8 + 8) + 2 * b * a * s * s + copies
