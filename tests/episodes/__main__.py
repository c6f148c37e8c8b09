"""`make episodes`: the score on recorded episodes.

Some were produced on two cores; generated ones fill up what is missing of each cause, by seed.
"""

import argparse
import gzip
import signal
import sys
from pathlib import Path

import msgspec

from episodes import Episode
from episodes.score import Score

RECORDED = Path(__file__).parent / "recorded"
TUNED_ON = 1
"""One of the seeds that the judge's numbers were chosen with."""
FRESH = (2026, 1128, 70)
"""Seeds that nobody looked at while choosing them."""
PAGE = Path(__file__).parents[2] / "docs" / "episodes.md"
BEGIN, END = "<!-- score -->", "<!-- end of score -->"


def episodes(seed: int) -> list[Episode]:
    """`EACH` of every cause and `SOUND_ONES` sound ones: what was produced, and generated ones."""
    produced = RECORDED / ("tuned_on.jsonl" if seed == TUNED_ON else "kept_aside.jsonl")
    generated = gzip.decompress((RECORDED / f"generated-{seed}.jsonl.gz").read_bytes())
    lines = (produced.read_bytes() + generated).splitlines()
    return [msgspec.json.decode(line, type=Episode) for line in lines]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make episodes", description=__doc__)
    seeds = (TUNED_ON, *FRESH)
    parser.add_argument(
        "--seeds", type=int, nargs="+", choices=seeds, default=FRESH, help="default: the last"
    )
    parser.add_argument("--mistakes", action="store_true", help="list each answer that is not the truth")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.name}")
    return parser


def main() -> int:
    """Print a table for each seed; 1 if one does not reach what is asked."""
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    lines, short = [], []
    for seed in options.seeds:
        score = Score.of(episodes(seed))
        kept = "kept aside" if seed in FRESH else "tuned on"
        lines += [f"Seed {seed} ({kept}):", "", *score.matrix(), ""]
        lines += list(score.mistakes()) if options.mistakes else []
        short += [f"seed {seed}: {line}" for line in score.shortfalls]
    print("\n".join([*lines, *short]))
    if options.write:
        text = PAGE.read_text()
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}")
    return int(bool(short))


if __name__ == "__main__":
    sys.exit(main())
