"""`python -m zerosim.torch`: `zerosim torch` over the script's own groups, under any launcher of PyTorch."""

import argparse
import sys

from zerosim.commands.torch import add_arguments, main
from zerosim.core.errors import UsageError

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m zerosim.torch", description=__doc__)
    add_arguments(parser)
    try:
        code = main(parser.parse_args(), ours=False)
    except UsageError as error:
        parser.error(str(error))
    sys.exit(code)
