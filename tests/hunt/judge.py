"""What a fault is: a random valid scenario must pass, say so within 80 columns, and leave what the documents promise.

Each scenario is run twice: as it was drawn, and once more with the claims that its outcome makes good.
"""

import contextlib
import copy
import hashlib
import io
import json
import re
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from rich.cells import cell_len
from safetensors.numpy import load_file

from tests.hunt.draw import Document, Drawn, groups, layers_of
from tests.observe.tracing import event_faults, span_faults
from zerosim.commands.cli import main
from zerosim.show.document import read_trace
from zerosim.stages import STAGES

ROOT = Path(__file__).parents[2]
COLUMNS = 80
LIMIT_SECONDS = 60
"""Of a processor's time; five times as much by the clock, since others may be using the machine."""
COLLECTIVE_KEYS = {"schema", "title", "scenario", "world", "passed", "programs", "findings"}


@dataclass(frozen=True)
class Fault:
    """Of which kind a fault is, so that a smaller scenario can be known to have the same, and what was seen."""

    kind: str
    account: str


class TooLong(Exception):
    """No `OSError` as `TimeoutError` is one, which whoever reads a file takes for the file's."""


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    warned: tuple[str, ...]


def judge(drawn: Drawn, folder: Path) -> Fault | None:
    """Run the scenario in the local world; what is wrong with that, if anything."""
    first = one_run(drawn, folder)
    if isinstance(first, Fault):
        return first
    claims = claimed(first)
    if not claims:
        return None
    section, said = claims
    document = copy.deepcopy(drawn.document)
    document.setdefault(section, {}).update(said)
    second = one_run(drawn.saying(document), folder)
    if isinstance(second, Fault):
        return Fault(f"claims: {second.kind}", f"with [{section}] {said}: {second.account}")
    changed = [key for key in ("rows", "programs") if lasting(first.get(key)) != lasting(second.get(key))]
    return Fault(f"claims: other {changed}", "two runs of one scenario differ") if changed else None


def lasting(rows: Any) -> Any:
    """Rows without what time and memory make of them."""
    passing = {"seconds", "memory", "trace"}
    return rows and [{key: value for key, value in row.items() if key not in passing} for row in rows]


def one_run(drawn: Drawn, folder: Path) -> Document | Fault:
    """The JSON document of a run, or what is wrong with it."""
    path = drawn.write(folder)
    done = run(["run", str(path), *within(folder, drawn.flags)])
    if fault := spoke(done) or kept_to_columns(done, drawn.flags):
        return fault
    try:
        document = strict(done.stdout if "-" in drawn.flags else (folder / "out.json").read_text())
    except ValueError as error:
        return Fault("JSON", str(error))
    except FileNotFoundError:
        return Fault("JSON", f"no JSON was written; exit code {done.code}")
    return next(chain(documented(document), coherent(document, done, folder, drawn.flags)), document)


def within(folder: Path, flags: Sequence[str]) -> list[str]:
    """The flags with files in `folder`."""
    return [str(folder / flag) if "." in flag else flag for flag in flags]


def run(arguments: list[str]) -> Done:
    """`zerosim ARGUMENTS` in this process, ended after a minute."""
    out, err = io.StringIO(), io.StringIO()
    started = time.monotonic()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), \
            warnings.catch_warnings(record=True) as warned, limited(LIMIT_SECONDS):
        warnings.simplefilter("always")
        code = main(arguments)
    seconds = time.monotonic() - started
    return Done(code, out.getvalue(), err.getvalue(), seconds, tuple(str(each.message) for each in warned))


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """`TooLong` in the main thread after so many seconds."""

    def over(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"still ran after {seconds} s")

    timers = {signal.ITIMER_PROF: (signal.SIGPROF, seconds), signal.ITIMER_REAL: (signal.SIGALRM, 5 * seconds)}
    before = {number: signal.signal(number, over) for number, _ in timers.values()}
    for timer, (_, allowed) in timers.items():
        signal.setitimer(timer, allowed)
    try:
        yield
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def spoke(done: Done) -> Fault | None:
    """An exit code that no valid scenario has, a traceback, a warning."""
    if done.code not in (0, 1) or "Traceback" in done.stderr:
        return Fault(f"exit {done.code}: {last_line(done.stderr)}", done.stderr)
    return Fault(f"warning: {done.warned[0]}", "\n".join(done.warned)) if done.warned else None


