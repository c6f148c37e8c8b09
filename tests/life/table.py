"""The table at the end of a life: what changed, how often and why, and what happened meanwhile."""

from __future__ import annotations

from life.story import Outcome, Size


def table(size: Size, outcome: Outcome) -> str:
    """As Markdown."""
    record, oracle = outcome.record, outcome.oracle
    lines = [
        f"{size.nodes} nodes, {size.days:g} days, seed {size.seed}: {outcome.pods:,} runs, "
        f"{outcome.starts} starts of the operator, {sum(oracle.changed.values()):,} changes on nodes, "
        f"{len(oracle.violations)} violations, {outcome.wall_seconds:.0f} s.",
        f"At most {oracle.most_gated} nodes were tainted at a time.",
        "",
        "| change | why | how often |",
        "|---|---|---|",
    ]
    lines += [f"| {what} | {why} | {count:,} |" for (what, why), count in sorted(oracle.changed.items())]
    lines += ["", "| what happened | how often |", "|---|---|"]
    lines += [f"| {what} | {count:,} |" for what, count in sorted(record.counts.items())]
    return "\n".join(lines)
