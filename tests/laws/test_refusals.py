"""A scenario with something wrong in it is refused in one line, or runs; never a traceback."""

from random import Random

import pytest

from tests.laws.draws import toml
from tests.laws.runs import KEYS, Refused, planned, prepared, read
from tests.laws.scenarios import CORNERS, GPT, in_sections

VALUES = (None, True, -1, 0, 1, 3, 2**31, 2**63 - 1, 2**70, 1.5, -0.0, 1e308, float("nan"), "", "x", "weights", "../x",
          "a\0b", "\u202e", [], [[]], [1], [2**40, 2**40], {}, {"a": 1}, [[[[]]]])
WOUNDS = ("\0", "[", "]", "{", "=", ".", "#", "\n", '"', "'", "\\", "nan", "[[model]]", "[train]", "\u202e", "x" * 99)


def refusal(make, given):
    """What is said of a scenario that is refused; nothing of one that is not."""
    try:
        make(given)
    except Refused as error:
        return str(error)
    return None


def is_one_line(words):
    return 0 < len(words) < 1000 and words.isprintable()


@pytest.mark.parametrize("seed", range(300))
def test_a_wrong_scenario_is_refused_in_one_line(seed):
    chance = Random(seed)
    settings = in_sections(chance.choice(CORNERS))
    settings[chance.choice([*KEYS, "model.none", "none.none"])] = chance.choice(VALUES)
    words = refusal(prepared, settings)
    assert words is None or is_one_line(words), settings


@pytest.mark.parametrize("seed", range(300))
def test_a_wounded_file_is_refused_in_one_line(seed, tmp_path):
    chance = Random(seed)
    text = toml({key: value for key, value in in_sections(chance.choice(CORNERS)).items() if key != "data.loud"})
    for _ in range(chance.randint(1, 3)):
        first = chance.randrange(len(text))
        text = text[:first] + chance.choice(WOUNDS) + text[first + chance.choice((0, 0, 1, 5, 40)):]
    (tmp_path / "a.toml").write_text(text, encoding="utf-8")
    words = refusal(read, tmp_path / "a.toml")
    assert words is None or is_one_line(words), text


def test_what_is_no_line_is_seen():
    assert is_one_line(refusal(prepared, {"train.stepz": 1}))
    assert not any(map(is_one_line, ("", "a\nb", "x" * 2000, "a\x1b[2J")))


@pytest.mark.parametrize("keys", [
    {"queue_tokens": 3}, {"experts_per_token": 9}, {"heads": 3}, {"dense_layers": 1}, {"experts": 3}])
def test_a_plan_refuses_a_model_in_the_words_of_a_run(keys):
    settings = in_sections(GPT | {"kind": "mixture", "width": 8, "heads": 2, "expert_ranks": 2} | keys)
    words = refusal(prepared, settings)
    assert words == refusal(planned, settings)
    assert words.partition(": ")[2].startswith(f"model.{next(iter(keys))}: ")
