"""The public operations: all have an example, and what is told of them is what runs. Wrong ones of users are named."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import zerosim as zs
from tests.autograd import formulas as operations
from zerosim import extend
from zerosim.autograd.operations.table import EXAMPLES, OPERATIONS
from zerosim.commands.cli import main
from zerosim.plan.operations import figures

ROOT = Path(__file__).parents[2]
MINE = ROOT / "tests" / "brought" / "mine.py"


def test_every_operation_of_the_package_is_public_and_has_an_example():
    assert sorted(OPERATIONS) == sorted(name.partition(".")[2] for name in operations.OPERATIONS) == sorted(EXAMPLES)
    assert [name for name in OPERATIONS if not hasattr(extend, name)] == []
    assert [name for name in OPERATIONS if name not in extend.__all__] == []


def test_gradients_and_laws_of_all_hold(capsys, tmp_path):
    assert main(["check", "--json", str(tmp_path / "found.json")]) == 0
    claims = [json.loads(line) for line in (tmp_path / "found.json").read_text().splitlines()]
    assert [claim["part"] for claim in claims if claim["state"] == "holds"] == list(OPERATIONS)
    assert f"{len(OPERATIONS)} of {len(OPERATIONS)} operations have the gradients" in capsys.readouterr().out


def test_a_wrong_one_is_named(capsys, monkeypatch):
    monkeypatch.setitem(OPERATIONS, "relu", OPERATIONS["tanh"])
    monkeypatch.setattr(np, "tanh", lambda x, out: np.multiply(x, 0.5, out=out))
    assert main(["check"]) == 1
    assert "relu: does not hold" in (printed := capsys.readouterr().out)
    assert "∂L/∂x[" in printed


@pytest.mark.parametrize("wrong", [{"passes": ("z",)}, {"needs": {"z": ()}}, {"needs": {"x": ("z",)}}], ids=str)
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


def test_operations_of_a_file_are_listed_too(capsys):
    assert main(["check", f"{MINE}:swish"]) == 0
    assert re.search(r"^swish +x +48 ", capsys.readouterr().out, re.M)


OWN = """
import numpy as np
from zerosim.extend import Operation

def halved_forward(x, *, empty):
    y = empty(x.shape, x.dtype)
    np.multiply(x, 0.5, out=y)
    return y

def halved_backward(upstream, into, *, empty):
    np.multiply(upstream, 0.5, out=into["x"])

halved = Operation(halved_forward, halved_backward, {"x": ()})
EXAMPLES = {"halved": ((3, 4),)}
KEPT = []
"""


PAIRED = """
import numpy as np
from zerosim.extend import Operation

def flat_forward(x, *, empty):
    return x[:1].reshape(-1)

def flat_backward(upstream, into, *, empty):
    into["x"][...] = 0.0
    into["x"][0] = upstream

flat = Operation(flat_forward, flat_backward, {"x": ()})

def paired_forward(x, other, *, empty):
    y, saved = empty(x.shape, x.dtype), empty(x.shape, x.dtype)
    np.multiply(x, other, out=y)
    saved[...] = other
    return y, saved

def paired_backward(upstream, into, *, empty, saved, x=None):
    if "x" in into:
        np.multiply(upstream, saved, out=into["x"])
    if "other" in into:
        np.multiply(upstream, x, out=into["other"])

paired = Operation(paired_forward, paired_backward, {"x": (), "other": ("x",)})
EXAMPLES = {"flat": ((3, 4),), "paired": ((3, 4), (3, 4))}
"""


@pytest.mark.parametrize(("old", "new", "words"), [
    ("", "", "paired: holds"),
    ("return y, saved", "return y", "paired: forward returns 1 arrays: return y, and saved if, and only if"),
    ("return y, saved", "return y, (saved, x)", "paired: forward returns tuple as saved; return y, or y and saved"),
    ("return y, saved", "return y, 1.0 * other", "paired: forward returns 96 bytes as saved that empty did not"),
    ("return y, saved", "return y, other.reshape(-1)", "paired: forward saves a view of other, which would keep all"),
    ("other", "weight", "paired: forward saves 96 bytes that it computes of weight alone, weights that Stage III"),
    ('{"x": ()}', '{"x": ("x",)}', "got an unexpected keyword argument 'x'"),
    ('{"x": (), "o', '{"x": ("x",), "o', "paired: keeps x for ∂L/∂x, which does not read it: 96 bytes; leave it"),
    ('"other" in into:', '"other" in into and "x" in into:', "paired: ∂L/∂other differs if no other gradient is"),
    ("np.multiply(upstream, x,", "x *= upstream\n        np.multiply(1.0, x,", "paired: backward writes to x; write"),
])
def test_what_is_wrong_with_what_an_operation_keeps_is_named(old, new, words, tmp_path, capsys):
    check_named(PAIRED, old, new, words, tmp_path, capsys)


@pytest.mark.parametrize(("old", "new", "words"), [
    ("", "", "halved: holds"),
    ("    np.multiply(x, 0.5, out=y)", "    x *= 0.5\n    y[...] = x", "forward writes to its input x; write"),
    ("    np.multiply(x, 0.5, out=y)", "    y[1:] = 0.5 * x[1:]", "forward leaves elements of y unwritten or NaN"),
    ("    return y", "    return 0.5 * x", "halved: forward returns 96 bytes as y that empty did not allocate"),
    ("np.multiply(x, 0.5, out=y)", "y.reshape(-1)[...] = 0.5 * x.ravel(order='K')",
     "halved: y differs from that of the same numbers in C order (transposed inputs)"),
    ('np.multiply(upstream, 0.5, out=into["x"])', 'upstream *= 0.5\n    into["x"] = upstream',
     "halved: backward writes to upstream; write to into, and to arrays of empty"),
    ('{"x": ()}', '{"x": ("y",)}', "halved_backward() got an unexpected keyword argument 'y'"),
    ("np.multiply(x, 0.5, out=y)", "y[...] = np.where(x > 0, 0.5 * x, 0.5 * x)",
     "halved: a plan runs it on shapes, without numbers: line 7, y[...] = np.where"),
    ("upstream, 0.5,", "upstream, 0.6,", "halved: ∂L/∂x[0, 0] is "),
    ("(upstream, into, *, empty)", "(upstream, into, *, empty, x)", "missing 1 required keyword-only argument: 'x'"),
])
def test_what_is_wrong_with_an_operation_of_ones_own_is_named(old, new, words, tmp_path, capsys):
    check_named(OWN, old, new, words, tmp_path, capsys)


def check_named(text, old, new, words, folder, capsys):
    assert old in text
    (folder / "own.py").write_text(text.replace(old, new) if old else text)
    holds = words.endswith(": holds")
    assert main(["check", str(folder / "own.py")]) == (not holds)
    printed = capsys.readouterr().out
    for name in ("halved: ", "paired: "):
        if words.startswith(name) and not holds:
            assert f"{name}does not hold" in printed
            words = words.removeprefix(name)
    assert words in printed
