"""Time and peak memory of the planner itself, beside work of Python's own in the same run.

Each task runs in a process of its own, so that no plan finds what another one has computed. Starting Python
counts as memory and not as time; the planner's imports count as both.
"""

import json
import subprocess
import sys

from zerosim.commands.benches.samples import Sample

PLANS = {
    "405B on 16,384 ranks, in four directions": "zs.plan('llama3_405b_4d')",
    "search of 8B on 1,024 devices": "zs.plan('llama3_8b', 1024, search=1)",
}
REFERENCE = "sorted(map(str, range(1_000_000)))"
"""The work that seconds are relative to: objects and comparisons, as in a plan."""
IN_A_PROCESS = """
import json, sys, time
import zerosim as zs
from zerosim.observe.resident import status_bytes
started = time.perf_counter()
exec(sys.argv[1])
print(json.dumps([time.perf_counter() - started, status_bytes("VmHWM")]))
"""


def time_plans(rounds: int) -> list[Sample]:
    """The seconds of each plan and of the reference, round by round, and the most memory of any round, in 10⁶ bytes."""
    found = [{code: alone(code) for code in [*PLANS.values(), REFERENCE]} for _ in range(rounds)]
    reference = [each[REFERENCE][0] for each in found]
    return [Sample({"plan": name},
                   {"plan_seconds": [each[code][0] for each in found], "reference_seconds": reference},
                   {"peak_mb": max(each[code][1] for each in found) / 1e6}) for name, code in PLANS.items()]


def alone(code: str) -> tuple[float, int]:
    """The seconds that a line of Python takes in a process of its own, and the peak of resident bytes (Linux)."""
    done = subprocess.run([sys.executable, "-c", IN_A_PROCESS, code], stdout=subprocess.PIPE, check=True)
    seconds, peak_bytes = json.loads(done.stdout.splitlines()[-1])
    return seconds, peak_bytes
