"""What students do: each file in `tests/mistakes`, and each change in its `changed.toml`, is a wrong program.

It says which words its diagnosis must have.
"""

import re
import tomllib
from pathlib import Path

import pytest

from zerosim.parts.loading import load_file
from zerosim.teach.grading.claims import CLAIMS
from zerosim.teach.grading.examination import grade
from zerosim.teach.proofs.diagnosis import diagnosis, remark
from zerosim.teach.proofs.proof import prove
from zerosim.teach.proofs.subject import collective_in, subject
from zerosim.testing import LawBroken, laws

HERE = Path(__file__).parent / "mistakes"
FILES = sorted(HERE.glob("*.py"))
CHANGED = tomllib.loads((HERE / "changed.toml").read_text())


def changed(program, folder):
    """The text of a program with the changes made: of each, lines with − go, those with + come, others are there."""
    text = "\n" + (folder / f"{program['of']}.py").read_text()
    for lines in (change.splitlines() for change in program["change"].split("\n\n")):
        old, new = ("".join(f"\n{line[1:]}" for line in lines if line[0] in kinds) + "\n" for kinds in (" -", " +"))
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text.lstrip()


def mistaken(file):
    """The one function in a file, which is wrong."""
    module = load_file(str(file))
    (function,) = (f for name, f in vars(module).items()
                   if getattr(f, "__module__", "") == file.stem and (name in CLAIMS or collective_in(name)))
    return function


def told(file):
    """What is said of the function: by its grade, where it is an exercise, else by its proof or by the laws."""
    function = mistaken(file)
    if function.__name__ in CLAIMS:
        found = grade(function, function.__name__, CLAIMS[function.__name__], str(file))
        assert found.state == "does not hold yet"
        return found.complaint
    if "By: laws" in file.read_text():
        with pytest.raises(LawBroken) as broken:
            laws.check(function, examples=10)
        return str(broken.value)
    proofs = [prove(subject(function), size) for size in range(1, 6)]
    proof = next((proof for proof in proofs if not proof.holds), proofs[-1])
    if proof.holds:
        return remark(proof) or ""
    return f"on {proof.size} rank: {proof.faults[0].what}\n{diagnosis(proof)}"


@pytest.mark.parametrize("name", [*(file.stem for file in FILES), *CHANGED])
def test_a_diagnosis_names_the_cause(name, tmp_path):
    file = HERE / f"{name}.py"
    if name in CHANGED:
        file = tmp_path / file.name
        file.write_text(changed(CHANGED[name], HERE / "of"))
        due = CHANGED[name]["says"]
    else:
        due = re.findall(r"^Says: (.+)$", file.read_text(), re.MULTILINE)
    said = told(file)
    assert due
    assert [words for words in due if words not in said] == [], said
    assert "AssertionError" not in said
    assert re.search(r"^ *see: zerosim \w+ ", said, re.MULTILINE), said


def test_there_are_many():
    assert len(FILES) + len(CHANGED) >= 106
