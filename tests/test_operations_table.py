"""The public operations: all have an example, and what is told of them is what runs. Wrong ones of users are named."""

import json
from pathlib import Path

import numpy as np
import pytest

import zerosim as zs
from tests import operations
from zerosim import extend
from zerosim.autograd.operations.table import EXAMPLES, OPERATIONS
from zerosim.cli import main
from zerosim.plan.operations import figures

ROOT = Path(__file__).parents[1]
MINE = ROOT / "tests" / "brought" / "mine.py"


def test_every_operation_of_the_package_is_public_and_has_an_example():
    assert sorted(OPERATIONS) == sorted(name.partition(".")[2] for name in operations.OPERATIONS) == sorted(EXAMPLES)
    assert [name for name in OPERATIONS if not hasattr(extend, name)] == []
    assert [name for name in OPERATIONS if name not in extend.__all__] == []


def test_gradients_and_laws_of_all_hold(capsys, tmp_path):
    assert main(["check", "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert [part["name"] for part in found["parts"] if part["holds"]] == list(OPERATIONS)
    assert f"{len(OPERATIONS)} of {len(OPERATIONS)} operations have the gradients" in capsys.readouterr().out


def test_a_wrong_one_is_named(capsys, monkeypatch):
    monkeypatch.setitem(OPERATIONS, "relu", OPERATIONS["tanh"])
    monkeypatch.setattr(np, "tanh", lambda x, out: np.multiply(x, 0.5, out=out))
    assert main(["check"]) == 1
    assert "relu: ∂L/∂x[" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "keeps", "kept", "products", "moves"), [
    ("linear", ("x",), 4 * 64, (2 * 32 * 16, 4 * 32 * 16), (4 * (64 + 128 + 8 + 32), 4 * (32 + 2 * (64 + 128) + 8))),
    ("causal_attention", ("q", "k", "v", "saved"), 4 * (192 + 96 + 96 + 2 * 4 * 12 * 12), (9216, 18432), (2304, 3840)),
    ("add", (), 0, (0, 0), (4 * 3 * 64, 0)), ("dropout", (), 0, (0, 0), (512, 512)),
    ("gather_rows", ("indices",), 8 * 8, (0, 0), (2 * 4 * 128, 4 * (128 + 8 + 96))),
    ("top_indices", (), 0, (0, 0), (4 * (64 + 8), 0)), ("reshape", (), 0, (0, 0), (0, 0)),
])
def test_figures_by_hand(name, keeps, kept, products, moves):
    found = figures(OPERATIONS[name], EXAMPLES[name])
    assert (found.keeps, found.kept_bytes) == (keeps, kept)
    assert (found.forward_products, found.backward_products) == products
    assert (found.forward_moves, found.backward_moves) == moves


def test_operations_of_a_file_are_told_too():
    found = zs.operations(str(MINE))
    assert [(row["name"], row["keeps"], row["kept_bytes"]) for row in found.rows()] == [("swish", ("x",), 48)]
    assert repr(found) == "<1 operations: swish>"
    with pytest.raises(zs.ZerosimError, match="declares no operation for which its EXAMPLES has shapes"):
        zs.operations(str(ROOT / "scenarios" / "examples" / "lion" / "lion.py"))


OWN = """
import numpy as np
from zerosim.extend import Operation

def halved_forward(x, *, out, empty):
    np.multiply(x, 0.5, out=out)

def halved_backward(upstream, into, *, empty):
    np.multiply(upstream, 0.5, out=into["x"])

halved = Operation(halved_forward, halved_backward, lambda x: x, {"x": ()}, over="x", over_upstream="x")
EXAMPLES = {"halved": ((3, 4),)}
"""


@pytest.mark.parametrize(("old", "new", "words"), [
    ("", "", "halved: holds"),
    ("    np.multiply(x, 0.5, out=out)", "    x *= 0.5\n    out[...] = x", "forward writes to its input x; write"),
    ("    np.multiply(x, 0.5, out=out)", "    out[...] = 0\n    out += 0.5 * x", "halved: y changes when it is"),
    ('np.multiply(upstream, 0.5, out=into["x"])', 'into["x"][...] = 0\n    into["x"] += 0.5 * upstream',
     "halved: ∂L/∂x changes when ∂L/∂x is written over upstream: leave over_upstream='x' out"),
    ("np.multiply(x, 0.5, out=out)", "out[...] = np.where(x > 0, 0.5 * x, 0.5 * x)",
     "halved: a plan runs it on shapes, without numbers: line 6, out[...] = np.where"),
    ("upstream, 0.5,", "upstream, 0.6,", "halved: ∂L/∂x[0, 0] is "),
    ("(upstream, into, *, empty)", "(upstream, into, *, empty, x)", "missing 1 required keyword-only argument: 'x'"),
])
def test_what_is_wrong_with_an_operation_of_ones_own_is_named(old, new, words, tmp_path, capsys):
    assert old in OWN
    (tmp_path / "own.py").write_text(OWN.replace(old, new) if old else OWN)
    assert main(["check", str(tmp_path / "own.py")]) == (words != "halved: holds")
    assert words in capsys.readouterr().out
