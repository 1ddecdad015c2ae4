"""`python -m zerosim`, and the program `zerosim`."""

import sys


def start() -> int:
    """The command line; an interrupt while it is being imported is one, too."""
    try:
        from zerosim.cli import main  # noqa: PLC0415
    except KeyboardInterrupt:
        sys.stderr.write("zerosim: interrupted\n")
        return 130
    return main()


if __name__ == "__main__":
    sys.exit(start())
