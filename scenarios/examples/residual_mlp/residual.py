"""A residual perceptron: every block adds to its input what two linear maps make of its norm."""

from zerosim.extend import Layer, Parameter, constant, layer_norm, linear, relu, uniform


def block(w, x):
    """y = x + W₂ relu(W₁ norm(x) + b₁)."""
    inner = relu(linear(layer_norm(x, w["scale"], w["shift"]), w["inner"], w["bias"]))
    return x + linear(inner, w["outer"])


def head(w, x):
    """One output for each class."""
    return linear(x, w["weight"], w["bias"])


def residual(task, *, width=32, blocks=2):
    """As many blocks as asked for, and a head; a block is as wide at both ends as the data."""
    d, begins = task.inputs, uniform(task.inputs**-0.5)
    parameters = (
        Parameter("scale", (d,), constant(1.0), decays=False),
        Parameter("shift", (d,), constant(0.0), decays=False),
        Parameter("inner", (width, d), begins),
        Parameter("bias", (width,), constant(0.0), decays=False),
        Parameter("outer", (d, width), uniform(width**-0.5)),
    )
    last = (Parameter("weight", (task.outputs, d), begins), Parameter("bias", (task.outputs,), begins, decays=False))
    return [
        *(Layer(f"blocks.{n}", f"blocks.{n}.", parameters, block) for n in range(blocks)),
        Layer("head", "head.", last, head),
    ]
