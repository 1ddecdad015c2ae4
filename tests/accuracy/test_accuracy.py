"""Published runs beside their plans: lines are read with their assumptions, plans of small runs are near."""

from collections import Counter
from dataclasses import replace

import pytest

from tests.accuracy.__main__ import main
from tests.accuracy.figures import NEAR, TABLES, compare, errors, read
from tests.accuracy.fitting import Sensitivity, best_factors, changed, held_out, sensitivities_of
from tests.accuracy.lines import known, lines_of, of_pieces, shipped
from zerosim.core.errors import UsageError
from zerosim.plan.cluster import machines
from zerosim.plan.planned_row import kind_of, measured


def figures(file, source, name=""):
    return [each for each in read(shipped(file))[0] if source in each.source and each.name.startswith(name)]


def test_every_line_has_a_scenario_or_the_reason_for_which_it_has_no_plan():
    tables = {name: read(shipped(name)) for name in ("mpt.csv", "outside.csv", "parallel.csv")}
    assert {name: (len(found), len(without)) for name, (found, without) in tables.items()} == {
        "mpt.csv": (109, 0), "outside.csv": (71, 0), "parallel.csv": (237, 16)}
    assert sum(each.scenario.model.latent == 512 for each in tables["parallel.csv"][0]) == 8


def test_plans_say_the_accuracy_of_every_kind_of_figure():
    some = [each for name in TABLES for each in read(shipped(name))[0]]
    for memory in (False, True):
        kinds = Counter(kind_of(each.scenario) for each in some if each.memory == memory)
        assert kinds == {kind: counts[1 + 2 * memory] for kind, counts in measured().items() if counts[1 + 2 * memory]}


def test_what_a_source_does_not_say_is_assumed_and_what_it_says_stays():
    (figure, *_) = figures("parallel.csv", "MegaScale (Megatron-LM)")
    assert figure.scenario.parallel.recompute_keeps == "all_but_attention"
    line, assumed = known({**lines_of(shipped("parallel.csv"))[0], "recompute": "none"}, "parallel.csv")
    assert line["recompute"] == "none"
    assert "recompute" not in assumed
    hybrid = figures("outside.csv", "IBM fms-fsdp")[0].scenario
    assert (hybrid.cluster.software, hybrid.parallel.shard_ranks, hybrid.cluster.between) == (
        "compiled", 8, "infiniband_8x100")


@pytest.mark.parametrize(("file", "source", "name", "most"), [
    ("mpt.csv", "MPT", "125m on 8 a100_40gb", 0.12), ("outside.csv", "llm.c", "", 0.15),
    ("parallel.csv", "README 2020", "gpt_", 0.08), ("parallel.csv", "Narayanan", "gpt_18b", 0.06),
    ("parallel.csv", "Korthikanti", "gpt_22b", 0.09), ("parallel.csv", "Zero Bubble", "gpt_1.5b", 0.1),
])
def test_plans_of_small_runs_are_near_what_was_measured(file, source, name, most):
    found, without = compare(figures(file, source, name)[:3])
    assert (len(found) > 0, without) == (True, [])
    assert errors(each.error for each in found).mean < most


def test_a_plan_for_another_device_is_far_off():
    run = figures("mpt.csv", "MPT", "125m on 8 a100_40gb")[0]
    other = replace(run.scenario, cluster=replace(run.scenario.cluster, device="h100_80gb"))
    ((found,), _) = compare([replace(run, scenario=other)])
    assert abs(found.error) > NEAR


def test_a_line_that_cannot_be_planned_is_listed_and_the_others_are_planned(tmp_path, capsys, monkeypatch):
    columns, line, other = shipped("parallel.csv").read_text("utf-8").splitlines()[:3]
    (tmp_path / "some.csv").write_text("\n".join([
        columns, line.replace("llama3_405b,126", "llama3_405b,many"), other.replace("llama3_405b,126", "small,8")]))
    monkeypatch.setattr("sys.argv", ["accuracy", str(tmp_path / "some.csv")])
    main()
    said = capsys.readouterr().out
    assert "1 without a plan:\n    some.csv:2: invalid literal" in said
    assert "small on 512" in said
    with pytest.raises(UsageError, match=r"no line has a plan: none\.csv:2: lacks device"):
        read(written(tmp_path / "none.csv", "model,device\nsmall,\n"))
    with pytest.raises(UsageError, match="found no run"):
        read(written(tmp_path / "none.csv", "model,device\n"))


def written(path, text):
    path.write_text(text)
    return path


def test_pieces_that_do_not_divide_the_blocks_are_refused_in_a_line():
    with pytest.raises(ValueError, match="4 pieces do not divide 9 blocks"):
        of_pieces(9, 4)


def test_what_is_fitted_is_found_again():
    """Figures as they would be on a device with other rates."""
    other = {"product_share": 0.8, "attention_share": 1.2, "memory_share": 1.1}
    some = figures("mpt.csv", "MPT", "125m on 8 a100_40gb")[:2] + figures("mpt.csv", "MPT", "350m on 8 a100_40gb")[:2]
    faster = []
    for each in some:
        scenario = each.scenario
        for name, factor in other.items():
            scenario = changed(scenario, name, factor)
        ((found,), _) = compare([replace(each, scenario=scenario)])
        faster.append(replace(each, measured=found.planned))
    factors = best_factors(sensitivities_of(faster))
    assert factors["product_share"] == pytest.approx(0.8, rel=0.1)


def test_a_source_is_held_out_of_what_is_fitted_and_every_source_counts_once():
    slow, fast = Sensitivity("a", 2.0, {"product_share": -1.0}), Sensitivity("b", 0.5, {"product_share": -1.0})
    assert best_factors([slow] * 5)["product_share"] == pytest.approx(2.0, rel=0.02)
    assert best_factors([slow, *[fast] * 5]) == best_factors([slow, fast])
    assert held_out([slow, fast])["a"] == [pytest.approx(3.0, rel=0.05)]


def test_at_most_three_numbers_of_a_device_are_fitted():
    assert {name for entry in machines()["device"].values() for name in entry if name.endswith("share")} == {
        "product_share", "attention_share", "memory_share"}
