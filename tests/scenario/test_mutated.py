"""Files of every class that zerosim reads, 1,000 times damaged: each is read, or refused by a named error."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.commands.small import SMALL
from zerosim.commands.cli import main, parse
from zerosim.commands.report import main as report
from zerosim.core.errors import CheckpointError, ZerosimError
from zerosim.plan.foreign import hugging_face
from zerosim.plan.reading import cluster_in
from zerosim.scenario import load
from zerosim.scenario.data import load_dataset
from zerosim.scenario.data.weights import weights_file
from zerosim.training.state_file import header_sha256, path_of, read

CONFIG = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99,
          "intermediate_size": 96, "num_key_value_heads": 2, "max_position_embeddings": 128}
CLUSTER = '[cluster]\ndevice = "h100"\ndevices_per_host = 8\n[cluster.between]\nlatency_us = 5\n'
VALUES = (b"", b"-1", b"9" * 30, b"1e999", b"nan", b"null", b"[]", b"{}", b'""', b"true", b"(" * 3000, b"[" * 3000,
          b'{"a":' * 3000, b"\xff", b"\0", b"=", b"\n", b'"')


READERS = {
    "small.toml": load,
    "rows.npz": lambda path: load_dataset(load({"data": {"source": path}})),
    "weights.safetensors": lambda path: weights_file(path, Path()),
    "config.json": hugging_face,
    "cluster.toml": lambda path: load({}, [f"{key}={json.dumps(value)}" for key, value in cluster_in(path).items()]),
    "outcome.json": lambda path: report(parse(["report", path])),
    "step-00000002.safetensors": lambda path: read(Path(path)),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A right file of each class."""
    folder = tmp_path_factory.mktemp("right")
    (folder / "small.toml").write_text(SMALL)
    np.savez(folder / "rows.npz", x=np.arange(12.0).reshape(6, 2), y=np.arange(6) % 2)
    save_file({"a": np.ones(3, "f4"), "b": np.ones((2, 2))}, folder / "weights.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "cluster.toml").write_text(CLUSTER)
    assert main(["run", str(folder / "small.toml"), "--progress", "none", "--json", str(folder / "outcome.json"),
                 "--checkpoint", str(folder)]) == 0
    path_of(folder / "zero3", 2).rename(folder / "step-00000002.safetensors")
    return folder


def damaged(content, chance):
    """The content with a few bytes, words or stretches replaced, removed or repeated."""
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(content) + 1)
        to = min(len(content), at + chance.choice((0, 1, 1, 3, 20)))
        new = chance.choice((*VALUES, bytes([chance.randrange(256)]), content[at - 20 : at]))
        content = content[:at] + new + content[to:] if chance.random() < 0.9 else content[:at]
    return content


@pytest.mark.parametrize("count", [25, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", READERS)
@pytest.mark.filterwarnings("ignore")
def test_a_damaged_file_is_read_or_refused(name, count, files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    right = (files / name).read_bytes()
    for seed in range(count):
        Path(name).write_bytes(right if not seed else damaged(right, random.Random(seed)))
        try:
            READERS[name](name)
            told = ""
        except ZerosimError as error:
            told = str(error)
        except Exception as error:
            raise AssertionError(f"seed {seed} of {name}: {error!r}") from error
        assert "\n" not in told, (seed, told)
        assert seed or not told, told


FORGED = {
    "lacks a step": lambda about, header: about.pop("step"), "negative": lambda about, header: about.update(step=-1),
    "lacks its model": lambda about, header: about["scenario"].pop("model"),
    "words": lambda about, header: about.update(loss_scale="x"),
    "outside": lambda about, header: header["optimizer.losses"].update(data_offsets=[10**6, 10**6 + 8]),
    "before": lambda about, header: header["optimizer.losses"].update(data_offsets=[-8, 0]),
    "a shape": lambda about, header: header["optimizer.losses"].update(shape=[-2]),
    "no place": lambda about, header: header["optimizer.losses"].pop("data_offsets"),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_a_forged_header_with_its_digest_is_refused(forge, files, tmp_path):
    content = (files / "step-00000002.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__")
    about = json.loads(metadata["zerosim"])
    forge(about, header)
    words = json.dumps(about)
    metadata |= {"zerosim": words, "header_sha256": header_sha256(words, header)}
    text = json.dumps({"__metadata__": metadata, **header}).encode()
    (tmp_path / "forged").write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    with pytest.raises(CheckpointError):
        read(tmp_path / "forged")
