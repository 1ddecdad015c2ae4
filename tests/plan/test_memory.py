"""The memory of model states by formula, against the figures in print and against real buffers, near and far."""

import json
import sys
from fractions import Fraction
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.variants import FAR
from tests.verdict.outcomes import outcome_of
from zerosim.commands.cli import main
from zerosim.stages import STAGES
from zerosim.verdict.model_states import PRECISIONS, formula, per_parameter, resting

GB = 10**9

stages = st.sampled_from(list(STAGES))
ranks = st.integers(1, 2000)
each = st.builds(per_parameter, st.sampled_from(list(PRECISIONS)), st.integers(0, 100))


def printed_json(capsys, *flags):
    assert main(["memory", *flags, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def lines(capsys, *flags):
    assert main(["memory", *flags]) == 0
    return capsys.readouterr().out.splitlines()


# Formulas


@given(stages, st.integers(1, 10**15), ranks, each)
def test_the_formula_in_letters_gives_the_figure(stage, psi, n, each):
    value = sum(
        Fraction(int(term.removesuffix("/N").removesuffix("Ψ")) * psi, n if "/N" in term else 1)
        for term in formula(stage, each).split(" + ")
    )
    assert value == resting(stage, psi, n, each).total


# Figures in print

FIGURE_1 = {"ddp": "120", "zero1": "31.4", "zero2": "16.6", "zero3": "1.9"}

TABLE_1 = """
1    | 120/120/120    | 2048/2048/2048 | 16000/16000/16000
4    | 52.5/41.3/30   | 896/704/512    | 7000/5500/4000
16   | 35.6/21.6/7.5  | 608/368/128    | 4750/2875/1000
64   | 31.4/16.6/1.88 | 536/284/32     | 4187/2218/250
256  | 30.4/15.4/0.47 | 518/263/8      | 4046/2054/62.5
1024 | 30.1/15.1/0.12 | 513/257/2      | 4011/2013/15.6
"""

TABLE_2 = """
1  | 64   | 2B  | 7.6B   | 14.4B  | 128B
2  | 128  | 4B  | 15.2B  | 28.8B  | 256B
4  | 256  | 8B  | 30.4B  | 57.6B  | 0.5T
8  | 512  | 16B | 60.8B  | 115.2B | 1T
16 | 1024 | 32B | 121.6B | 230.4B | 2T
"""


MIXED_ADAM = per_parameter("mixed", 12)


def rows_of(table):
    return [[cell.strip() for cell in line.split("|")] for line in table.strip().splitlines()]


def cut(value, decimals, up=Fraction(0)):
    return floor(value * 10**decimals + up) / 10**decimals


def test_the_formula_gives_the_papers_table_1():
    """GB on each rank, Stages I / II / III. The paper rounds the column 7.5B and truncates the other two."""
    for ranks, *cells in rows_of(TABLE_1):
        for billions, cell in zip((7.5, 128, 1000), cells, strict=True):
            sums = [resting(stage, int(billions * GB), int(ranks), MIXED_ADAM).total / GB for stage in list(STAGES)[1:]]
            assert cell == "/".join(f"{size:g}" for size in (
                cut(size, 1 if size >= 10 else 2, Fraction(1, 2)) if billions < 10 else
                cut(size, 0 if size >= 100 else 1) for size in sums))


def test_the_formula_gives_the_papers_table_2():
    """The largest model on ranks of 32 GB, 64 replicas: truncated to 0.1B, then times the degree of parallelism."""
    for degree, ranks, *cells in rows_of(TABLE_2):
        assert int(ranks) == 64 * int(degree)
        for stage, cell in zip(STAGES, cells, strict=True):
            billions = cut(32 / resting(stage, 1, 64, MIXED_ADAM).total, 1) * int(degree)
            assert cell == (f"{billions:g}B" if billions < 500 else f"{cut(billions / 1000, 1):g}T")


def test_figure_1_as_json_and_as_bars(capsys):
    flags = ["--parameters", "7.5e9", "--ranks", "64"]
    totals = [Fraction(stage["total_bytes"], GB) for stage in printed_json(capsys, *flags)["stages"]]
    assert [f"{cut(total, 1, Fraction(1, 2)):g}" for total in totals] == list(FIGURE_1.values())
    bars = [line.split()[-2] for line in lines(capsys, *flags) if line.rstrip().endswith("%")]
    assert bars == ["█" * 7 + "▓" * 7 + "░" * 42, "█" * 7 + "▓" * 7 + "░", "█" * 7 + "▓░", "█▓░"]


# The command


@pytest.mark.parametrize("count", ["7.5e9", "7.5b", "7500M", "7500000000"])
def test_json_has_whole_numbers_as_ints_and_others_as_floats(capsys, count):
    document = printed_json(capsys, "--parameters", count, "--ranks", "64")
    assert (document["schema"], document["parameters"], document["ranks"]) == ("zerosim.memory/1", 7_500_000_000, 64)
    assert [stage["stage"] for stage in document["stages"]] == list(STAGES)
    assert document["stages"][1] == {
        "stage": "zero1", "parameters_bytes": 15_000_000_000, "gradients_bytes": 15_000_000_000,
        "optimizer_bytes": 1_406_250_000, "total_bytes": 31_406_250_000, "formula": "4Ψ + 12Ψ/N"}
    assert {type(figure) for stage in document["stages"] for figure in stage.values()} == {str, int}
    assert printed_json(capsys, "--parameters", "10", "--ranks", "3")["stages"][3]["total_bytes"] == 160 / 3


@pytest.mark.parametrize(("flags", "totals"), [
    (["--precision", "fp32"], [16, 10, 7, 4]), (["--precision", "fp32", "--optimizer", "sgd"], [8, 8, 5, 2]),
    (["--optimizer", "adamw"], [16, 7, 5.5, 4])])
def test_flags_change_bytes_per_parameter(capsys, flags, totals):
    document = printed_json(capsys, "--parameters", "1000", "--ranks", "4", *flags)
    assert [stage["total_bytes"] for stage in document["stages"]] == [1000 * total for total in totals]


@pytest.mark.parametrize("flags", [
    ["--parameters", "1e15", "--ranks", "1000000000"], ["--parameters", "999999999999", "--ranks", "999"],
    ["--parameters", "1", "--ranks", "1"], ["--parameters", "7.5e9", "--ranks", "4,64,1024"],
    ["--parameters", "7.5B", "--ranks", "64", "--offload-optimizer", "host", "--offload-parameters", "host"],
], ids=" ".join)
def test_everything_drawn_fits_40_to_80_columns_unbroken(capsys, monkeypatch, flags):
    """In 40 columns every number is there; in 80 every line that ends with one is as in 200."""
    monkeypatch.setenv("COLUMNS", "200")
    wide = [line.split() for line in lines(capsys, *flags)]
    for columns in (40, 60, 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        narrow = lines(capsys, *flags)
        assert min(len(line) for line in narrow if line.strip()) > 2
        assert max(map(len, narrow)) <= columns
        assert "…" not in "".join(narrow)
        numbers = {word for line in narrow for word in line.split() if word[0].isdigit()}
        assert numbers <= {word for line in wide for word in line}


@pytest.mark.parametrize(("flags", "message"), [
    ("--ranks 4", "one of the arguments --parameters --model is required"),
    ("--model layers=2,vocabulary=5,sequence=4", "the following arguments are required: --ranks"),
    ("--model layers=2 --ranks 2", "give vocabulary and sequence"),
    ("--model layer=2 --ranks 2", "unknown key 'layer' in [model]; did you mean 'layers'?"),
    ("--model layers --ranks 2", 'an override is written section.key=value, found "layers"'),
    ("--model width=10,heads=3,vocabulary=5,sequence=4 --ranks 2", "heads: 3 heads must divide"),
    ("--parameters 7,5 --ranks 4", "found '7,5'; give a whole number"),
    ("--parameters 1e99 --ranks 4", "from 1 to 1e+15"),
    ("--parameters 7B --ranks 0", "found '0'; give a whole number from 1"),
])
def test_wrong_flags_exit_with_2_and_say_what_to_give(capsys, flags, message):
    with pytest.raises(SystemExit) as caught:
        sys.exit(main(["memory", *flags.split()]))
    assert caught.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


LLAMA = "architecture=llama,vocabulary={},layers=32,width=4096,heads=32,sequence=2048"


@pytest.mark.parametrize(("shape", "count"), [
    ("layers=12,width=768,heads=12,vocabulary=50257,sequence=1024,tied_embeddings=true", 124_439_808),
    (LLAMA.format(128256) + ",inner=14336,key_value_heads=8", 8_030_261_248),
])
def test_a_shape_has_the_parameters_that_others_count(capsys, shape, count):
    document = printed_json(capsys, "--model", shape, "--ranks", "64")
    assert document["parameters"] == count
    assert document["stages"][3]["total_bytes"] == 16 * count / 64


@pytest.mark.parametrize("samples", [1, 3])
def test_a_block_keeps_what_its_operations_need(capsys, samples):
    s, h, a, layers = 24, 20, 5, 3
    shape = f"layers={layers},width={h},heads={a},vocabulary=11,sequence={s}"
    flags = ["--model", shape, "--ranks", "2", "--micro-batch", str(samples)]
    activations = printed_json(capsys, *flags)["activations"]
    assert activations["block_bytes"] == samples * s * (32 * h + 2 * a * s)
    assert activations["korthikanti_bytes"] == samples * s * (34 * h + 5 * a * s)
    assert layers * activations["block_bytes"] < activations["peak_bytes"] < (layers + 2) * activations["block_bytes"]
    assert activations["recomputed_peak_bytes"] < activations["peak_bytes"] - (layers - 2) * activations["block_bytes"]
    assert "Kernels are unfused" in " ".join(" ".join(lines(capsys, *flags)).split())


# The host's memory

ONE = {"ranks": 1, "hidden": (), "steps": 2, "micro_batches": 1}
"""One layer of 6 · 3 + 3 = 21 numbers, Adam: 84 bytes of weights, 84 of gradients, 168 of state."""


def estimated(capsys, **keys):
    flags = [word for key, value in keys.items() for word in (f"--{key.replace('_', '-')}", value)]
    rows = printed_json(capsys, "--parameters", "21", "--ranks", "1", "--precision", "fp32", *flags)["stages"]
    return {row["stage"]: row.get("tiers_bytes", {"device": row["total_bytes"], "host": 0}) for row in rows}


@pytest.mark.parametrize("keys", [{}, *FAR], ids=str)
def test_the_command_estimates_what_a_run_keeps(keys, capsys):
    tiers = estimated(capsys, **keys)
    for stage in outcome_of(**ONE, **keys).trained:
        (rank,) = stage.measured.memory
        kept = rank.resting_bytes, rank.host_resting_bytes
        assert tiers[stage.stage] == dict(zip(("device", "host"), (sum(each.values()) for each in kept), strict=True))
