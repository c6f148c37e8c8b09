"""`make corpus`: recordings that strangers made, judged as `nodegauge judge` does, and compared with what an
expert read in them.

A folder beside this file has recordings and their `truth.yaml`.  Four answers are counted.  `right`: the
verdict agrees, and every name that a useful answer has occurs in it, ignoring case and blanks.  `unhelpful`:
neither right nor wrong.  `wrong`: healthy said of what is not, or a failure of a healthy machine.  `refused`:
an error.  Then a table of BMCs with every fault that they can have (`corpus.bmc.table`); `--bmcs dpu huawei`
prints that of these alone.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml
from click.testing import CliRunner

from corpus.bmc import table as bmcs
from nodegauge_cli.__main__ import main as nodegauge

HERE = Path(__file__).parent
RIGHT, UNHELPFUL, WRONG, REFUSED = ANSWERS = ("right", "unhelpful", "wrong", "refused")
AGREES = {
    "fault": {"fail"},
    "degraded": {"warn", "fail"},
    "healthy": {"pass"},
    "not-judged": {"unknown", "skipped", "no-load"},
}
"""The verdicts that agree with a truth.  A healthy machine whose text shows no health, such as a kernel log,
may also be `unknown`, if the answer says that nothing in it is wrong."""
MISTAKES = {"fault": {"pass"}, "degraded": {"pass"}, "healthy": {"fail"}, "not-judged": {"fail"}}
NOTHING_WRONG = "nothing wrong in the pasted"


class Scored(NamedTuple):
    file: Path
    answer: str
    why: str = ""


def score(file: Path, *, truth: str, names: list[str]) -> Scored:
    runner = CliRunner(env={"COLUMNS": "1000"})
    outcome = runner.invoke(nodegauge, ["judge", str(file)])
    output, squeezed = " ".join(outcome.output.lower().split()), "".join(outcome.output.lower().split())
    if outcome.exit_code not in (0, 1, 3) or not isinstance(outcome.exception, SystemExit | None):
        return Scored(file, REFUSED, " ".join(outcome.output.split())[-160:] or repr(outcome.exception))
    verdict = output.split(" ", 1)[0]
    if verdict in MISTAKES[truth]:
        return Scored(file, WRONG, f"{verdict} for {truth}")
    lacking = [name for name in names if "".join(name.lower().split()) not in squeezed]
    clean = truth == "healthy" and verdict == "unknown" and NOTHING_WRONG in output
    if verdict not in AGREES[truth] and not clean:
        return Scored(file, UNHELPFUL, f"{verdict} for {truth}")
    return Scored(file, UNHELPFUL, f"without {', '.join(lacking)}") if lacking else Scored(file, RIGHT)


def every(folders: list[Path]) -> Iterator[Scored]:
    for folder in folders:
        for entry in yaml.safe_load((folder / "truth.yaml").read_text(encoding="utf-8")):
            names = [str(name) for name in entry.get("names") or []]
            yield score(folder / entry["file"], truth=entry["truth"], names=names)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make corpus", description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, help="folders with a truth.yaml (default: all here)")
    parser.add_argument("--bmcs", nargs="+", choices=bmcs.MACHINES, help="only the table of these BMCs")
    asked = parser.parse_args()
    if asked.bmcs:
        return 1 if bmcs.show(asked.bmcs) else 0
    chosen = asked.folders or sorted(path.parent for path in HERE.glob("*/truth.yaml"))
    scored = list(every(chosen))
    for one in scored:
        if one.answer != RIGHT:
            print(f"{one.answer:9}  {one.file.parent.name}/{one.file.name}: {one.why}")
    counts = Counter(one.answer for one in scored)
    print(f"{len(scored)} recordings: " + ", ".join(f"{counts[answer]} {answer}" for answer in ANSWERS))
    wrong = counts[WRONG] + (0 if asked.folders else bmcs.show(list(bmcs.MACHINES)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
