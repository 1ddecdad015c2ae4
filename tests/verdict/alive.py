"""What a multi-layer perceptron has alive in one pass forward and backward, written from how backward is derived.

A second ledger, by name of each array, which knows neither graph nor tape: only that a linear map needs its input where
its weights are trained, relu and tanh need their output, gelu its input; and that numbers of 16 bits are widened for
each operation and rounded after it.
"""

from itertools import pairwise


class Alive:
    """Arrays by name, and the most elements times bytes that there were of them."""

    def __init__(self):
        self.held, self.most = {}, 0

    def take(self, name, held_bytes):
        assert name not in self.held
        self.held[name] = held_bytes
        self.most = max(self.most, sum(self.held.values()))

    def drop(self, *names):
        for name in names:
            del self.held[name]


def most_alive(widths, activation, rows, count, *, units=None, frozen=(), size=4, passes=1):
    """The most bytes of activations and of buffers; `count` micro-batches of `rows` samples go together."""
    pass_ = Pass(widths, activation, rows, count, units or [[layer] for layer in range(len(widths) - 1)], frozen, size)
    for _ in range(passes):
        pass_.run()
    return pass_.most, max(pass_.widened)


class Pass(Alive):
    """One pass after another, on arrays that are called z (of a linear map), y (of a layer) and u (∂L/∂y)."""

    def __init__(self, widths, activation, rows, count, units, frozen, size):
        super().__init__()
        self.widths, self.activation, self.rows, self.count = widths, activation, rows, count
        self.units, self.frozen, self.last = units, frozen, len(widths) - 2
        self.lowest = min((layer for layer in range(self.last + 1) if layer not in frozen), default=self.last + 1)
        self.keeping = {layer for unit in units if unit[-1] >= self.lowest for layer in unit}
        self.narrow, self.wide, self.rounds = size * rows, max(size, 4) * rows, size == 2
        self.widened = [0]

    def needed(self, layer):
        """Whether backward reads the output of a layer: its own activation, or the next layer's linear map."""
        own = layer in self.keeping and layer < self.last and self.activation != "gelu"
        return own or (layer + 1 in self.keeping and layer + 1 <= self.last and layer + 1 not in self.frozen)

    def make(self, name, width):
        """An operation's result: in 16 bits a wide one is rounded."""
        if self.rounds:
            self.take("wide", self.wide * width)
        self.take(name, self.narrow * width)
        if self.rounds:
            self.drop("wide")

    def buffers(self, *elements):
        if self.rounds:
            self.widened.append(4 * sum(elements))

    def forward(self, layer, j, before):
        inputs, outputs = self.widths[layer : layer + 2]
        self.buffers(self.rows * inputs, inputs * outputs + outputs)
        self.make(("z" if layer < self.last else "y", layer, j), outputs)
        if before is not None and not self.needed(before):
            self.drop(("y", before, j))
        if layer < self.last:
            self.buffers(self.rows * outputs)
            self.activate(layer, j, outputs)

    def activate(self, layer, j, outputs):
        self.make(("y", layer, j), outputs)
        if self.activation != "gelu" or layer not in self.keeping:
            self.drop(("z", layer, j))

    def backward(self, layer, j):
        inputs, outputs = self.widths[layer : layer + 2]
        if layer < self.last:
            self.activation_backward(layer, j, outputs)
        trains, passes_on = layer not in self.frozen, layer > self.lowest
        parameters = inputs * outputs + outputs
        self.buffers(
            self.rows * outputs, trains * (self.rows * inputs + parameters), passes_on * inputs * outputs)
        if passes_on:
            self.make(("u", layer - 1, j), inputs)
        self.drop(("u", layer, j))
        of_the_next = layer - 1 in self.keeping and self.activation != "gelu"
        if trains and layer > 0 and not of_the_next:
            self.drop(("y", layer - 1, j))

    def activation_backward(self, layer, j, outputs):
        """The result lies beside what came in, and while it is made a slope, and for gelu a tanh."""
        scratch = range({"relu": 0, "tanh": 1, "gelu": 2}[self.activation])
        self.buffers(self.rows * outputs, self.rows * outputs)
        self.take("made", self.wide * outputs)
        for number in scratch:
            self.take(number, self.wide * outputs)
        self.drop(*scratch)
        if self.rounds:
            self.take("rounded", self.narrow * outputs)
            self.drop("rounded")
        self.drop("made")
        self.drop(("z" if self.activation == "gelu" else "y", layer, j))

    def run(self):
        """Forward, the loss and backward; ∂L/∂y of the last pass is there until this one's is, if nobody took it."""
        for unit in self.units:
            for j in range(self.count):
                for before, layer in pairwise([None, *unit]):
                    self.forward(layer, j, before)
            if unit[0] > 0 and not self.needed(unit[0] - 1):
                self.drop(*(("y", unit[0] - 1, j) for j in range(self.count)))
        before = {name: self.held.pop(name) for name in list(self.held) if name[0] == "u"}
        self.held |= {("before", *name): held_bytes for name, held_bytes in before.items()}
        for j in range(self.count):
            self.buffers(self.rows * self.widths[-1])
            self.make(("u", self.last, j), self.widths[-1])
        self.drop(*(("before", *name) for name in before))
        for unit in reversed(self.units):
            for j in range(self.count):
                for layer in reversed(unit):
                    if layer in self.keeping:
                        self.backward(layer, j)
        self.drop(*(("y", self.last, j) for j in range(self.count)))
        assert {name[0] for name in self.held} <= {"u"}
