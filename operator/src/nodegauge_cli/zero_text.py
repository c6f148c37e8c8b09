"""What `nodegauge zero` prints for a person: a block per node class, a line per scheme.

Reads at 80 columns and when piped.  Every number has its unit beside it, and what is missing says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_contract import Collective
from nodegauge_judge.nccl.zero import (
    SIGNIFICANT_SHARE,
    TRANSFERS,
    Bandwidths,
    Cost,
    Curve,
    Job,
    Scheme,
    costs,
)

NOISE = 0.05
"""Share of the time by which runs of one path may differ.  Own."""
MISSING = "-"
WIDTH = 80


class Place(Struct, frozen=True, kw_only=True):
    """Something to compute for: a node class, a node, a report, a published figure.

    `source`: where its figures are from; `notes`: what to know about them; `gpus` a node has, `ranks` of them
    take part (0 for all); `bandwidths`: null where there are none, with the reason in `notes`.
    """

    title: str
    source: str
    gpus: int
    ranks: int = 0
    bandwidths: Bandwidths | None = None
    nodes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def job(self, job: Job) -> Job:
        """The job on this place's GPUs."""
        return replace(job, ranks=self.ranks or self.gpus)


def text(job: Job, places: Sequence[Place], *, lines: Sequence[str] = ()) -> Iterator[str]:
    """All lines; `lines` go below the heading."""
    yield heading(job)
    yield from lines
    for place in places:
        yield ""
        yield from _block(job, place)
    if any(place.bandwidths for place in places):
        yield ""
        yield from _wrapped(_legend(job), indent="")


def heading(job: Job) -> str:
    """What is computed."""
    micro = f", {job.micro_batches} micro-batches per step" if job.micro_batches > 1 else ""
    bucket = f", calls of {_bytes(job.bucket)}" if job.bucket else ""
    gpus = f"{job.ranks} GPUs" if job.ranks else "all GPUs"
    size = f"{_count(job.params)} parameters x {job.width:g} bytes = {_bytes(job.bytes)}"
    return f"{size}, {gpus} of one node{micro}{bucket}"


