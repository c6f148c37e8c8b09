"""`make matrix`: judge every simulated machine with every fault, and compare with what must follow."""

import argparse
import sys
from collections.abc import Sequence

from testbed.matrix.board import Cell, play
from testbed.matrix.expected import machines, scenarios


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make matrix", description="Judge every simulated machine with every fault."
    )
    parser.add_argument("profiles", nargs="*", help="only these profiles")
    parser.add_argument("--fault", default="", help="only scenarios whose name contains this")
    options = parser.parse_args(arguments)
    chosen = [m for m in machines() if not options.profiles or m.profile in options.profiles]
    wanted = [s for s in scenarios() if options.fault in s.name]
    print(f"{len(chosen)} machines, {len(wanted)} faults\n")
    cells = play(chosen, {machine.profile: wanted for machine in chosen}, done=_show)
    wrong = [cell for cell in cells if not cell.good]
    absent = sum(cell.must is None for cell in cells)
    print(
        f"{len(cells)} pairs: {len(cells) - len(wrong)} as expected, of which {absent} are faults that the "
        "machine cannot have"
    )
    for number, cell in enumerate(wrong):
        must = cell.must.line() if cell.must else "(the hardware must refuse this fault)"
        print(f"{len(wrong)} WRONG:\n" * (number == 0) + f"  {cell.name}\n    must be: {must}")
        print(f"    is:      {_message(cell.seen)}")
    return 1 if wrong else 0


def _show(cells: list[Cell]) -> None:
    print(f"{cells[0].machine.profile}  ({cells[0].machine.why})")
    for cell in cells:
        if cell.must is None and cell.good:
            continue
        name = cell.scenario.name if cell.scenario else f"healthy, load {cell.load} %"
        print(f"  {'ok   ' if cell.good else 'WRONG'} {name:<58} {_message(cell.seen)}")
    refused = [cell.scenario.name for cell in cells if cell.must is None and cell.good and cell.scenario]
    if refused:
        print(f"        not possible on this machine: {', '.join(refused)}")
    print(flush=True)


def _message(row: object) -> str:
    return row if isinstance(row, str) else row.line()  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main())
