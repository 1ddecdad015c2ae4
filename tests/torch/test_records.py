"""The discipline of a check: its folder, its records, and what it writes, whatever happens to them; without PyTorch."""

import json
import os
import random
import stat
import sys
import tempfile

import numpy as np
import pytest

from zerosim.core.errors import UsageError
from zerosim.torch.check import checked_run
from zerosim.torch.check.book import unjudged
from zerosim.torch.check.judge import judged
from zerosim.torch.check.record import (
    MAGIC,
    Batch,
    Facts,
    Frame,
    RecordError,
    Sketched,
    Step,
    Term,
    Weights,
    head,
    read,
    write,
)

MUTANTS = 1000


def recorded(folder, wrong=False, failed="", ranks=2, steps=3):
    """Write the records of a training as ranks do: gradients are the mean over ranks, or `wrong`, the sum."""
    def sketched(values):
        return Sketched((4,), ((0, 4),), 2.0**-24, 2.0**-126, sums=values, squares=values**2)

    terms = np.random.default_rng(0).normal(size=(steps, ranks, 4))
    for rank in range(ranks):
        with (folder / f"rank{rank:05}").open("wb") as file:
            facts = Facts(rank, ranks, True, trainer="DDP", group=[*range(ranks)], updates={0: steps}, failed=failed)
            for number in range(steps):
                write(Frame(facts, Step(
                    0, number + 1, batches=[Batch("train.py:1", given=1 + rank + 9 * number)], parameters=["w"],
                    terms={"w": [Term(sketched(terms[number, rank]), number, "train.py:2", number)]},
                    gradients={"w": sketched(terms[number].mean(0) * (ranks if wrong else 1))},
                    weights={"w": Weights(((0, 4),), True, bits=number)})), file)
            write(Frame(facts, ended="0"), file)
    return folder


def document_of(folder):
    return judged([read(file) for file in sorted(folder.glob("rank?????"))])


def causes(document):
    return {(found["cause"], found["step"], found["rank"]) for found in document["findings"]}


# -- records

@pytest.mark.parametrize("wrong", [False, True])
def test_a_damaged_record_is_refused_or_leads_to_no_other_finding(wrong, tmp_path):
    recorded(tmp_path, wrong)
    record = tmp_path / "rank00001"
    content, intact, chance, refused = record.read_bytes(), document_of(tmp_path), random.Random(0), []
    assert not unjudged(intact)
    assert [cause for cause, _, _ in causes(intact)] == ["N times the mean"] * wrong
    for number in range(MUTANTS):
        changed, at = bytearray(content), chance.randrange(len(content))
        if number % 4 == 0:
            changed = changed[:at]
        elif number % 4 == 1:
            del changed[at : at + chance.randrange(1, 40)]
        elif number % 4 == 2:
            changed[at:at] = chance.randbytes(chance.randrange(1, 40))
        else:
            changed[at] ^= 1 << chance.randrange(8)
        record.write_bytes(changed)
        try:
            document = document_of(tmp_path)
        except RecordError as error:
            refused.append(str(error))
        else:
            assert causes(document) <= causes(intact)
    assert len(refused) > MUTANTS / 2
    assert not [each for each in refused if "\n" in each]


def test_a_record_with_other_values_and_their_checksum_is_judged_or_refused(tmp_path):
    recorded(tmp_path)
    record = tmp_path / "rank00001"
    content, chance, start, refused = record.read_bytes(), random.Random(0), len(MAGIC) + 16, []
    length = int.from_bytes(content[len(MAGIC) : len(MAGIC) + 8], "little")
    for _ in range(MUTANTS):
        packed = bytearray(content[start : start + length])
        packed[chance.randrange(length)] ^= 1 << chance.randrange(8)
        record.write_bytes(MAGIC + head(bytes(packed)) + packed + content[start + length :])
        try:
            document_of(tmp_path)
        except RecordError as error:
            refused.append(str(error))
    assert refused
    assert not [each for each in refused if "\n" in each]


def test_records_of_some_ranks_of_another_run_or_by_another_name_are_refused(tmp_path):
    recorded(tmp_path)
    (tmp_path / "rank00001.bak").write_bytes(b"a copy that somebody has kept")
    assert len(checked_run.read_all(tmp_path)) == 2
    (tmp_path / "rank00002").write_bytes((tmp_path / "rank00001").read_bytes())
    with pytest.raises(RecordError, match="rank00002 is the record of rank 1"):
        checked_run.read_all(tmp_path)
    (tmp_path / "rank00002").unlink()
    with (tmp_path / "rank00001").open("wb") as file:
        write(Frame(Facts(1, 2, run="another")), file)
    with pytest.raises(RecordError, match="records of two runs"):
        checked_run.read_all(tmp_path)
    (tmp_path / "rank00001").unlink()
    with pytest.raises(RecordError, match="records of 1 of 2 ranks"):
        judged(checked_run.read_all(tmp_path))


# -- the folder of a run

