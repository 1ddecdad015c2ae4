"""`python -m zerosim.torch`: `zerosim torch` over the script's own groups, under any launcher of PyTorch."""

import argparse
import sys

from zerosim.core.errors import UsageError
from zerosim.torch.check.checked_run import leave
from zerosim.torch.command import add_arguments, main

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m zerosim.torch", description=__doc__)
    add_arguments(parser)
    arguments = parser.parse_args()
    try:
        code = main(arguments, ours=False)
    except UsageError as error:
        parser.error(str(error))
    if arguments.check or arguments.record:
        leave(code)
    sys.exit(code)
