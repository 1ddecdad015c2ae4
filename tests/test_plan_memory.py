"""The memory of model states by formula, against the figures in print and against real buffers."""

import argparse
import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerosim.commands.memory import add_arguments, main
from zerosim.stages import STAGES
from zerosim.verdict.memory import (
    DIFFERENCES,
    PRECISIONS,
    TABLES,
    ModelStates,
    deepspeed_zero2,
    deepspeed_zero3,
    formula,
    largest_model,
    optimizer_bytes,
    per_parameter,
    printed,
    resting,
    rounded,
    table1,
    truncated,
)

MIXED_ADAM = per_parameter("mixed", 12)
GB = 10**9

stages = st.sampled_from(list(STAGES))
ranks = st.integers(1, 2000)
each = st.builds(
    per_parameter,
    st.sampled_from(list(PRECISIONS)),
    st.integers(0, 100),
    fp32_accumulation=st.booleans(),
)


def call(*flags):
    parser = argparse.ArgumentParser(prog="zerosim memory")
    add_arguments(parser)
    return main(parser.parse_args(flags))


def printed_json(capsys, *flags):
    assert call(*flags, "--json", "-") == 0
    return json.loads(capsys.readouterr().out)


def lines(capsys, *flags):
    assert call(*flags) == 0
    return capsys.readouterr().out.splitlines()


# Formulas


def test_every_stage_has_its_formula():
    assert {stage.sharded for stage in STAGES.values()} == {
        (), ("optimizer",), ("optimizer", "gradients"), ("optimizer", "gradients", "parameters")}


@pytest.mark.parametrize(
    ("precision", "optimizer", "k"),
    [("mixed", "sgd", 4), ("mixed", "momentum", 8), ("mixed", "adam", 12), ("mixed", "adamw", 12),
     ("fp32", "sgd", 0), ("fp32", "momentum", 4), ("fp32", "adam", 8), ("fp32", "adamw", 8)],
)
def test_optimizer_bytes_per_parameter(precision, optimizer, k):
    assert optimizer_bytes(precision, optimizer) == k


@pytest.mark.parametrize(
    ("bytes_each", "expected"),
    [
        (MIXED_ADAM, ["16Ψ", "4Ψ + 12Ψ/N", "2Ψ + 14Ψ/N", "16Ψ/N"]),
        (per_parameter("fp32", 0), ["8Ψ", "8Ψ", "4Ψ + 4Ψ/N", "8Ψ/N"]),
        (per_parameter("mixed", 12, fp32_accumulation=True),
         ["20Ψ", "8Ψ + 12Ψ/N", "2Ψ + 18Ψ/N", "20Ψ/N"]),
    ],
)
def test_formulas_in_letters(bytes_each, expected):
    assert [formula(stage, bytes_each) for stage in STAGES] == expected


@given(stages, st.integers(1, 10**15), ranks, each)
def test_the_formula_in_letters_gives_the_figure(stage, psi, n, each):
    value = sum(
        Fraction(int(term.removesuffix("/N").removesuffix("Ψ")) * psi, n if "/N" in term else 1)
        for term in formula(stage, each).split(" + ")
    )
    assert value == resting(stage, psi, n, each).total


# Largest models


@given(stages, st.integers(1, 10**12), ranks, each)
def test_the_largest_model_fits_and_one_parameter_more_does_not(stage, budget, n, each):
    largest = largest_model(stage, budget, n, each)
    assert resting(stage, largest, n, each).total <= budget
    assert resting(stage, largest + 1, n, each).total > budget


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

def cells(text):
    return [[cell.strip() for cell in row.split("|")] for row in text.strip().splitlines()]


def without_spaces(rows):
    return [[cell.replace(" / ", "/") for cell in row] for row in rows]


@pytest.mark.parametrize(("name", "expected"), [("table1", TABLE_1), ("table2", TABLE_2)])
def test_tables_are_as_printed(name, expected):
    assert without_spaces(TABLES[name]().rows) == cells(expected)


def wrong_in_table1(each, cut_7_5b, cut_others):
    """The printed cells that the formulas do not give; decimals are those of the printed cell."""
    models = {"7.5B": (7_500_000_000, cut_7_5b), "128B": (128 * GB, cut_others),
              "1T": (1000 * GB, cut_others)}
    wrong = []
    for n, *columns in cells(TABLE_1):
        for (model, (psi, cut)), column in zip(models.items(), columns, strict=True):
            for stage, cell in zip(("zero1", "zero2", "zero3"), column.split("/"), strict=True):
                decimals = len(cell.partition(".")[2])
                gigabytes = resting(stage, psi, int(n), each).total / GB
                if cut(gigabytes, decimals) != Fraction(cell):
                    wrong.append((n, model, stage))
    return wrong


