"""A model that tensor ranks split, and what is forgotten in it."""

from zerosim.extend import (
    Cut,
    Layer,
    Parameter,
    add_bias,
    copy_to,
    gather_from,
    join_from,
    linear,
    reduce_from,
    relu,
    scatter_to,
    tanh,
    uniform,
)


def net(task, *, inner=8, forget=""):
    """A layer, a pair of cut products, and a pair between which each rank has a piece of the features."""
    tensor, width, begins = task.parallel.tensor, task.inputs, uniform(task.inputs**-0.5)
    mine = tensor.of(inner)

    def first(w, x):
        return tanh(linear(x, w["weight"], w["bias"]))

    def pair(w, x):
        x = x if forget == "copy_to" else copy_to(x, group=tensor)
        y = linear(relu(linear(x, w["up"], w["up_bias"])), w["down"])
        y = y if forget == "reduce_from" else reduce_from(y, group=tensor)
        y = reduce_from(y, group=tensor) if forget == "once" else y
        return add_bias(y, w["down_bias"])

    def last(w, x):
        moved = tanh(add_bias(scatter_to(x, group=tensor, axis=1), w["moved"]))
        joined = (gather_from if forget == "join_from" else join_from)(moved, group=tensor, axis=1)
        return linear(joined, w["weight"], w["bias"])

    return [
        Layer("first", "first.", (
            Parameter("weight", (width, width), begins), Parameter("bias", (width,), begins)), first),
        Layer("pair", "pair.", (
            Parameter("up", (mine, width), begins, cut=Cut(tensor, 0)),
            Parameter("up_bias", (mine,), begins, cut=Cut(tensor, 0)),
            Parameter("down", (inner, mine), begins, cut=Cut(tensor, 1)),
            Parameter("down_bias", (inner,), begins)), pair),
        Layer("last", "last.", (
            Parameter("moved", (mine,), begins, cut=Cut(tensor, 0)),
            Parameter("weight", (task.outputs, inner), begins), Parameter("bias", (task.outputs,), begins)), last),
    ]
