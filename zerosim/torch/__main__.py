"""Checks a script under torchrun, over gloo or NCCL: no MPI is loaded, and zerosim's backend is not used.

    torchrun --nproc-per-node 4 -m zerosim.torch --check train.py ARGS…
"""

import argparse
import os
import sys
from pathlib import Path

from zerosim.errors import UsageError, ZerosimError
from zerosim.torch.running import run_main
from zerosim.torch.verdicts import CheckOptions, TrainingCheck, say, steps_of


def main() -> int:
    """Run the script as one of torchrun's processes; 1 if there are findings, else the script's exit code."""
    parser = argparse.ArgumentParser(prog="python -m zerosim.torch", description=__doc__)
    parser.add_argument("--check", action="store_true", help="check that the script trains what one process would")
    parser.add_argument("--check-steps", metavar="A..B", default="1..", help="the steps to check, such as 1..3")
    parser.add_argument("--double", action="store_true", help="check with a default dtype of 64 bits")
    parser.add_argument("--json", metavar="FILE", help="write verdicts and findings as JSON")
    parser.add_argument("script", help="a Python file that trains with torch.distributed")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the arguments of the script")
    arguments = parser.parse_args()
    if not Path(arguments.script).is_file():
        parser.error(f"there is no script {arguments.script!r}; give a Python file after the flags")
    if not arguments.check:
        parser.error("give --check; without it, run the script itself, or mpirun -n 4 zerosim torch")
    try:
        asked = CheckOptions(*steps_of(arguments.check_steps), double=arguments.double)
    except UsageError as error:
        parser.error(str(error))
    try:
        with TrainingCheck(asked, ours=False).around() as check:
            code = run_main(arguments.script, arguments.arguments)
    except ZerosimError as error:
        print(f"zerosim: rank {os.environ.get('RANK', '0')}: {error}", file=sys.stderr, flush=True)
        os._exit(error.exit_code)  # other ranks wait for this one, and threads of gloo for them
    return code or say(check.document, int(os.environ.get("RANK", "0")), arguments.json)


if __name__ == "__main__":
    sys.exit(main())