def test_table_1_is_rounded_in_one_column_and_truncated_in_the_others():
    assert wrong_in_table1(MIXED_ADAM, rounded, truncated) == []


def test_table_1_tells_rounding_from_truncating_and_12_bytes_from_others():
    assert ("4", "7.5B", "zero2") in wrong_in_table1(MIXED_ADAM, truncated, truncated)
    assert ("64", "1T", "zero1") in wrong_in_table1(MIXED_ADAM, rounded, rounded)
    for k in (11, 13):
        wrong = wrong_in_table1(per_parameter("mixed", k), rounded, truncated)
        assert {(n, model) for n, model, _ in wrong} >= {("64", "7.5B"), ("4", "128B"), ("4", "1T")}


def test_table_1_has_54_cells():
    assert sum(len(cell.split("/")) for row in table1().rows for cell in row[1:]) == 54


@given(st.fractions(0, 10**6, max_denominator=10**4), st.integers(0, 3))
def test_rounding_and_truncating(value, decimals):
    step = Fraction(1, 10**decimals)
    assert 0 <= value - truncated(value, decimals) < step
    assert -step / 2 <= value - rounded(value, decimals) < step / 2


@given(st.integers(1, 10**12), ranks, st.integers(1, 10**9))
def test_deepspeeds_formulas_and_how_they_differ_from_the_papers(psi, n, layer):
    accumulating = per_parameter("mixed", 12, fp32_accumulation=True)
    assert deepspeed_zero2(psi, n) == resting("zero2", psi, n, accumulating)
    paper = resting("zero3", psi, n, MIXED_ADAM)
    assert deepspeed_zero3(psi, n, layer) == ModelStates(
        paper.parameters + 2 * layer, 2 * paper.gradients + 2 * layer, paper.optimizer
    )
    assert deepspeed_zero3(psi, n, layer).total == 4 * layer + Fraction(18 * psi, n)


# The command


@pytest.mark.parametrize(
    "count", ["7.5e9", "7.5E+9", "7.5B", "7.5b", "7500M", "0.0075T", "7500000K", "7500000000"]
)
def test_json_has_whole_numbers_as_ints(capsys, count):
    found = printed_json(capsys, "--parameters", count, "--ranks", "64")
    assert found["schema"] == "zerosim.memory/1"
    assert (found["parameters"], found["ranks"]) == (7_500_000_000, 64)
    assert [stage["stage"] for stage in found["stages"]] == ["ddp", "zero1", "zero2", "zero3"]
    assert found["stages"][1] == {
        "stage": "zero1",
        "parameters_bytes": 15_000_000_000,
        "gradients_bytes": 15_000_000_000,
        "optimizer_bytes": 1_406_250_000,
        "total_bytes": 31_406_250_000,
        "formula": "4Ψ + 12Ψ/N",
    }
    numbers = [each for stage in found["stages"] for each in stage.values()]
    assert {type(each) for each in numbers} == {str, int}


def test_json_has_other_numbers_as_floats(capsys):
    found = printed_json(capsys, "--parameters", "10", "--ranks", "3")
    assert found["stages"][3]["total_bytes"] == 160 / 3
    assert found["stages"][0]["total_bytes"] == 160


@pytest.mark.parametrize(
    ("flags", "totals"),
    [
        (["--precision", "fp32"], [16, 10, 7, 4]),
        (["--precision", "fp32", "--optimizer", "momentum"], [12, 9, 6, 3]),
        (["--precision", "fp32", "--optimizer", "sgd"], [8, 8, 5, 2]),
        (["--optimizer", "adamw"], [16, 7, 5.5, 4]),
        (["--optimizer-bytes", "8"], [12, 6, 4.5, 3]),
        (["--optimizer-bytes", "0"], [4, 4, 2.5, 1]),
        (["--optimizer", "sgd", "--optimizer-bytes", "8"], [12, 6, 4.5, 3]),
        (["--fp32-accumulation"], [20, 11, 6.5, 5]),
    ],
)
def test_flags_change_bytes_per_parameter(capsys, flags, totals):
    found = printed_json(capsys, "--parameters", "1000", "--ranks", "4", *flags)
    assert [stage["total_bytes"] for stage in found["stages"]] == [1000 * each for each in totals]


