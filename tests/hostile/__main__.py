"""`python -m tests.hostile`: 10,000 mutated scenarios and 1,000 mutants of each other kind; 1 if any did harm."""

import argparse
import random
import resource
import shutil
import sys
import time
from pathlib import Path

from tests.hostile.attack import KINDS, attacked

PLACE = Path(__file__).parents[2] / "build" / "hostile"


def main(arguments=None):
    """Attack, and report each fault with its seed; at the end, how much memory the largest took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--scenarios", type=int, default=10_000)
    parser.add_argument("--files", type=int, default=1000, help="of each other kind")
    given = parser.parse_args(arguments)
    faults = 0
    for kind in KINDS:
        count, began = given.scenarios if kind == "scenario" else given.files, time.monotonic()
        shutil.rmtree(PLACE, ignore_errors=True)
        for found in attacked(PLACE, kind, range(given.seed, given.seed + count)):
            faults += 1
            print(f"{found.kind}, seed {found.seed}: {found.what}", flush=True)
        megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000
        seconds = time.monotonic() - began
        print(f"{count} × {kind} from seed {given.seed}: {seconds:.0f} s, {megabytes} MB at most", flush=True)
    print(f"{faults or 'no'} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
