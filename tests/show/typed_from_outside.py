"""A program of somebody else's, which mypy and pyright read strictly in `test_python_first.py`; it is never run."""

import numpy as np

import zerosim as zs
from zerosim.extend import Layer, Parameter, Variable, Weights, linear, optimizer, uniform


def head(w: Weights, x: Variable) -> Variable:
    return linear(x, w["weight"])


layer = Layer("head", "head.", (Parameter("weight", (10, 64), uniform(0.1)),), head)


@optimizer(decoupled=True)
def signs(g: np.ndarray, *, t: int, h: object, a: np.ndarray, b: np.ndarray) -> None:
    np.sign(g, out=a)


scenario = zs.Scenario(world=zs.World(ranks=2), train=zs.Train(steps=3), check=zs.Check(reference=True))
outcome = zs.run(scenario, set={"train.steps": 2})
rows: list[dict[str, object]] = outcome.rows()
document: dict[str, object] = outcome.document
planned: bool = zs.plan(scenario, ranks=[2, 4]).passed
proved: bool = zs.prove("ring.all_reduce", ranks=range(2, 5)).passed
zs.show("zero3").page().save("step.html")
kept: list[dict[str, object]] = zs.show("ring.all_reduce").rows()
