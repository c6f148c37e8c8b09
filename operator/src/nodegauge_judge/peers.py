"""Comparing a node with nodes of the same hardware: who counts, what is usual among them, and what is not.

The operator knows the other nodes; the judge says by a fingerprint which of them are comparable.  A slow node
is far from the median in units of the group's own spread, by a robust estimate that stragglers hardly move
(ADR 0040).  One run proves nothing: a finding takes a second one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from statistics import median

from msgspec import Struct

from nodegauge_judge.model import Answer, Severity, Versions
from nodegauge_judge.thresholds import Thresholds

Fleet = Callable[[str], Sequence[Versions]]
"""By class of node: what each other node of it runs; of many, some (`picked`)."""
Peers = Callable[[str], Sequence[float]]
"""By fingerprint: one value of each other node with that fingerprint (all_reduce busbw in GB/s at 1 GiB, SM
clock in MHz, or TFLOPS); of more than `MAX_VALUES`, those at `picked`."""
MAX_VALUES = 64
"""Values that describe a group of any size.  Chosen by this project: judging a node must not take longer in a
fleet of thousands."""
PEERS_NEEDED = 3
"""Comparable nodes, including this one, below which a median says little.  Chosen by this project."""
SPREAD_NEEDED = 8
"""Comparable nodes, including this one, below which their spread says little.  Chosen by this project: the
deviation of seven values is often off by half."""
DEVIATIONS = 4.0
"""Standard deviations below the median from which a node is unusual.  Chosen by this project from simulated
fleets (`make peers`): less accuses sound nodes, more misses a straggler in a fleet that spreads by 0.7 %."""
SIGMA_OF_MAD = 1.4826
"""Standard deviation of a normal distribution by its median absolute deviation."""
CROWD = 0.25
"""Share of a group that is no longer a few stragglers.  Chosen by this project: two kinds of machines, or one
fault on many, look the same from here."""


def no_peers(_fingerprint: str) -> Sequence[float]:
    """No peers are known."""
    return ()


def no_fleet(_klass: str) -> Sequence[Versions]:
    """No other node is known."""
    return ()


def picked(count: int) -> list[int]:
    """Ranks of at most `MAX_VALUES` of `count` sorted values: evenly spaced, with the median of all."""
    if count <= MAX_VALUES:
        return list(range(count))
    half, wanted = count // 2, MAX_VALUES // 2 - count % 2
    below = [(n + 1) * half // wanted - 1 for n in range(wanted)]
    return [*below, *([half] if count % 2 else []), *(count - 1 - rank for rank in reversed(below))]


class Group(Struct, frozen=True, kw_only=True):
    """What is usual among comparable nodes.  `unusual`: share below the median from which a node is unusual;
    None among too few nodes.  `crowded`: so many are below it that nobody is a straggler."""

    median: float
    nodes: int
    unusual: float | None = None
    crowded: bool = False

    @classmethod
    def of(cls, values: Sequence[float], limits: Thresholds) -> Group | None:
        """The group with these values, in any order; None if they are too few."""
        values = sorted(value for value in values if value > 0 and isfinite(value))
        nodes = len(values)
        if nodes < PEERS_NEEDED:
            return None
        middle = median(values)
        if nodes < SPREAD_NEEDED:
            return cls(median=middle, nodes=nodes)
        spread = SIGMA_OF_MAD * median(abs(value - middle) for value in values) / middle
        least = limits.peers_spread * (1 + SPREAD_NEEDED / nodes)  # a few nodes tell less of their spread
        unusual = max(limits.peers_warn, DEVIATIONS * max(spread, least))
        crowded = values[int(CROWD * nodes)] < middle * (1 - unusual)
        return cls(median=middle, nodes=nodes, unusual=unusual, crowded=crowded)


class Standing(Struct, frozen=True, kw_only=True):
    """Where one node stands in its group.  `short`: its share below the median, negative above it;
    `far`: so much that a median of few nodes shows it."""

    group: Group
    short: float
    far: bool
    acts: bool

    @property
    def below(self) -> bool:
        """Whether it is unusually slow: a second such run confirms it."""
        return self.group.unusual is not None and self.short >= self.group.unusual

    def severity(self, *, confirmed: bool) -> Severity | None:
        """None for a usual node; `confirmed`: the run before was unusual, too."""
        if self.acts and confirmed:
            return Severity.FAIL
        if self.far or (self.below and confirmed and not self.group.crowded):
            return Severity.WARN
        return Severity.INFO if self.below else None

    @property
    def answer(self) -> Answer:
        """Bad from `peersFail`, good once the node is usual; unsure between, and among too few nodes."""
        if self.acts:
            return Answer.BAD
        return Answer.UNSURE if self.below or self.group.unusual is None else Answer.GOOD

    def text(self, own: str, usual: str, *, confirmed: bool) -> str:
        """A sentence with both numbers in words, and what is missing to a finding."""
        group = self.group
        nodes = f"{group.nodes}" if group.nodes <= MAX_VALUES else f"more than {MAX_VALUES}"
        message = f"{own}: {self.short:.1%} below the median of {nodes} like nodes ({usual})."
        message = message.replace("%", " %", 1)
        if group.unusual is None:
            return message
        message += f" {100 * group.unusual:.1f} % and more is unusual among them."
        if group.crowded:
            return f"{message} A quarter of them are as slow: two kinds of machines, or one fault on many."
        return message if confirmed else f"{message} Another run will decide."


def standing(
    peers: Peers, fingerprint: str, *, own: float, far_share: float, limits: Thresholds
) -> Standing | None:
    """The node among its comparable nodes, itself included; None if they are too few, or `own` is no speed.

    `far_share`: share of the median below which a node is far below it."""
    if not (fingerprint and own > 0 and isfinite(own)):
        return None
    group = Group.of([own, *peers(fingerprint)], limits)
    return None if group is None else placed(group, own=own, far_share=far_share, limits=limits)


def placed(group: Group, *, own: float, far_share: float, limits: Thresholds) -> Standing:
    """Where a node with this value stands."""
    short = 1 - own / group.median
    unusual = group.unusual is not None and short >= max(group.unusual, limits.peers_fail)
    return Standing(
        group=group, short=short, far=own < far_share * group.median, acts=unusual and not group.crowded
    )


def usual(peers: Peers, fingerprint: str, *, own: float) -> tuple[float, int] | None:
    """The median of all comparable nodes, this one included, and their number; None if they are too few."""
    values = [own, *(value for value in peers(fingerprint) if value > 0 and isfinite(value))]
    return (median(values), len(values)) if len(values) >= PEERS_NEEDED else None
