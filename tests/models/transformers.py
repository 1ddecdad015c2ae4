"""Small transformers for tests: scenarios, tokens to train on, and what they come to, worked out by hand."""

from dataclasses import replace

import numpy as np

from tests.verdict.alive import Alive
from zerosim.scenario import Check, ModelKeys, Parallel, Scenario, Train, WorldKeys
from zerosim.scenario.data.dataset import Dataset
from zerosim.training.experiment import prepare
from zerosim.verdict.judged_run import run_locally

SECTIONS = {"world": WorldKeys, "model": ModelKeys, "train": Train, "parallel": Parallel, "check": Check}
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
    return run_locally(replace(prepared(dataset, **keys), keep_weights=True))


# Activations of GPT-2's shape in float32, one micro-batch at a time, without dropout.


def gpt2_most_alive(samples, sequence, width, heads, layers, vocabulary, *, inner=None, recomputed=()):
    """The most bytes of activations in a pass; `recomputed` has the numbers of layers that keep their input alone."""
    rows = samples * sequence
    pass_ = Gpt2(layers, rows, width, inner or 4 * width, vocabulary, 4 * heads * sequence**2, samples)
    pass_.run(recomputed)
    return pass_.most


def at_a_time(rows, width):
    """Bytes of scratch: of large arrays 2¹⁵ numbers are worked on at a time, in whole rows."""
    return 4 * (rows * width if rows * width <= 2**15 else 2**15 // width * width)


class Gpt2(Alive):
    """Arrays of one pass, each with its layer; a: bytes of a block's input, i: within its perceptron, v: of logits."""

    def __init__(self, layers, rows, width, inner, vocabulary, chances_of_a_sample, samples):
        super().__init__()
        self.last, self.a, self.i, self.v = layers + 1, 4 * rows * width, 4 * rows * inner, 4 * rows * vocabulary
        self.scratch, self.scratch_inside = at_a_time(rows, width), at_a_time(rows, inner)
        self.chances_of_a_sample, self.chances = chances_of_a_sample, samples * chances_of_a_sample

    def make(self, name, size, *scratch):
        """`name` is there while scratch is taken, and stays."""
        self.take(name, size)
        for number, each in enumerate(scratch):
            self.take(number, each)
        self.drop(*range(len(scratch)))

    def chain(self, layer, keeps, *made):
        """Arrays made one of the other: each is let go of after the next, unless it is kept; the last stays."""
        for number, (name, size, *scratch) in enumerate(made):
            self.make((name, layer), size, *scratch)
            if number and not keeps:
                self.drop((made[number - 1][0], layer))

    def forward(self, layer, keeps):
        a, i = self.a, self.i
        if layer == 0:
            self.chain(layer, False, ("rows", a), ("y", a))
        elif layer == self.last:
            self.chain(layer, keeps, ("h", a, self.scratch), ("y", self.v))
        else:
            self.chain(layer, keeps, ("h1", a, self.scratch), ("qkv", 3 * a))
            self.make(("attended", layer), a)
            self.make(("chances", layer), self.chances)
            if not keeps:
                self.drop(("chances", layer), ("qkv", layer))
            self.make(("added", layer), a)
            if not keeps:
                self.drop(("attended", layer))
            self.make(("x2", layer), a)
            self.drop(("added", layer))
            self.chain(layer, keeps, ("h2", a, self.scratch), ("c_fc", i), ("gelu", i), ("added", a))
            self.make(("y", layer), a)
            self.drop(("added", layer))
            if not keeps:
                self.drop(("x2", layer))

    def norm_backward(self, upstream):
        """Beside what came in are its result, the weight's terms, and of a piece x̂ and the work."""
        assert upstream in self.held
        self.take("terms", self.a)
        self.make("result", self.a, self.scratch, self.scratch)
        self.drop("terms", "result")

    def backward(self, layer):
        """From ("u", layer), ∂L/∂y, to that of its input, which is then let go of."""
        if layer == 0:
            self.drop(("u", 0))
        elif layer == self.last:
            self.make(("u", layer - 1), self.a)
            self.drop(("u", layer), ("h", layer))
            self.norm_backward(("u", layer - 1))
            self.drop(("y", layer - 1))
        else:
            self.block_backward(layer)
            self.held["u", layer - 1] = self.held.pop(("u", layer))
            self.drop(("y", layer - 1))

    def block_backward(self, layer):
        """Both branches are added to ∂L/∂y, which passes beside them."""
        self.make("of gelu", self.i)
        self.drop(("gelu", layer))
        self.make("of c_fc", self.i, self.scratch_inside, self.scratch_inside)
        self.drop("of c_fc", ("c_fc", layer))
        self.make("of h2", self.a)
        self.drop("of gelu", ("h2", layer))
        self.norm_backward("of h2")
        self.drop("of h2", ("x2", layer))
        self.make("of attended", self.a)
        self.drop(("attended", layer))
        self.make("of qkv", 3 * self.a, self.chances_of_a_sample, self.chances_of_a_sample)
        self.drop("of attended", ("qkv", layer), ("chances", layer))
        self.make("of h1", self.a)
        self.drop("of qkv", ("h1", layer))
        self.norm_backward("of h1")
        self.drop("of h1")

    def run(self, recomputed):
        for layer in range(self.last + 1):
            self.forward(layer, layer not in recomputed)
        self.take(("u", self.last), self.v)
        self.held["logits"] = self.held.pop(("y", self.last))
        for layer in reversed(range(self.last + 1)):
            if layer in recomputed:
                self.forward(layer, True)
                self.drop(("y", layer))
            self.backward(layer)
        self.drop("logits")
        assert not self.held