def test_deepspeeds_estimator(capsys):
    flags = ["--parameters", "2851M", "--ranks", "8", "--estimator", "deepspeed"]
    found = printed_json(capsys, *flags, "--largest-layer", "32M")
    assert {stage["stage"]: stage["total_bytes"] for stage in found["stages"]} == {
        "zero2": 12_116_750_000, "zero3": 6_542_750_000}
    without = printed_json(capsys, *flags)
    assert [stage["stage"] for stage in without["stages"]] == ["zero2"]
    assert "--largest-layer" in without["notes"][-1]
    text = " ".join(" ".join(lines(capsys, *flags)).split())
    assert all(difference in text for difference in DIFFERENCES)


def test_figure_1_as_json_and_as_bars(capsys):
    found = printed_json(capsys, "--table", "figure1")
    totals = [Fraction(stage["total_bytes"], GB) for stage in found["stages"]]
    assert [printed(rounded(total, 1)) for total in totals] == list(FIGURE_1.values())
    shown = lines(capsys, "--table", "figure1")
    bars = [line.split()[-2] for line in shown if line.rstrip().endswith("%")]
    assert bars == ["█" * 7 + "▓" * 7 + "░" * 42, "█" * 7 + "▓" * 7 + "░", "█" * 7 + "▓░", "█▓░"]


@pytest.mark.parametrize("name", TABLES)
def test_published_tables_on_the_terminal_and_as_json(capsys, name):
    rows = [list(row) for row in TABLES[name]().rows]
    assert printed_json(capsys, "--table", name)["rows"] == rows
    shown = [line.split() for line in lines(capsys, "--table", name)]
    for row in rows:
        assert " ".join(row).split() in shown


def test_json_to_a_file_leaves_the_table_on_the_terminal(capsys, tmp_path):
    file = tmp_path / "memory.json"
    shown = lines(capsys, "--parameters", "7.5e9", "--ranks", "64", "--json", str(file))
    assert json.loads(file.read_text(encoding="utf-8"))["ranks"] == 64
    assert any("16.64" in line for line in shown)


EXTREMES = [
    ["--parameters", "1e15", "--ranks", "1000000000", "--optimizer-bytes", "100"],
    ["--parameters", "1e15", "--ranks", "1", "--optimizer-bytes", "100", "--fp32-accumulation"],
    ["--parameters", "999999999999", "--ranks", "999", "--optimizer-bytes", "100"],
    ["--parameters", "6e12", "--ranks", "9", "--fp32-accumulation"],
    ["--parameters", "1", "--ranks", "1"],
    ["--parameters", "1e15", "--ranks", "1", "--estimator", "deepspeed", "--largest-layer", "1e15"],
    *[["--table", name] for name in ["figure1", *TABLES]],
]


