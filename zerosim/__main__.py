"""`python -m zerosim`, and the program `zerosim`."""

import sys


def start() -> int:
    """Run the command line; it is imported here, where the hooks of the package report an interrupt in one line."""
    from zerosim.commands.cli import main  # noqa: PLC0415

    return main()


if __name__ == "__main__":
    sys.exit(start())
