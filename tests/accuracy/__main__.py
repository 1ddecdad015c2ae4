"""Plans published runs and shows the errors: `python -m tests.accuracy [FILE.csv ...] [--fit DEVICE[:SOFTWARE]]`.

Without a file all shipped tables are planned; another file has the columns of `tables/parallel.csv`. A line that cannot
be planned is listed and skipped. Numbers are fitted again only with `--fit`.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tests.accuracy.figures import NEAR, TABLES, Compared, Figure, compare, errors, read
from tests.accuracy.fitting import SHARES, best_factors, held_out, mean_error, sensitivities_of
from tests.accuracy.lines import shipped
from zerosim.plan import planned_row
from zerosim.plan.planned_row import kind_of

MEASURED = Path(planned_row.__file__).with_name("measured.toml")


def groups(found: Sequence[Compared]) -> dict[str, list[Compared]]:
    """The figures of each group: memory and throughput, and of these those of each source and software."""
    grouped = defaultdict[str, list[Compared]](list)
    for each in found:
        figure = each.figure
        what = "memory" if figure.memory else "mixtures" if figure.mixture else "dense"
        for name in ("", f" {figure.scenario.cluster.software or 'no software named'}", f" {figure.source}"):
            grouped[what + name].append(each)
    return dict(sorted(grouped.items()))


def show(found: Sequence[Compared], without: Sequence[str]) -> None:
    """Print every figure, every group, and what has no plan."""
    for each in sorted(found, key=lambda each: each.error):
        print(f"{each.error:+7.1%}  {each.planned:10.4g} {each.figure.measured:10.4g} {each.figure.kind:28} "
              f"{each.figure.source}: {each.figure.name}{'' if each.fits else ' (does not fit)'}")
    for name, some in groups(found).items():
        group = errors(each.error for each in some)
        print(f"{name:60} {group.near:3} of {group.count:3} within {NEAR:.0%}, mean {group.mean:.1%}, "
              f"worst {group.worst:+.1%}")
    print(f"{len(without)} without a plan:", *without, sep="\n    ")


def written(found: Sequence[Compared]) -> str:
    """The counts of each kind of row as `zerosim/plan/measured.toml` has them, see `measured` of `planned_row.py`."""
    counts = defaultdict[str, list[int]](lambda: [0, 0, 0, 0])
    for each in found:
        first = 2 * each.figure.memory
        counts[kind_of(each.figure.scenario)][first] += abs(each.error) <= NEAR
        counts[kind_of(each.figure.scenario)][first + 1] += 1
    return "".join(f'"{kind}" = {some}\n' for kind, some in sorted(counts.items()))


def refit(figures: Sequence[Figure], device: str, software: str) -> None:
    """Print the factors on the fitted numbers of a device and software, and the errors of held-out sources."""
    some = [each for each in figures if not each.memory and each.scenario.cluster.device == device
            and each.scenario.cluster.software == software]
    sensitivities = sensitivities_of(some, SHARES[:1] if software else SHARES)
    factors = best_factors(sensitivities)
    print(f"{device} {software}: {factors}, mean error over sources {mean_error(sensitivities, factors):.1%}")
    for source, every in held_out(sensitivities).items():
        print(f"{source}: held out {sum(every) / len(every):.1%}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, default=[*map(shipped, TABLES)])
    parser.add_argument("--fit", metavar="DEVICE[:SOFTWARE]", help="fit the rates of this device, and print them")
    parser.add_argument("--json", type=Path, help="write every error")
    parser.add_argument("--write", action="store_true", help="write the accuracy of each kind, which plans say")
    arguments = parser.parse_args()
    tables = [read(path) for path in arguments.files]
    figures, without = [each for some, _ in tables for each in some], [each for _, some in tables for each in some]
    if arguments.fit:
        device, _, software = arguments.fit.partition(":")
        return refit(figures, device, software)
    found, others = compare(figures)
    if arguments.write:
        MEASURED.write_text(written(found))
    if arguments.json:
        arguments.json.write_text(json.dumps([
            {"source": each.figure.source, "run": each.figure.name, "kind": each.figure.kind, "error": each.error,
             "mixture": each.figure.mixture, "measured": each.figure.measured, "fits": each.fits} for each in found]))
    return show(found, [*without, *others])


if __name__ == "__main__":
    main()
