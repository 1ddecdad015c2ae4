"""Checks a script under any launcher that sets RANK and WORLD_SIZE: torchrun, srun, accelerate, deepspeed, mpirun.

    torchrun --nproc-per-node 8 -m zerosim.torch.check train.py ARGS…
    python -m zerosim.torch.check --judge RECORDS

Each rank writes its record into a folder when its script has ended; rank 0 judges them. Ranks on several hosts need a
folder that all of them see: --records FOLDER.
"""

import argparse
import json
import os
import pickle
import runpy
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from zerosim.torch.check.judge import judge, lines
from zerosim.torch.check.record import Record

SECONDS = 60.0
"""How long rank 0 waits for the records of the others."""


def main() -> int:
    """Run the script as one of the launcher's processes; 1 if there are findings, else the script's exit code."""
    parser = argparse.ArgumentParser(prog="python -m zerosim.torch.check", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", metavar="A..B", default="1..", help="the steps to check, such as 1..3")
    parser.add_argument("--double", action="store_true", help="a default dtype of 64 bits, with errors of about 1e-16")
    parser.add_argument("--json", metavar="FILE", help="write verdicts and findings as JSON")
    parser.add_argument("--records", metavar="FOLDER", help="where ranks write their records")
    parser.add_argument("--judge", metavar="FOLDER", help="judge the records of an earlier run; needs no PyTorch")
    parser.add_argument("script", nargs="?", help="a Python file that trains with torch.distributed")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the arguments of the script")
    asked = parser.parse_args()
    first, dots, last = asked.steps.partition("..")
    if asked.judge:
        return say([pickle.loads(each.read_bytes()) for each in sorted(Path(asked.judge).glob("rank*"))], asked.json)
    if not asked.script or not Path(asked.script).is_file() or not (first + last).isdigit():
        parser.error("give a Python file after the flags, and --steps as 1..3")
    import torch  # noqa: PLC0415 - a judge needs none

    from zerosim.torch.check.recorder import Recorder  # noqa: PLC0415 - as above

    if asked.double:
        torch.set_default_dtype(torch.float64)
    recorder = Recorder(int(first), int(last) if last else None if dots else int(first))
    run = "-".join(os.environ.get(each, "") for each in ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "SLURM_JOB_ID"))
    folder = Path(asked.records or f"{tempfile.gettempdir()}/zerosim-check-{os.getuid()}-{run}")
    folder.mkdir(parents=True, exist_ok=True)
    sys.argv, sys.path[0] = [asked.script, *asked.arguments], str(Path(asked.script).resolve().parent)
    code: Any = 0
    try:
        with recorder.listening() as record:
            runpy.run_path(asked.script, run_name="__main__")
    except SystemExit as ended:
        code = ended.code
    record.rank, record.size = (int(os.environ[each]) for each in ("RANK", "WORLD_SIZE"))
    mine = folder / f"rank{record.rank:05}"
    (half := mine.with_suffix(".part")).write_bytes(pickle.dumps(record))
    half.rename(mine)
    if record.rank:
        return code or 0
    files, deadline = [folder / f"rank{rank:05}" for rank in range(record.size)], time.monotonic() + SECONDS
    while not all(each.exists() for each in files) and time.monotonic() < deadline:
        time.sleep(0.05)
    records = [pickle.loads(each.read_bytes()) for each in files if each.exists()]
    for each in () if asked.records else files:
        each.unlink(missing_ok=True)
    return code or say(records, asked.json)


def say(records: list[Record], file: str | None) -> int:
    """Judge the records, and print what they say; 1 if there are findings."""
    if not records or len(records) < records[0].size:
        print(f"zerosim: there are records of {len(records)} ranks only", file=sys.stderr)
        return 2
    document = judge(records)
    print("\n".join(lines(document)), file=sys.stderr, flush=True)
    if file:
        Path(file).write_text(json.dumps(document, indent=1) + "\n")
    return int(bool(document["findings"]))


if __name__ == "__main__":
    sys.exit(main())