def _block(job: Job, place: Place) -> Iterator[str]:
    yield f"{place.title}  [{place.source}]"
    if place.bandwidths is not None:
        yield from _wrapped([f"busbw: {_bandwidths(place.bandwidths)}"])
        found = costs(place.job(job), place.bandwidths)
        rows = [_row(job, cost, names) for names, cost in _merged(job, found)]
        table = [_head(job), *rows]
        widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
        for row in table:
            cells = (
                cell.ljust(width) if column < 2 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            yield "  " + "  ".join(cells).rstrip()
        yield from _wrapped(_substitutes(found))
    yield from _wrapped(place.notes)


def _wrapped(notes: Iterable[str], *, indent: str = "  ") -> Iterator[str]:
    for note in notes:
        yield from wrap(
            note,
            WIDTH,
            initial_indent=indent,
            subsequent_indent=2 * indent,
            break_on_hyphens=False,
            break_long_words=False,
        )


def _head(job: Job) -> list[str]:
    share = ["% of step"] if job.compute else []
    return ["", "per step", "per GPU", "time", "not hidden", *share, "P2P off"]


def _row(job: Job, cost: Cost, name: str) -> list[str]:
    share = [_share(job, cost)] if job.compute else []
    return [
        name,
        _passes(job, cost.scheme),
        _bytes(cost.gigabytes * 1e9),
        _time(cost.seconds),
        _range(cost),
        *share,
        _lost(cost),
    ]


def _lost(cost: Cost) -> str:
    """What switching P2P off would cost; two measurements of the same path differ by a little."""
    lost = cost.lost_without_p2p
    if lost is None:
        return MISSING
    if abs(lost) <= NOISE * (cost.seconds or 0.0):
        return "about 0"
    return f"+{_time(lost)}" if lost > 0 else f"-{_time(-lost)}"


def _merged(job: Job, found: Sequence[Cost]) -> Iterator[tuple[str, Cost]]:
    """Each scheme with its name; ZeRO-1 and ZeRO-2 are one line where they cost the same."""
    alike = job.micro_batches == 1
    for cost in found:
        if alike and cost.scheme is Scheme.ZERO_1:
            yield "ZeRO-1, -2", cost
        elif not (alike and cost.scheme is Scheme.ZERO_2):
            yield cost.scheme.value, cost


_SHORT = {Collective.ALL_REDUCE: "AR", Collective.ALL_GATHER: "AG", Collective.REDUCE_SCATTER: "RS"}


def _passes(job: Job, scheme: Scheme) -> str:
    counts = [(p.per_step + p.per_micro_batch * job.micro_batches, p.collective) for p in TRANSFERS[scheme]]
    return " + ".join(f"{times}x {_SHORT[name]}" if times > 1 else _SHORT[name] for times, name in counts)


def _range(cost: Cost) -> str:
    """From all that can be hidden behind the backward pass to nothing hidden."""
    if cost.seconds is None or cost.exposed is None:
        return MISSING
    low, high = _time(cost.exposed), _time(cost.seconds)
    same = low.partition(" ")[2] == high.partition(" ")[2]
    return f"{low.partition(' ')[0] if same else low} .. {high}"


def _share(job: Job, cost: Cost) -> str:
    if cost.seconds is None or cost.exposed is None or job.compute is None:
        return MISSING
    low, high = (part / (part + job.compute) for part in (cost.exposed, cost.seconds))
    return f"{100 * low:.0f} .. {100 * high:.0f}"


def _substitutes(found: Sequence[Cost]) -> list[str]:
    said = sorted({words for cost in found for words in cost.substitutes})
    missing = any(cost.seconds is None for cost in found)
    notes = [f"Not measured, so taken from another ring: {', '.join(said)}."] if said else []
    if missing:
        notes.append("-: not known. An all_reduce with NVLS says nothing of all_gather or reduce_scatter.")
    return notes


def _bandwidths(bandwidths: Bandwidths) -> str:
    said = [_curve(curve) + (" (NVLS)" if _nvls(bandwidths, curve) else "") for curve in bandwidths.curves]
    off = next((c for c in bandwidths.p2p_off if c.collective == Collective.ALL_REDUCE), None)
    return ", ".join([*said, *([f"all_reduce without P2P {off.gbps:.3g}"] if off else [])]) + " GB/s"


def _nvls(bandwidths: Bandwidths, curve: Curve) -> bool:
    return bandwidths.nvls is True and curve.collective == Collective.ALL_REDUCE


def _curve(curve: Curve) -> str:
    return f"{curve.collective} {curve.gbps:.3g}"


def _legend(job: Job) -> Iterator[str]:
    yield "AR all-reduce, AG all-gather, RS reduce-scatter, each over all parameters or gradients."
    if job.compute:
        yield (
            f"Not hidden: the range from what the backward pass (2/3 of {job.compute:g} s) cannot hide to no "
            f"overlap. Above {100 * SIGNIFICANT_SHARE:.0f} % of the step the choice of node matters."
        )
    else:
        yield "Not hidden: 0 where the backward pass hides it all; --compute SECONDS says how much it can."


def _time(seconds: float | None) -> str:
    if seconds is None:
        return MISSING
    for limit, unit, factor in ((1e-3, "us", 1e6), (1.0, "ms", 1e3)):
        if seconds < limit:
            return f"{_digits(seconds * factor)} {unit}" if seconds else "0"
    return f"{_digits(seconds)} s"


def _bytes(number: float | None) -> str:
    for limit, unit in ((1e3, "B"), (1e6, "kB"), (1e9, "MB"), (1e12, "GB"), (1e15, "TB")):
        if (number or 0.0) < limit:
            return f"{_digits((number or 0.0) / limit * 1e3)} {unit}"
    return f"{number:.3g} B"


def _count(number: float) -> str:
    for limit, unit in ((1e3, ""), (1e6, " k"), (1e9, " M"), (1e12, " B"), (1e15, " T")):
        if number < limit:
            return f"{number / limit * 1e3:.4g}{unit}"
    return f"{number:.3g}"


def _digits(number: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"
