"""The budget of lines: the Python lines of the package and of its tests beside their totals in setup.cfg.

    python -m tests.house.budget

It prints the lines of each folder, and fails above a total. A total is raised by a commit that says why.
"""

import configparser
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def lines_by_folder(package: Path) -> dict[str, int]:
    """The lines of Python files by first-level folder of `package`, links not followed; loose files under `.`."""
    lines: dict[str, int] = {}
    for path in package.rglob("*.py"):
        if any(part.is_symlink() for part in (path, *path.parents)):
            continue
        first, *rest = path.relative_to(package).parts
        room = first if rest else "."
        lines[room] = lines.get(room, 0) + len(path.read_text().splitlines())
    return lines


def main(root: Path = ROOT) -> int:
    """Print the lines of every folder, and each total beside its budget; 1 if one is above."""
    config, above = configparser.ConfigParser(), 0
    config.read(root / "setup.cfg")
    for package, most in config["budget"].items():
        lines = lines_by_folder(root / package)
        for room, count in sorted(lines.items(), key=lambda entry: -entry[1]):
            print(f"{package + '/' + room:24} {count:7,}")
        total = sum(lines.values())
        print(f"{package:24} {total:7,} of {int(most):7,}{'  above its budget' * (total > int(most))}\n")
        above |= total > int(most)
    return int(above)


if __name__ == "__main__":
    sys.exit(main())
