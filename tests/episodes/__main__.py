"""`make episodes`: the score on recorded and generated episodes.

The recorded ones were produced on two cores; generated ones fill up what is missing of each cause, by seed.
"""

import argparse
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from episodes import CAUSES, EACH, SOUND, SOUND_ONES, Episode, cost
from episodes.generated import generate
from episodes.score import Score

RECORDED = Path(__file__).parent / "recorded"
TUNED_ON = (1, 2, 3, 4, 5)
"""Seeds that the judge's numbers were chosen with."""
FRESH = (2026, 1128, 70)
"""Seeds that nobody looked at while choosing them."""
PAGE = Path(__file__).parents[2] / "docs" / "episodes.md"
BEGIN, END = "<!-- score -->", "<!-- end of score -->"


def recorded(seed: int) -> list[Episode]:
    """Those that were produced: for seeds that were kept aside those that were, too."""
    file = "kept_aside.jsonl" if seed in FRESH else "tuned_on.jsonl"
    return [msgspec.json.decode(line, type=Episode) for line in (RECORDED / file).read_bytes().splitlines()]


def episodes(seed: int) -> Iterator[Episode]:
    """`EACH` of every cause and `SOUND_ONES` sound ones: what was produced, and generated ones."""
    rng, made = random.Random(seed), recorded(seed)
    count = Counter(episode.truth for episode in made)
    yield from made
    for truth, wanted in (*((cause, EACH) for cause in CAUSES), (SOUND, SOUND_ONES)):
        for _ in range(wanted - count[truth]):
            yield generate(truth, rng=rng)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make episodes", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=FRESH, help="of the generated ones")
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
        kept = "kept aside" if seed in FRESH else "tuned on" if seed in TUNED_ON else "free"
        lines += [f"Seed {seed} ({kept}):", "", *score.matrix(), ""]
        lines += list(score.mistakes()) if options.mistakes else []
        short += [f"seed {seed}: {line}" for line in score.shortfalls]
    lines += [cost.measure()]
    print("\n".join([*lines, *short]))
    if options.write:
        text = PAGE.read_text()
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}")
    return int(bool(short))


if __name__ == "__main__":
    sys.exit(main())
