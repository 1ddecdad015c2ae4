"""A record of what must not change: each shipped scenario and a sample of drawn ones, with the digests of every row.

`digests.json` holds the settings themselves, so that it does not depend on the schema that they were drawn from. Bits
are compared on the arithmetic that made the record, and figures everywhere. What a scenario can no longer say stands in
`RETIRED`: a key is left out of draws where it has the value that is left, and draws with another value are dropped.

    python -m tests.laws.digests             compare everything
    python -m tests.laws.digests --write     make the record anew, which a change of the bits has to explain
"""

import json
import sys
from functools import partial
from pathlib import Path

from tests.laws.runs import TRAINING, Refused, arithmetic, prepared, run, shipped
from tests.laws.scenarios import drawn
from tests.small import small

FILE = Path(__file__).with_name("digests.json")
DRAWS = 110
RETIRED = {
    "parallel.error_feedback": (False, "residuals of quantised gradients are gone"),
    "parallel.delayed_update": (False, "an update waits for the copies to the host"),
    "parallel.replicas": (0, "parallel.shard_ranks says it"),
    "parallel.offload_folder": ("", "files are no tier of memory"),
}
"""A key that is gone -> the value that is left of it, and the reason."""
RETIRED_VALUES = {
    ("parallel.offload_optimizer", "disk"): "files are no tier of memory",
    ("parallel.offload_parameters", "disk"): "files are no tier of memory",
}
"""A key and a value that it can no longer have -> the reason."""
RETIRED_ROWS = {
    ("examples/low_rank/scenario.toml", None): "wires of users are gone",
    ("examples/top_k/scenario.toml", None): "wires of users are gone",
    ("far_memory.toml", "ZeRO-Infinity"): "files are no tier of memory",
    ("far_memory.toml", "delayed"): "an update waits for the copies to the host",
    ("partitioned_activations.toml", "in a file"): "the row keeps activations on the host",
    ("zeropp.toml", "with feedback"): "residuals of quantised gradients are gone",
}
"""A shipped scenario and a row that is gone, or None for all its rows -> the reason."""
BITS = ("weights", "optimizer", "losses")
RECORDED = (*BITS, "sent", "messages", "kept")


def record():
    """The record as the package now makes it: shipped scenarios by file and row, drawn ones with their settings."""
    files = {name: recorded(run(shipped(name, small(name)))) for name in TRAINING}
    draws = [{"settings": settings, "rows": recorded(run(prepared(settings)))} for settings in map(drawn, range(DRAWS))]
    return {"arithmetic": arithmetic(), "shipped": files, "drawn": draws}


def recorded(ran):
    """What is recorded of the rows of a run."""
    return {name: {what: row[what] for what in RECORDED} for name, row in ran.rows.items()}


def settings_left(settings):
    """The settings without keys that are retired; None where what they say is retired."""
    if any((key in RETIRED and value != RETIRED[key][0]) or (key, str(value)) in RETIRED_VALUES
           for key, value in settings.items()):
        return None
    return {key: value for key, value in settings.items() if key not in RETIRED}


def shipped_left(files):
    """The recorded rows of shipped scenarios, without those that are retired."""
    return {name: {row: figures for row, figures in rows.items() if (name, row) not in RETIRED_ROWS}
            for name, rows in files.items() if (name, None) not in RETIRED_ROWS}


def differences(rows, due, *, bits):
    """The figures and digests of the rows that are not as recorded, in words."""
    found = []
    for name, recorded in due.items():
        for what, value in recorded.items():
            if name not in rows:
                found.append(f"{name} is missing")
                break
            if (bits or what not in BITS) and rows[name][what] != value:
                found.append(f"{name}: {what} {rows[name][what]}; recorded {value}")
    return found


def written(found):
    """The record as text: a line for each row and each draw."""
    lines = [f'{{"arithmetic": {json.dumps(found["arithmetic"])},', '"shipped": {']
    lines.append(",\n".join(f'"{name}": {{\n' + ",\n".join(
        f"  {json.dumps(row)}: {json.dumps(figures)}" for row, figures in rows.items()) + "}"
        for name, rows in found["shipped"].items()) + "},")
    lines.append('"drawn": [')
    lines.append(",\n".join(f'{{"settings": {json.dumps(draw["settings"])}, "rows": {{\n' + ",\n".join(
        f"  {json.dumps(row)}: {json.dumps(figures)}" for row, figures in draw["rows"].items()) + "}}"
        for draw in found["drawn"]) + "]}")
    return "\n".join(lines) + "\n"


def main():
    if sys.argv[1:] == ["--write"]:
        FILE.write_text(written(record()), encoding="utf-8")
        return 0
    due, bad = json.loads(FILE.read_text(encoding="utf-8")), 0
    cases = [(name, rows, partial(shipped, name, small(name)))
             for name, rows in shipped_left(due["shipped"]).items()]
    cases += [(str(settings), draw["rows"], partial(prepared, settings))
              for draw in due["drawn"] if (settings := settings_left(draw["settings"])) is not None]
    for name, rows, make in cases:
        try:
            found = differences(run(make()).rows, rows, bits=due["arithmetic"] == arithmetic())
        except Refused as error:
            found = [str(error)]
        bad += len(found)
        print(*(f"{name}: {words}\n" for words in found), sep="", end="", flush=True)
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
