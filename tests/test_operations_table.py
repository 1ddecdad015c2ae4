"""The public operations: all have an example, and what is told of them is what runs. Wrong ones of users are named."""

import json
from dataclasses import replace
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


@pytest.mark.parametrize("wrong", [{"over": "z"}, {"aliases": "z"}, {"needs": {"x": ("z",)}}], ids=str)
def test_a_declaration_about_what_is_no_input_is_refused(wrong):
    with pytest.raises(zs.ZerosimError, match="relu declares 'z', which is no input of its forward; those are x"):
        replace(OPERATIONS["relu"], **wrong)


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
KEPT = []
"""


VIEWING = """
import numpy as np
from zerosim.extend import Operation

def flat_forward(x, *, out, empty):
    return x.reshape(-1)

flat = Operation(flat_forward, None, lambda x: (x[0] * x[1],), {}, aliases="x", copies=True,
                 passed={"x": lambda upstream, x: upstream.reshape(x)})

def paired_forward(x, other, *, out, empty):
    np.multiply(x, other, out=out)
    saved = empty(x.shape, x.dtype)
    saved[...] = other
    return saved

def paired_backward(upstream, into, *, empty, saved, x=None):
    if "x" in into:
        np.multiply(upstream, saved, out=into["x"])
    if "other" in into:
        np.multiply(upstream, x, out=into["other"])

paired = Operation(paired_forward, paired_backward, lambda x, other: x, {"x": (), "other": ("x",)})
EXAMPLES = {"flat": ((3, 4),), "paired": ((3, 4), (3, 4))}
"""


@pytest.mark.parametrize(("old", "new", "words"), [
    ("", "", "flat: holds\npaired: holds"),
    (", copies=True", "", "flat: returns a copy of its input x that it declares as a view; write out and leave "
                          "aliases='x' out, or declare copies=True (transposed inputs)"),
    ("upstream, x: upstream.reshape(x)", "upstream, x: 1.0 * upstream.reshape(x)",
     "flat: passes a copy of upstream on to x; return upstream or a view of it, or write ∂L/∂x in backward"),
    ("    return saved", "    return None", "paired: forward returns None, and its backward reads saved; return"),
    ("    return saved", "    return saved, x", "paired: saves a tuple; return one array of empty(shape, dtype)"),
    ("    return saved", "    return other.T", "keeps its input other, which its declaration leaves out: 96 bytes"),
    ("    return saved", "    return 1.0 * other", "paired: saves 96 bytes that empty did not allocate; copy them to"),
    ('{"x": ()', '{"x": ("x",)', "paired: keeps x for ∂L/∂x, which does not read it: 96 bytes; leave it out of needs"),
    ('"other" in into:', '"other" in into and "x" in into:', "paired: ∂L/∂other differs if no other gradient is"),
    ("np.multiply(upstream, x,", "x *= upstream\n        np.multiply(1.0, x,", "paired: backward writes to x; write"),
    ("np.multiply(x, other, out=out)", "np.multiply(x, other if x is not other else 1.0, out=out)",
     "paired: y differs from that of the same numbers in C order (shared inputs)"),
    ("upstream, saved, out=into", "upstream, saved if upstream.strides[0] else 0.0, out=into",
     "paired: ∂L/∂x differs from that of the same numbers in C order (broadcast inputs)"),
])
def test_what_an_operation_keeps_aliases_or_copies_undeclared_is_named(old, new, words, tmp_path, capsys):
    check_named(VIEWING, old, new, words, tmp_path, capsys)


@pytest.mark.parametrize(("old", "new", "words"), [
    ("", "", "halved: holds"),
    ("    np.multiply(x, 0.5, out=out)", "    x *= 0.5\n    out[...] = x", "forward writes to its input x; write"),
    ("    np.multiply(x, 0.5, out=out)", "    out[...] = 0\n    out += 0.5 * x", "halved: y changes when it is"),
    ('np.multiply(upstream, 0.5, out=into["x"])', 'into["x"][...] = 0\n    into["x"] += 0.5 * upstream',
     "halved: ∂L/∂x changes when ∂L/∂x is written over upstream: leave over_upstream='x' out"),
    ("    np.multiply(x, 0.5, out=out)", "    return np.multiply(x, 0.5, out=out)", "halved: holds"),
    ("    np.multiply(x, 0.5, out=out)", "    return x * 0.5 if KEPT else x",
     "halved: returns a view of its input x that it declares as a copy; write out, or declare aliases"),
    ("    np.multiply(x, 0.5, out=out)", "    np.multiply(x, 0.5, out=out)\n    KEPT.append(x)",
     "halved: keeps its input x, which its declaration leaves out: 96 bytes; name it in needs and keep no reference"),
    ("    np.multiply(x, 0.5, out=out)", "    np.multiply(x, 0.5, out=out)\n    KEPT.append(out[1:])",
     "halved: keeps its output y, which its declaration leaves out: 96 bytes"),
    ("    np.multiply(x, 0.5, out=out)", "    np.multiply(x, 0.5, out=out)\n    KEPT.append(empty(2, 'f8'))",
     "halved: keeps 16 bytes that it does not return; return what backward needs, as saved"),
    ("np.multiply(x, 0.5, out=out)", "out.reshape(-1)[...] = 0.5 * x.ravel(order='K')",
     "halved: y differs from that of the same numbers in C order (transposed inputs)"),
    ('np.multiply(upstream, 0.5, out=into["x"])', 'upstream *= 0.5\n    into["x"][...] = upstream',
     "halved: backward writes to upstream; write to into, to arrays of empty, and to inputs that spoils names"),
    ('{"x": ()}', '{"x": ("y",)}', "halved_backward() got an unexpected keyword argument 'y'"),
    ("np.multiply(x, 0.5, out=out)", "out[...] = np.where(x > 0, 0.5 * x, 0.5 * x)",
     "halved: a plan runs it on shapes, without numbers: line 6, out[...] = np.where"),
    ("upstream, 0.5,", "upstream, 0.6,", "halved: ∂L/∂x[0, 0] is "),
    ("(upstream, into, *, empty)", "(upstream, into, *, empty, x)", "missing 1 required keyword-only argument: 'x'"),
])
def test_what_is_wrong_with_an_operation_of_ones_own_is_named(old, new, words, tmp_path, capsys):
    check_named(OWN, old, new, words, tmp_path, capsys)


def check_named(text, old, new, words, folder, capsys):
    assert old in text
    (folder / "own.py").write_text(text.replace(old, new) if old else text)
    assert main(["check", str(folder / "own.py")]) == (not words.endswith(": holds"))
    assert words in capsys.readouterr().out
