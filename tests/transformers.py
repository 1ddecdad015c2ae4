"""Small transformers for tests: scenarios, tokens to train on, and what they come to, worked out by hand."""

import numpy as np

from tests.alive import Alive
from zerosim.data.dataset import Dataset
from zerosim.scenario import Check, Model, Parallel, Scenario, Train, World
from zerosim.training.experiment import prepare
from zerosim.training.run import Silent
from zerosim.verdict.run import run_locally

SECTIONS = {"world": World, "model": Model, "train": Train, "parallel": Parallel, "check": Check}
SMALL = {
    "kind": "transformer", "layers": 2, "width": 6, "heads": 3, "vocabulary": 7, "sequence": 5, "steps": 2,
    "micro_batch": 2, "micro_batches": 4, "ranks": 2, "learning_rate": 0.05,
}


def tokens(vocabulary=7, sequence=5, samples=24, seed=0):
    """Random sequences, each of which is due one token later."""
    random = np.random.default_rng(seed)
    made = random.integers(0, vocabulary, (samples, sequence + 1))
    x, y = made[:, :-1].astype(np.int8), made[:, 1:].astype(np.int8)
    return Dataset(x, y, x[:4].astype(np.int64), y[:4].astype(np.int64), vocabulary, "abcdefghijklm"[:vocabulary])


def scenario(**keys):
    """A scenario of a small transformer; each key goes to the section that has it."""
    said = SMALL | keys
    built = {}
    for name, section in SECTIONS.items():
        built[name] = section(**{key: said.pop(key) for key in [*said] if key in section.__dataclass_fields__})
    return Scenario(**built, **said)


def prepared(dataset=None, **keys):
    built = scenario(**keys)
    return prepare(built, dataset or tokens(built.model.vocabulary, built.model.sequence))


def outcome(dataset=None, **keys):
    return run_locally(prepared(dataset, **keys), Silent(), keep_weights=True)


# Parameters.


def counts(model):
    """Of the embedding, a block, and the head, as they are counted in the literature."""
    d, v, s, inner = model.width, model.vocabulary, model.sequence, model.inner
    if model.architecture == "gpt2":
        inner = inner or 4 * d
        attention, perceptron, norms = (3 * d * d + 3 * d) + (d * d + d), (d * inner + inner) + (inner * d + d), 2 * 2 * d
        first, last = v * d + s * d, 2 * d
    else:
        inner = inner or -(-8 * d // 3)
        keys = d // model.heads * (model.key_value_heads or model.heads)
        attention, perceptron, norms = d * d + 2 * d * keys + d * d, 3 * d * inner, 2 * d
        first, last = v * d, d
    return first, attention + perceptron + norms, last + (0 if model.tied_embeddings else v * d)


def unit_counts(model):
    """Of each unit, where each layer is one, with what of it goes forward: how often, and whether it is trained."""
    first, block, last = counts(model)
    frozen = set(model.frozen)
    blocks = [(block, 1, layer not in frozen) for layer in range(1, model.layers + 1)]
    if model.tied_embeddings:
        return [(first + last, 2, 0 not in frozen), *blocks]
    return [(first, 1, 0 not in frozen), *blocks, (last, 1, model.layers + 1 not in frozen)]


# Activations of GPT-2's shape in float32, one micro-batch at a time, without dropout.


def gpt2_most_alive(samples, sequence, width, heads, layers, vocabulary, *, inner=None, recomputed=()):
    """The most bytes of activations in a pass; `recomputed` has the numbers of layers that keep their input alone."""
    a = 4 * samples * sequence * width
    i, v = a // width * (inner or 4 * width), a // width * vocabulary
    chances = 4 * samples * heads * sequence**2
    alive = Alive()

    def make(name, size, *scratch):
        """`name` is there while scratch is taken, and stays."""
        alive.take(name, size)
        for number, each in enumerate(scratch):
            alive.take(number, each)
        alive.drop(*range(len(scratch)))

    def norm_backward(upstream):
        """Its result lies over what came in; x̂ stays while a square, and then the work, come and go."""
        assert upstream in alive.held
        alive.take("x hat", a)
        make("square or work", a)
        alive.drop("square or work", "x hat")

    def forward(layer, keeps):
        """A layer's output, y; what it keeps has its number."""
        def let_go(name):
            if not keeps:
                alive.drop((name, layer))

        if layer == 0:
            make(("y", 0), a)
        elif layer == layers + 1:
            make(("h", layer), a, a)
            make(("y", layer), v)
            let_go("h")
        else:
            make(("h1", layer), a, a)
            make(("qkv", layer), 3 * a)
            let_go("h1")
            make(("attended", layer), a)
            make(("chances", layer), chances)
            let_go("chances")
            let_go("qkv")
            make(("x2", layer), a)              # the projection, to which x is added in place
            let_go("attended")
            make(("h2", layer), a, a)
            make(("c_fc", layer), i)
            let_go("h2")
            make(("gelu", layer), i)
            let_go("c_fc")
            make(("y", layer), a)               # likewise x2
            let_go("gelu")
            let_go("x2")

    def backward(layer):
        """From ("u", layer), ∂L/∂y, to that of its input."""
        below = ("u", layer - 1)
        if layer == 0:
            return alive.drop(("u", 0))
        if layer == layers + 1:
            make(below, a)
            alive.drop(("u", layer), ("h", layer))
            norm_backward(below)
        else:
            make("of gelu", i)
            alive.drop(("gelu", layer))
            alive.take("t", i)
            make("slope", i)
            alive.drop("t", "slope", ("c_fc", layer))
            make("of h2", a)
            alive.drop("of gelu", ("h2", layer))
            norm_backward("of h2")
            alive.drop("of h2", ("x2", layer))  # added to ∂L/∂y, which passes beside
            make("of attended", a)
            alive.drop(("attended", layer))
            make("of qkv", 3 * a, chances // samples, chances // samples)
            alive.drop("of attended", ("qkv", layer), ("chances", layer))
            make("of h1", a)
            alive.drop("of qkv", ("h1", layer))
            norm_backward("of h1")
            alive.drop("of h1")
            alive.held[below] = alive.held.pop(("u", layer))
        return alive.drop(("y", layer - 1))

    for layer in range(layers + 2):
        forward(layer, layer not in recomputed)
    alive.take(("u", layers + 1), v)
    for layer in reversed(range(layers + 2)):
        if layer in recomputed:
            last = layer == layers + 1
            if last:
                alive.held["logits"] = alive.held.pop(("y", layer))
            forward(layer, True)
            alive.drop(("y", layer))
            if last:
                alive.held["y", layer] = alive.held.pop("logits")
        backward(layer)
    alive.drop(("y", layers + 1))
    assert not alive.held
    return alive.most
