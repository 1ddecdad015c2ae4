"""Published runs with layouts: each line is read with its assumptions, and plans of small ones are near."""

import dataclasses

import pytest

from zerosim.commands.benches.fitting import Course, best_factor, without_sources
from zerosim.commands.benches.published import compare
from zerosim.commands.benches.run_lines import PARALLEL, known, lines_of, of_pieces, rules_of, shipped, unplanned
from zerosim.commands.cli import main
from zerosim.plan.cluster import machines

LINES = lines_of(shipped("parallel.csv"))


def figures(source, name=""):
    return [each for each in PARALLEL.read() if source in each.source and each.name.startswith(name)]


def test_every_line_has_a_scenario_or_the_reason_for_which_it_has_no_plan():
    read = PARALLEL.read()
    reasons = [unplanned(known(line, PARALLEL.file)[0]) for line in LINES]
    assert len(read) + sum(map(bool, reasons)) == len(LINES) == 253
    assert {*reasons} >= {"copies of experts", "a schedule with twice the memory of 1F1B"}
    assert sum(each.scenario.model.latent == 512 for each in read) == 8


def test_what_a_source_does_not_say_is_assumed_and_listed_and_what_it_says_stays():
    (figure, *_) = figures("MegaScale (Megatron-LM)")
    assert figure.assumed["recompute"] == "selective"
    assert "zero_stage" not in figure.assumed
    assert figure.scenario.parallel.recompute_keeps == "all_but_attention"
    assert all(set(rule) == {"where", "is"} for rule in rules_of(PARALLEL.file)["rule"])
    line, assumed = known({**LINES[0], "recompute": "none"}, PARALLEL.file)
    assert line["recompute"] == "none"
    assert "recompute" not in assumed


def test_pieces_that_do_not_divide_the_blocks_are_refused_in_a_line():
    with pytest.raises(ValueError, match="4 pieces do not divide 9 blocks"):
        of_pieces(9, 4)


@pytest.mark.parametrize(("source", "name", "most"), [
    ("MoE Parallel Folding", "mixtral_8x22b on 128 h100_80gb, tp2 cp1 pp8, 4096 × 256", 0.1),
    ("README 2020", "gpt_", 0.08), ("InternEvo", "internlm", 0.08), ("Narayanan", "gpt_18b", 0.06),
    ("Korthikanti", "gpt_22b", 0.09), ("Zero Bubble", "gpt_1.5b", 0.1),
])
def test_plans_of_small_layouts_are_near_what_was_measured(source, name, most):
    for each in compare(figures(source, name)):
        assert abs(each.error) < most, each.figure.name


def test_a_file_with_layouts_is_planned_alone(tmp_path, capsys):
    path = tmp_path / "runs.csv"
    lines = [*shipped("parallel.csv").read_text("utf-8").splitlines()]
    path.write_text("\n".join([lines[0], next(line for line in lines if line.startswith("InternEvo"))]), "utf-8")
    assert main(["bench", "published", "--runs", str(path)]) == 0
    assert "throughput, with tensor ranks" in capsys.readouterr().out


@pytest.mark.long
def test_a_rate_is_fitted_without_the_source_that_is_judged_and_every_source_counts_once():
    """A source twice as fast as its plan does not tell its own rate, however many figures it has."""
    slow, fast = Course("a", 2.0, -1.0), Course("b", 0.5, -1.0)
    assert best_factor([slow] * 5) == 2.0
    assert best_factor([slow, *[fast] * 5]) == best_factor([slow, fast]) == 2.0
    (blooms, (mtnlg, *_)) = figures("BLOOM", "bloom_70x14336"), figures("MT-NLG")
    bloom = next(each for each in blooms if not each.memory)
    doubled = dataclasses.replace(mtnlg, measured=2 * mtnlg.measured)
    one, other = without_sources([bloom, mtnlg]), without_sources([bloom, doubled])
    assert share(one[1]) == share(other[1])
    assert share(one[0]) > share(other[0])


def test_a_source_without_others_of_its_software_is_planned_at_the_rate_of_the_devices_own_runs():
    (mtnlg, *_) = figures("MT-NLG")
    (alone,) = without_sources([mtnlg])
    rate = machines()["device"]["a100_80gb"]
    assert share(alone) * rate["products"]["deepspeed"] == pytest.approx(rate["product_share"])
    (unfitted,) = without_sources(figures("Korthikanti", "gpt_22b")[:1])
    assert unfitted.left_out is None


def share(figure):
    return figure.left_out.cluster.figures.product_share