def last_line(said: str) -> str:
    """What a message says in the end, without places and numbers, so that it is the same for a smaller scenario.

    >>> last_line("Traceback …\\nIndexError: index 3 is out of range\\n")
    'IndexError: index n is out of range'
    """
    last = (said.strip().splitlines() or [""])[-1]
    return without_numbers(re.sub(r"\S*/", "", last))[:70]


def without_numbers(said: str) -> str:
    return re.sub(r"\d+", "n", said)


def kept_to_columns(done: Done, flags: Sequence[str]) -> Fault | None:
    """Tables wider than a terminal, or with cells cut at their end; the sentence of a run that passed is one line."""
    if "live" in flags:
        return None
    shown = done.stderr if "-" in flags else done.stdout
    wide = [line for line in shown.splitlines() if cell_len(line.rstrip()) > COLUMNS]
    wide = [line for line in wide if not line.startswith("PASSED: ") and " step " not in line]
    if wide:
        return Fault("columns", "\n".join(wide))
    return Fault("cut", shown) if re.search(r"…(\s|$)", shown) else None


def strict(text: str) -> Document:
    """The one JSON object that `text` is, without NaN or infinities."""

    def refused(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    found = json.loads(text, parse_constant=refused)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


@cache
def promised() -> dict[str, set[str]]:
    """The keys that docs/outcome.md gives to each object, the whole document's under the empty name."""
    found: dict[str, set[str]] = {}
    heading = ""
    for line in (ROOT / "docs" / "outcome.md").read_text().splitlines():
        if line.startswith("#"):
            named = re.findall(r"`(\w+)`$", line)
            heading = named[0] if named else "" if line.endswith("`zerosim run`") else line.lstrip("# ")
        elif line.startswith("| `"):
            found.setdefault(heading, set()).update(re.findall(r"`(\w+)`", line.split("|")[1]))
    return found


def documented(document: Document) -> Iterator[Fault]:
    """Objects that have other keys than the documentation says."""
    if document.get("schema") == "zerosim.collective/1":
        yield from differing("", document, COLLECTIVE_KEYS)
        return
    yield from differing("", document, promised()[""])
    for name in ("rows", "did_not_fit", "on_other_ranks"):
        for each in document.get(name, []):
            shipped = {"own_stage"} if each.get("stage") in STAGES else set()
            yield from differing(name, each, promised()[name] - shipped)
    for stage in document.get("rows", []):
        for name in ("traffic", "memory"):
            for each in stage.get(name, []):
                yield from differing(name, each, promised()[name])
        for name in ("first_divergence", "fragmentation"):
            if stage.get(name) is not None:
                yield from differing(name, stage[name], promised()[name])
        for each in (stage.get("fragmentation") or {}).get("address_space", []):
            yield from differing("address_space", each, promised()["address_space"])


def differing(name: str, found: Document, due: set[str]) -> Iterator[Fault]:
    if found.keys() != due:
        odd = sorted(found.keys() ^ due)
        yield Fault(f"documented {name}: {odd}", f"{name or 'the document'} and its documentation differ in {odd}")


def coherent(document: Document, done: Done, folder: Path, flags: Sequence[str]) -> Iterator[Fault]:
    """A verdict that is not the one due, or figures that contradict each other."""
    if document["passed"] != (done.code == 0):
        yield Fault("exit code", f"exit {done.code}, passed is {document['passed']}")
    if done.code and not may_fail(document):
        failures = document.get("failures") or document.get("findings")
        kinds = sorted({without_numbers(str(each.get("what"))) for each in failures})
        yield Fault(f"failed: {', '.join(kinds)}", str(failures))
    if "rows" in document:
        yield from coherent_training(document)
    if "--trace" in flags:
        yield from coherent_traces(document, folder / "trace.json")
    weights = folder / "weights.safetensors"
    if "--weights" in flags and digest(weights) != document["rows"][-1]["weights_sha256"]:
        yield Fault("weights file", "its digest is not that of the last row")


def coherent_traces(document: Document, events: Path) -> Iterator[Fault]:
    """Spans that do not add up, or trace events that are not well-formed."""
    for row in document["rows"]:
        trace = row["trace"]
        if (trace is not None) != (document["scenario"]["train"]["steps"] > 0):
            yield Fault("no trace", f"the trace of {row['name']} is {trace}")
        for fault in span_faults(read_trace(trace)) if trace else ():
            yield Fault("spans", fault)
    for fault in event_faults(json.loads(events.read_text())):
        yield Fault("trace events", fault)


def may_fail(document: Document) -> bool:
    """Whether rows are compared with the first one, are other computations than it, and came to something else."""
    if "rows" not in document or document["scenario"]["check"]["reference"]:
        return False
    ending = ("weights_sha256", "optimizer_sha256", "losses")
    endings = {str([row[key] for key in ending]) for row in document["rows"]}
    return len(endings) > 1 and len(set(computations(document["scenario"]))) > 1


def computations(scenario: Document) -> list[str]:
    """What makes the numbers of each row, beside what all rows share."""
    train, ranks, order = scenario["train"], scenario["world"]["ranks"], scenario["parallel"]["order"]
    model, parts = scenario["model"], train["micro_batches"] // ranks
    tied = model["kind"] == "transformer" and model["tied_embeddings"]
    chunks_tell = (order == "ring" and ranks > 2) or train["clip_norm"]
    rounded = train["precision"] in ("fp16", "bf16")
    found = []
    for row in rows(scenario):
        by_part = row["accumulation"] == "micro_batch" and row["stage"] in ("zero2", "zero3") and parts > 1
        cast = row["param_dtype"] if row["stage"] == "zero3" else "weights"
        widths = (row["accumulate_dtype"],) if rounded or cast != "weights" else ()
        codes = (row["quantized_weights"], row["quantized_block"], row["shard_ranks"], row["replicas"])
        widths += codes if row["stage"] == "zero3" and row["quantized_weights"] != "none" else ()
        codes = (row["quantized_gradients"], row["quantized_block"])
        widths += codes * (row["quantized_gradients"] != "none")
        dtypes = (*widths, cast, row["autocast"], row["reduce_dtype"], row["output_dtype"])
        updates = rounded and row["publish"] == "updates" and row["stage"] in ("zero1", "zero2")
        units = sorted(map(sorted, groups(row["units"], layers_of(model), tied))) if chunks_tell else []
        found.append(str((units, by_part, dtypes, updates)))
    return found


def rows(scenario: Document) -> list[Document]:
    """The keys of [parallel] as each row has them, with its stage."""
    parallel = scenario["parallel"]
    variants = scenario["variant"] or [{"stage": stage} for stage in parallel["stages"]]
    return [{**parallel, **{k: v for k, v in each.items() if v is not None}} for each in variants]


def coherent_training(document: Document) -> Iterator[Fault]:
    scenario = document["scenario"]
    ranks, steps = scenario["world"]["ranks"], scenario["train"]["steps"]
    if [row["stage"] for row in rows(scenario)] != [stage["stage"] for stage in document["rows"]]:
        yield Fault("rows", "other rows than the scenario's")
    for stage in document["rows"]:
        numbers = [list(range(ranks))] * 2
        if [[each["rank"] for each in stage[name]] for name in ("traffic", "memory")] != numbers:
            yield Fault("ranks", "not one entry for each rank")
        if len(stage["losses"]) != steps or not 0 <= stage["updates"] <= steps:
            yield Fault("steps", f"{len(stage['losses'])} losses, {stage['updates']} updates in {steps} steps")
        if sum(each["sent_bytes"] for each in stage["traffic"]) != sum(e["received_bytes"] for e in stage["traffic"]):
            yield Fault("traffic", "what was sent is not what was received")
        for each in stage["traffic"]:
            for key in ("sent_bytes", "messages"):
                if each[key] != sum(count[key] for count in each["by_collective"].values()):
                    yield Fault("traffic", f"{key} of the collectives do not add up to the rank's")


def digest(path: Path) -> str:
    """SHA-256 of the weights in a file, in the model's order."""
    tensors = load_file(path)
    order = sorted(tensors, key=place_in_model)
    return hashlib.sha256(b"".join(np.ascontiguousarray(tensors[name]).tobytes() for name in order)).hexdigest()


NAMES = (
    "wte", "wpe", "model.embed_tokens", "weight", "bias",
    "ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj",
    *(f"self_attn.{part}" for part in (
        "q_down_proj", "q_norm", "q_up_proj", "q_rotary_proj", "kv_down_proj", "kv_norm", "k_rotary_proj", "k_up_proj",
        "v_up_proj", "q_proj", "k_proj", "v_proj", "o_proj")), *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
    "input_layernorm", "post_attention_layernorm",
    "router", "gate", "inner", "outer", "ln_f", "model.norm", "lm_head",
)
"""Of parameters, in the order of each model."""


def place_in_model(name: str) -> tuple[int, int, bool]:
    """
    >>> sorted(["ln_f.bias", "h.10.ln_1.weight", "h.2.ln_2.bias", "h.2.ln_1.bias", "wpe.weight"], key=place_in_model)
    ['wpe.weight', 'h.2.ln_1.bias', 'h.2.ln_2.bias', 'h.10.ln_1.weight', 'ln_f.bias']
    >>> sorted(["layers.1.weight", "layers.0.bias", "layers.0.weight"], key=place_in_model)
    ['layers.0.weight', 'layers.0.bias', 'layers.1.weight']
    """
    layer = re.search(r"(?:^|\.)(?:h|layers)\.(\d+)\.", name)
    of_layer = name[layer.end() :] if layer else name
    place = NAMES.index(of_layer.removesuffix(".weight").removesuffix(".bias"))
    first = place < NAMES.index("weight")
    return int(layer.group(1)) if layer else -1 if first else 10**6, place, name.endswith("bias")


# Claims.


def claimed(document: Document) -> tuple[str, Document] | None:
    """The section of claims that the outcome makes good, none where it did not pass."""
    if not document["passed"]:
        return None
    if "rows" in document:
        return "check", claims_of_training(document)
    return "expect", claims_of_collectives(document)


def claims_of_training(document: Document) -> Document:
    stages, scenario = document["rows"], document["scenario"]
    steps = scenario["train"]["steps"]
    said: Document = {
        "same_weights": len({stage["weights_sha256"] for stage in stages}) == 1,
        "volumes": [stage["volume"] for stage in stages],
    }
    said["largest_messages"] = [max(rank["largest_message_bytes"] for rank in stage["traffic"]) for stage in stages]
    said["activations"] = [max(rank["peak_bytes"]["activations"] for rank in stage["memory"]) for stage in stages]
    if steps and not any(stage["fragmentation"] is None for stage in stages):
        for key, name in (("beyond_peak", "first_fit"), ("beyond_peak_laid_out", "first_fit_laid_out")):
            said[key] = [stage["fragmentation"]["beyond_peak_bytes"][name] for stage in stages]
    most = [max(rank["messages"] for rank in stage["traffic"]) for stage in stages]
    if steps and all(stage["updates"] == steps for stage in stages):
        said["messages"] = [count // steps for count in most]
    tests = [stage["test"] for stage in stages]
    if scenario["data"]["source"] in ("digits", "sort", "reverse"):
        said["test_accuracy"] = min([*tests, 0.99])
    elif scenario["model"]["kind"] != "mlp" and not any(isinstance(each, str) for each in tests):
        said["test_loss"] = np.nextafter(max(tests), np.inf).item()
    return said


def claims_of_collectives(document: Document) -> Document:
    programs = document["programs"]

    def same(of: Callable[[Document], Any]) -> bool:
        return all(of(program) == of(programs[0]) for program in programs)

    said: Document = {
        "same_results": same(lambda program: program["results_sha256"]),
        "same_bytes_sent": same(lambda program: program["sent_bytes"]),
        "same_messages": same(lambda program: program["messages"]),
    }
    agreements = {len({each for each in program["results_sha256"] if each}) == 1 for program in programs}
    return said | ({"ranks_agree": agreements.pop()} if len(agreements) == 1 else {})
