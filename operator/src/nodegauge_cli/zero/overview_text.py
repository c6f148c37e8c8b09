"""`nodegauge zero` without a model: the largest that each class trains and serves, each way, in one
screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nodegauge_cli.zero.classes import Class
from nodegauge_cli.zero.communication_text import wrapped
from nodegauge_cli.zero.decision_text import count, left_out
from nodegauge_judge.zero.decide import NO_H2D, NO_HOST, NO_MEMORY, NO_NVME, largest, largest_served
from nodegauge_judge.zero.shape import by_rule
from nodegauge_judge.zero.ways import Training, Way

HEAD = ("train at most:", "nodes", "one node", "all nodes", "CPU", "NVMe", "serve")
NAME = 30
ROWS = 12
"""Classes shown: more do not fit on one screen."""


def sizes(each: Class, job: Training) -> dict[str, float | None]:
    """Parameters of the largest model by way, and to serve; null if unknown, 0 for none."""
    facts = each.facts
    if not facts.usable:
        return dict.fromkeys([*map(str, Way), "serve"], 0.0)
    return {str(way): largest(facts, way, job) for way in Way} | {"serve": largest_served(facts)}


def text(matches: Sequence[Class], *, remarks: Sequence[str] = ()) -> Iterator[str]:
    """At most one screen of 24 lines and 80 columns for up to `ROWS` classes."""
    job = Training(shape=by_rule(1e9))
    yield from wrapped(remarks, indent="")
    table: list[tuple[str, ...]] = [HEAD]
    answers = [sizes(each, job) for each in matches[:ROWS]]
    for each, answer in zip(matches, answers, strict=False):
        total = len(each.nodes) + len(each.left_out)
        nodes = f"{each.facts.usable}/{total}" if total else "-"
        table.append((each.facts.name[:NAME], nodes, *map(_size, answer.values())))
    widths = [max(len(row[column]) for row in table) for column in range(len(HEAD))]
    for row in table:
        cells = (c.rjust(w) if n else c.ljust(w) for n, (c, w) in enumerate(zip(row, widths, strict=True)))
        yield "  ".join(cells).rstrip()
    yield from wrapped(_notes(matches, answers, job), indent="")


def _notes(
    matches: Sequence[Class], answers: Sequence[dict[str, float | None]], job: Training
) -> Iterator[str]:
    if len(matches) > ROWS:
        yield f"{len(matches) - ROWS} more classes: --compare names all."
    outside = [left_out(each) for each in matches if each.left_out]
    if outside:
        yield f"Left out: {'; '.join(outside[:2])}{'; ...' if len(outside) > 2 else ''}."
    unknown = [
        hint
        for way, hints in (
            ("one node", (NO_MEMORY,)),
            ("CPU offload", (NO_HOST,)),
            ("NVMe offload", (NO_NVME, NO_H2D)),
        )
        if any(answer[way] is None for answer in answers)
        for hint in hints
    ]
    if unknown:
        yield f"?: not measured: {'; '.join(dict.fromkeys(unknown))}."
    yield (
        f"{job.precision}, {job.optimizer}, sequence {job.sequence}, batch {job.batch} a GPU, recomputing. "
        "All nodes, CPU, NVMe: ZeRO; it says what fits, not how fast. Serve: 2-byte weights on one node, "
        "without keys and values. nodes: that a job can get, of all."
    )
    yield "Next: nodegauge zero --model 7B"


def _size(params: float | None) -> str:
    return "?" if params is None else count(params) if params else "-"