@pytest.fixture
def alone(tmp_path, monkeypatch):
    """No launcher, and a temporary directory and a current one of the test's own."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "PMI_RANK", "PMI_SIZE",
                 "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE",
                 "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path / f"zerosim-check-{os.getuid()}"


def test_the_folder_of_a_run_is_its_users_alone(alone):
    asked = checked_run.prepared(checked_run.Asked())
    assert os.path.dirname(asked.folder) == str(alone)
    assert [stat.S_IMODE(os.stat(each).st_mode) for each in (alone, asked.folder)] == [0o700, 0o700]


def test_a_folder_that_another_user_has_made_or_can_change_is_refused(alone, tmp_path, monkeypatch):
    for make in (lambda: alone.symlink_to(tmp_path / "theirs"), lambda: alone.mkdir(mode=0o755)):
        (tmp_path / "theirs").mkdir(exist_ok=True)
        make()
        with pytest.raises(UsageError, match="is not a folder that only you can use"):
            checked_run.prepared(checked_run.Asked())
        assert not [*(tmp_path / "theirs").iterdir()]
        alone.unlink() if alone.is_symlink() else alone.rmdir()
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    with pytest.raises(UsageError, match="is not a folder that only you can use"):
        checked_run.prepared(checked_run.Asked())


def test_a_folder_with_records_of_another_run_is_refused_and_paths_do_not_depend_on_the_current_one(alone, tmp_path):
    asked = checked_run.prepared(checked_run.Asked(records="records", json="found.json"))
    assert (asked.records, asked.json) == (str(tmp_path / "records"), str(tmp_path / "found.json"))
    assert checked_run.prepared(checked_run.Asked(records="records")).run == asked.run  # another rank of this run
    (tmp_path / "records" / "run-another").mkdir()
    with pytest.raises(UsageError, match="holds another run; give --records an empty folder"):
        checked_run.prepared(checked_run.Asked(records="records"))
    (tmp_path / "records" / "run-another").rmdir()
    checked_run.Pen(asked).end(Frame(Facts(), ended="0"))
    with pytest.raises(UsageError, match="holds another run"):
        checked_run.prepared(checked_run.Asked(records="records"))


@pytest.mark.parametrize("file", ["/no/such/found.json", "."])
def test_a_file_that_cannot_be_written_is_refused_before_the_script(file, alone):
    with pytest.raises(UsageError, match="cannot be written: "):
        checked_run.prepared(checked_run.Asked(json=file))


# -- verdicts that would be lost

def test_a_rank_follows_no_link_and_says_if_its_record_is_gone(alone, tmp_path, capsys):
    asked = checked_run.prepared(checked_run.Asked(records="records"))
    (tmp_path / "kept").write_text("of the user")
    (tmp_path / "records" / "rank00000").symlink_to(tmp_path / "kept")
    checked_run.Pen(asked).end(Frame(Facts(), ended="0"))
    assert (tmp_path / "kept").read_text() == "of the user"
    (tmp_path / "records" / "rank00000").unlink()
    (pen := checked_run.Pen(asked)).keep(Frame(Facts()))
    (tmp_path / "records" / "rank00000").unlink()
    pen.end(Frame(Facts(), ended="0"))
    assert pen.broken == "it was removed while the script ran"
    assert capsys.readouterr().err.count("zerosim: the record of rank 0 could not be written") == 2


@pytest.mark.parametrize(("wrong", "code"), [(False, checked_run.BROKEN), (True, checked_run.FOUND)])
def test_a_verdict_that_nobody_can_read_is_no_success(wrong, code, tmp_path, monkeypatch):
    recorded(tmp_path, wrong)
    for stream in (None, (tmp_path / "closed").open("w")):
        if stream:
            stream.close()
        monkeypatch.setattr(sys, "stderr", stream)
        assert checked_run.say(tmp_path, checked_run.Asked()) == code


def test_findings_that_cannot_be_written_are_said_and_are_no_success(tmp_path, capsys):
    recorded(tmp_path)
    assert checked_run.say(tmp_path, checked_run.Asked()) == 0
    (tmp_path / "folder").mkdir()
    gone = str(tmp_path / "gone" / "found.json")
    assert checked_run.say(tmp_path, checked_run.Asked(json=gone)) == checked_run.BROKEN
    assert "could not be written" in capsys.readouterr().err


def test_a_check_that_has_ended_before_the_script_is_no_success(tmp_path, capsys):
    assert checked_run.say(recorded(tmp_path, failed="OSError: no space"), checked_run.Asked()) == checked_run.BROKEN
    assert "the check has ended on rank 0: OSError: no space" in capsys.readouterr().err


def test_findings_come_last_in_the_text_first_in_the_document_and_in_the_banner_of_torchrun(
        tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "banner"))
    assert checked_run.say(recorded(tmp_path, wrong=True), checked_run.Asked(json=str(tmp_path / "found.json"))) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("zerosim: FOUND step 1, rank 0: N times the mean")
    assert [*json.loads((tmp_path / "found.json").read_text())][:2] == ["schema", "findings"]
    assert json.loads((tmp_path / "banner").read_text()) == {"message": last}


def test_nothing_observed_is_no_success(tmp_path, capsys):
    assert checked_run.say(tmp_path, checked_run.Asked()) == checked_run.UNSEEN
    assert "nothing was observed" in capsys.readouterr().err
