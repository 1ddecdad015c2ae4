"""The budget of lines: Python lines by folder beside the limits in setup.cfg; `make lint` fails above one.

    python -m tests.house.budget

A limit is raised by a commit that says why. `.` is the limit of a package's loose files, `total` that of all its files.
A package with a total alone has no limits by folder.
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


def excesses(package: str, lines: dict[str, int], limits: dict[str, int]) -> list[str]:
    """One sentence for each folder above its limit or without one, and for the sum above the limit under ``""``."""
    sentences = []
    for room, count in sorted(lines.items()):
        if room not in limits and len(limits) > 1:
            sentences.append(f"{package}/{room} has {count:,} lines and no budget")
        elif count > limits.get(room, count):
            sentences.append(f"{package}/{room} has {count:,} lines, its budget {limits[room]:,}")
    if (total := sum(lines.values())) > limits[""]:
        sentences.append(f"{package} has {total:,} lines, its budget {limits['']:,}")
    return sentences


def main() -> int:
    """Print every folder's lines beside its budget; 1 if one is above."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    failures = []
    for package in ("zerosim", "tests"):
        limits = {room if room != "total" else "": int(limit.replace(",", ""))
                  for room, limit in config[f"budget:{package}"].items()}
        lines = lines_by_folder(ROOT / package)
        for room, count in sorted(lines.items(), key=lambda entry: -entry[1]):
            print(f"{package + '/' + room:24} {count:7,}" + (f" of {limits[room]:7,}" if room in limits else ""))
        print(f"{package:24} {sum(lines.values()):7,} of {limits['']:7,}\n")
        failures += excesses(package, lines, limits)
    print("\n".join(failures) or "within the budget")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
