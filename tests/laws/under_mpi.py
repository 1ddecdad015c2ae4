"""Drawn runs on the ranks of one start: `mpirun -n 4 python -m tests.laws.under_mpi SETTINGS …`, each in JSON.

Rank 0 prints a line of JSON for each run: its failures, and its rows as they are recorded.
"""

import json
import sys

from tests.laws.digests import recorded
from tests.laws.runs import prepared, run_under_mpi

for ran in run_under_mpi(prepared(json.loads(settings)) for settings in sys.argv[1:]):
    if ran is not None:
        print(json.dumps({"failures": ran.failures, "rows": recorded(ran)}), flush=True)
