"""`python -m zerosim`, and the program `zerosim`."""

import sys


def start() -> int:
    """Run the command line; an interrupt during its import prints one line too."""
    try:
        from zerosim.cli import main  # noqa: PLC0415
    except KeyboardInterrupt:
        sys.stderr.write("zerosim: interrupted\n")
        return 130
    return main()


if __name__ == "__main__":
    sys.exit(start())
