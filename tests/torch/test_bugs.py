"""The page of published bugs, its table, its recorded answers and the documents that cite them agree."""

import json
import re

import pytest

from tests.torch.bugs.__main__ import HERE, PAGE, RECORDED, ROOT, SIDES, TABLE, page, says

ANSWERS = json.loads(RECORDED.read_text())
CITING = [ROOT / "README.md", ROOT / "docs" / "check.md", ROOT / "docs" / "lessons" / "14_is_it_right.md"]


def test_the_page_is_made_from_the_table_and_the_recorded_answers():
    assert PAGE.read_text() == page(ANSWERS)
    assert set(ANSWERS) == {bug["name"] for bug in TABLE["bug"]} | {TABLE["unreported"]["name"]}


@pytest.mark.parametrize("bug", TABLE["bug"], ids=lambda bug: bug["name"])
def test_each_bug_was_found_with_its_cause_and_its_mended_version_was_not_accused(bug):
    wrong, right = (ANSWERS[bug["name"]][side] for side in SIDES)
    assert [{"with": each["with"], "run": each["run"]} for each in (wrong, right)] == [bug[side] for side in SIDES]
    assert f": {bug['cause']}: " in says(wrong)
    assert says(right) == ""
    assert (wrong["exit"], right["exit"]) == (1, 0)


def test_scripts_have_at_most_60_lines():
    assert [each.name for each in HERE.glob("[!_]*.py") if each.read_text().count("\n") > 60] == []


@pytest.mark.parametrize("document", CITING, ids=lambda document: document.stem)
def test_a_finding_in_a_document_is_one_that_was_recorded(document):
    recorded = {f"zerosim: {line}" for each in ANSWERS.values() for side in each.values() for line in side["said"]}
    blocks = "\n".join(re.findall(r"^```\w*\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL))
    cited = [" ".join(each.split()) for each in re.findall(r"^zerosim: FOUND (?:.+\n)+", blocks, re.MULTILINE)]
    assert cited
    assert set(cited) <= recorded
