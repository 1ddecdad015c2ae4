"""Several command lines in one start: `mpirun -n 4 python -m tests.mpi.commands LINE …`, each a list of words in JSON.

All ranks run them in turn. Rank 0 prints a line of JSON for each: exit code, standard output and error of every rank.
"""

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout

from zerosim.commands.cli import main
from zerosim.worlds.mpi import connect
from zerosim.worlds.objects import gather_objects

comm = connect()
for line in sys.argv[1:]:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            code = main(json.loads(line))
        except SystemExit as stop:
            code = stop.code
    if ended := gather_objects(comm, (code, out.getvalue(), err.getvalue())):
        print(json.dumps(ended), flush=True)