@pytest.mark.parametrize("flags", EXTREMES, ids=" ".join)
def test_everything_drawn_fits_60_and_80_columns_unbroken(capsys, monkeypatch, flags):
    """In 60 columns every number is there; in 80 every line that ends with one is as in 200."""
    monkeypatch.setenv("COLUMNS", "200")
    wide = [line.split() for line in lines(capsys, *flags)]
    for columns in (60, 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        narrow = lines(capsys, *flags)
        assert max(map(len, narrow)) <= columns
        assert "…" not in "".join(narrow)
        numbers = {word for line in narrow for word in line.split() if word[0].isdigit()}
        assert numbers <= {word for line in wide for word in line}
    figures = [line.split() for line in narrow if any(map(str.isdigit, line[-12:]))]
    assert figures
    assert all(row in wide for row in figures)


def test_colour_on_a_terminal_unless_no_color(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    blue = "\x1b[34m"
    assert blue in "".join(lines(capsys, "--table", "figure1"))
    monkeypatch.setenv("NO_COLOR", "1")
    assert blue not in "".join(lines(capsys, "--table", "figure1"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--parameters --model --table is required"),
        (["--model", "layers=2,vocabulary=5,sequence=4"], "--model needs --ranks"),
        (["--model", "layers=2", "--ranks", "2"], "give vocabulary and sequence"),
        (["--model", "layer=2", "--ranks", "2"], "unknown key 'layer' in [model]; did you mean 'layers'?"),
        (["--model", "layers=0", "--ranks", "2"], "model.layers must be an integer of at least 1"),
        (["--model", "layers", "--ranks", "2"], "found 'layers'; give key=value pairs"),
        (["--model", "layers=2,layers=3", "--ranks", "2"], "found 'layers=2,layers=3'; give each key once"),
        (["--model", "width=10,heads=3,vocabulary=5,sequence=4", "--ranks", "2"], "heads: 3 heads must divide"),
        (["--parameters", "10", "--ranks", "2", "--micro-batch", "2"], "remove --micro-batch"),
        (["--parameters", "7.5e9"], "--parameters needs --ranks"),
        (["--parameters", "7,5", "--ranks", "4"], "found '7,5'; give a whole number"),
        (["--parameters", "7.5", "--ranks", "4"], "found '7.5'; give a whole number"),
        (["--parameters", "0", "--ranks", "4"], "found '0'; give"),
        (["--parameters=-1", "--ranks", "4"], "found '-1'; give"),
        (["--parameters", "1e99", "--ranks", "4"], "from 1 to 1e+15"),
        (["--parameters", "nan", "--ranks", "4"], "found 'nan'"),
        (["--parameters", "7B", "--ranks", "0"], "found '0'; give a whole number from 1"),
        (["--parameters", "7B", "--ranks", "4.0"], "found '4.0'"),
        (["--parameters", "7B", "--ranks", "4", "--precision", "fp8"], "invalid choice: 'fp8'"),
        (["--parameters", "7B", "--ranks", "4", "--optimizer-bytes", "-1"], "--optimizer-bytes"),
        (["--parameters", "7B", "--table", "table1"], "not allowed with"),
        (["--table", "table1", "--ranks", "4"], "remove --ranks"),
        (["--table", "table1", "--optimizer", "sgd"], "remove --optimizer"),
        (["--parameters", "7B", "--ranks", "4", "--largest-layer", "1M"], "only --estimator deep"),
        (["--parameters", "7B", "--ranks", "4", "--estimator", "deepspeed", "--precision", "fp32"],
         "remove --precision: --estimator deepspeed is for mixed precision"),
        (["--parameters", "1M", "--ranks", "4", "--estimator", "deepspeed", "--largest-layer",
          "1B"], "give at most --parameters"),
        (["--parameters", "7B", "--ranks", "4", "--precision", "fp32", "--fp32-accumulation"],
         "gradients are in fp32 already"),
    ],
)
def test_wrong_flags_exit_with_2_and_say_what_to_give(capsys, flags, message):
    with pytest.raises(SystemExit) as caught:
        call(*flags)
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert message in captured.err.splitlines()[-1]


LLAMA = "architecture=llama,vocabulary={},layers=32,width=4096,heads=32,sequence=2048"


@pytest.mark.parametrize(("shape", "count"), [
    ("layers=12,width=768,heads=12,vocabulary=50257,sequence=1024,tied_embeddings=true", 124_439_808),
    (LLAMA.format(32000) + ",inner=11008", 6_738_415_616),
    (LLAMA.format(128256) + ",inner=14336,key_value_heads=8", 8_030_261_248),
])
def test_a_shape_has_the_parameters_that_others_count(capsys, shape, count):
    found = printed_json(capsys, "--model", shape, "--ranks", "64")
    assert found["parameters"] == count
    assert found["stages"][3]["total_bytes"] == 16 * count / 64


@pytest.mark.parametrize("samples", [1, 3])
def test_a_block_keeps_what_its_operations_need(capsys, samples):
    s, h, a, layers = 24, 20, 5, 3
    shape = f"layers={layers},width={h},heads={a},vocabulary=11,sequence={s}"
    found = printed_json(capsys, "--model", shape, "--ranks", "2", "--micro-batch", str(samples))["activations"]
    assert found["block_bytes"] == samples * s * (32 * h + 2 * a * s)
    assert found["korthikanti_bytes"] == samples * s * (34 * h + 5 * a * s)
    assert layers * found["block_bytes"] < found["peak_bytes"] < (layers + 2) * found["block_bytes"]
    assert found["recomputed_peak_bytes"] < found["peak_bytes"] - (layers - 2) * found["block_bytes"]


def test_a_peak_says_that_its_kernels_are_unfused(capsys):
    assert call("--model", "layers=1,width=4,heads=1,vocabulary=9,sequence=8", "--ranks", "2") == 0
    assert "Kernels are unfused" in " ".join(capsys.readouterr().out.split())


def test_sequences_of_any_length_are_planned_without_memory(capsys):
    assert call("--model", "layers=1,width=4,heads=1,vocabulary=9,sequence=1000000", "--ranks", "2") == 0
    assert "GB" in capsys.readouterr().out
