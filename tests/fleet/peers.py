"""Peers by statistics: who is found in a table of stragglers, and how often sound fleets are accused.

The table is rebuilt from what was told of 60 nodes with B200: 52 sound ones, eight at -6 to -7 %.  The noise
of sound fleets is assumed, without a source: between nodes sigma 0.5 to 1 %, between runs 0.3 to 1 %, and
three times that in one run of a hundred.
A finding counts where it appears, as an event would.  Groups and nodes are judged by the product's own code.
docs/placement.md has what thousands of tables and fleets gave.
"""

from random import Random

from nodegauge_judge.model import Severity
from nodegauge_judge.peers import Group, picked, placed
from nodegauge_judge.thresholds import Thresholds

LIMITS = Thresholds()
MIDDLE = 720.0
PROBES = {"nccl": (365, LIMITS.busbw_peers_share), "load": (52, LIMITS.load_peers_share)}
"""Runs a year at the default intervals, and the share that is far below."""
COUNTED = (Severity.WARN, Severity.FAIL)


def group_of(values: list[float]) -> Group:
    ranks = sorted(values)
    group = Group.of([ranks[rank] for rank in picked(len(ranks))], LIMITS)
    assert group is not None
    return group


def severity_of(before: float, now: float, group: Group, *, far_share: float) -> Severity | None:
    one, two = (placed(group, own=own, far_share=far_share, limits=LIMITS) for own in (before, now))
    return two.severity(confirmed=one.below and not group.crowded)


def stragglers(seed: int, *, spread: float, probe: str = "nccl") -> tuple[int, int]:
    random, (_, far) = Random(seed), PROBES[probe]
    nodes = [MIDDLE * random.gauss(1, spread) for _ in range(52)]
    nodes += [MIDDLE * (0.94 - 0.01 * n / 7) for n in range(8)]
    runs = [[node * random.gauss(1, 0.2 * spread) for node in nodes] for _ in range(2)]
    group = group_of(runs[1])
    bad = [
        severity_of(before, now, group, far_share=far) in COUNTED for before, now in zip(*runs, strict=True)
    ]
    return sum(bad[52:]), sum(bad[:52])


def false_findings(seed: int, probe: str) -> tuple[int, int]:
    """False findings of one sound fleet in a year, and of how many nodes."""
    random = Random(f"{probe}{seed}")
    size, (runs, far) = round(4 * 128 ** random.random()), PROBES[probe]
    between, within = random.uniform(0.005, 0.01), random.uniform(0.003, 0.01)
    nodes = [MIDDLE * random.gauss(1, between) for _ in range(size)]
    before, shown, accused, count = nodes, set[int](), set[int](), 0

    def measure(node: float) -> float:
        return node * random.gauss(1, within * (3 if random.random() < 0.01 else 1))

    for _ in range(runs):
        now = [measure(node) for node in nodes]
        group = group_of(now)
        bar = group.median * (1 - min(group.unusual or 1, 1 - far))
        bad = set[int]()
        for n in (n for n, own in enumerate(now) if own < bar):
            one = severity_of(before[n], now[n], group, far_share=far)
            again = severity_of(now[n], measure(nodes[n]), group, far_share=far)  # after `recheck`
            bad |= {n} if one in COUNTED or again in COUNTED else set()
        count += len(bad - shown)
        before, shown, accused = now, bad, accused | bad
    return count, len(accused)
