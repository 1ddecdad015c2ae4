"""`python -m zerosim`, and the program `zerosim`."""

import sys


def start() -> int:
    """Run the command line; it is imported here, where the hooks of the package report an interrupt in one line."""
    from zerosim.commands.cli import main  # noqa: PLC0415
    from zerosim.commands.ends import ended  # noqa: PLC0415

    return main() if sys.argv[1:2] == ["torch"] else ended(main)    # a script ends as it likes


if __name__ == "__main__":
    sys.exit(start())
