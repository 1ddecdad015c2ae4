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
    last = len(widths) - 2
    units = units or [[layer] for layer in range(last + 1)]
    lowest = min((layer for layer in range(last + 1) if layer not in frozen), default=last + 1)
    keeping = {layer for unit in units if unit[-1] >= lowest for layer in unit}
    narrow, wide = size * rows, max(size, 4) * rows
    rounds = size == 2
    alive, widened = Alive(), [0]

    def activated(layer):
        return layer < last

    def needed(layer):
        """Whether backward reads the output of a layer: its own activation, or the next layer's linear map."""
        own = layer in keeping and activated(layer) and activation != "gelu"
        return own or (layer + 1 in keeping and layer + 1 <= last and layer + 1 not in frozen)

    def make(name, width):
        """An operation's result: in 16 bits a wide one is rounded."""
        if rounds:
            alive.take("wide", wide * width)
        alive.take(name, narrow * width)
        if rounds:
            alive.drop("wide")

    def buffers(*elements):
        if rounds:
            widened.append(4 * sum(elements))

    def forward(layer, j, before):
        inputs, outputs = widths[layer : layer + 2]
        buffers(rows * inputs, inputs * outputs + outputs)
        make(("z" if activated(layer) else "y", layer, j), outputs)
        if before is not None and not needed(before):
            alive.drop(("y", before, j))
        if not activated(layer):
            return
        buffers(rows * outputs)
        if activation == "gelu":
            make(("y", layer, j), outputs)
        elif rounds:
            alive.take(("y", layer, j), narrow * outputs)
        if activation != "gelu" and not rounds:
            alive.held["y", layer, j] = alive.held.pop(("z", layer, j))
        elif activation != "gelu" or layer not in keeping:
            alive.drop(("z", layer, j))

    def backward(layer, j):
        inputs, outputs = widths[layer : layer + 2]
        if activated(layer):
            scratch = {"relu": 0, "tanh": 1, "gelu": 2}[activation]
            buffers(rows * outputs, rows * outputs)
            for number in range(scratch):
                alive.take(number, wide * outputs)
            alive.drop(*range(scratch))
            if rounds:
                alive.take("rounded", narrow * outputs)
                alive.drop("rounded")
            alive.drop(("z" if activation == "gelu" else "y", layer, j))
        trains, passes_on = layer not in frozen, layer > lowest
        parameters = inputs * outputs + outputs
        buffers(rows * outputs, trains * (rows * inputs + parameters), passes_on * inputs * outputs)
        if passes_on:
            make(("u", layer - 1, j), inputs)
        alive.drop(("u", layer, j))
        of_the_next = layer - 1 in keeping and activation != "gelu"
        if trains and layer > 0 and not of_the_next:
            alive.drop(("y", layer - 1, j))

    left = []
    for _ in range(passes):
        for unit in units:
            for j in range(count):
                for before, layer in pairwise([None, *unit]):
                    forward(layer, j, before)
            if unit[0] > 0 and not needed(unit[0] - 1):
                alive.drop(*(("y", unit[0] - 1, j) for j in range(count)))
        for j in range(count):
            buffers(rows * widths[-1])
            if ("u", last, j) in left:
                alive.held["of the pass before", j] = alive.held.pop(("u", last, j))
            make(("u", last, j), widths[-1])
        alive.drop(*(name for name in list(alive.held) if name[0] == "of the pass before"))
        for unit in reversed(units):
            for j in range(count):
                for layer in reversed(unit):
                    if layer in keeping:
                        backward(layer, j)
        alive.drop(*(("y", last, j) for j in range(count)))
        left = [name for name in alive.held if name[0] == "u"]
        assert set(alive.held) == set(left)
    return alive.most, max(widened)
