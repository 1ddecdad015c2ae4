"""What some students write: each file in `tests/right` is an unusual program, and nothing is wrong with it."""

from pathlib import Path

import pytest

from zerosim.parts.loading import load_file
from zerosim.teach.grading.claims import CLAIMS

FILES = sorted((Path(__file__).parent / "right").glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_everything_holds(file):
    module = load_file(str(file))
    (name,) = (name for name in CLAIMS if hasattr(module, name))
    claims = [claim for claim in CLAIMS[name](getattr(module, name)) if not claim.law]
    assert len(claims) >= 3
    assert [(claim.says, claim.complaint()) for claim in claims if claim.complaint()] == []


def test_there_are_many():
    assert len(FILES) >= 25
