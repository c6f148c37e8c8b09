"""The text output of `nodegauge zero`: a block per machine, a line per scheme.

It fits 80 columns.  Every number has its unit, and every missing number is explained.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_contract import Collective
from nodegauge_judge.zero.communication import (
    SIGNIFICANT_SHARE,
    TRANSFERS,
    Bandwidths,
    Cost,
    Job,
    Scheme,
    costs,
)

NOISE = 0.05
"""Share by which two runs over the same path may differ.  Chosen by this project: repeated runs of NCCL stay
within it."""
MISSING = "-"
WIDTH = 80
_SHORT = {Collective.ALL_REDUCE: "AR", Collective.ALL_GATHER: "AG", Collective.REDUCE_SCATTER: "RS"}


class Machine(Struct, frozen=True, kw_only=True):
    """What to compute for: a node class, a node, a file, or published bandwidths.

    `source`: where its bandwidths come from; `gpus`: all of its GPUs; `ranks`: how many take part (0 for
    all); `bandwidths`: null if there are none, with the reason in `remarks`.
    """

    title: str
    source: str
    gpus: int
    ranks: int = 0
    bandwidths: Bandwidths | None = None
    nodes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def job(self, job: Job) -> Job:
        """The job on this machine's GPUs."""
        return replace(job, ranks=self.ranks or self.gpus)


def text(job: Job, machines: Sequence[Machine], *, remarks: Sequence[str] = ()) -> Iterator[str]:
    """All lines; `remarks` follow the heading."""
    yield heading(job)
    yield from wrapped(remarks, indent="")
    for machine in machines:
        yield ""
        yield from _block(job, machine)
    if any(machine.bandwidths for machine in machines):
        yield ""
        yield from wrapped(_legend(job), indent="")


def heading(job: Job) -> str:
    """What is computed."""
    micro = f", {job.micro_batches} micro-batches per step" if job.micro_batches > 1 else ""
    bucket = f", calls of {size(job.bucket)}" if job.bucket else ""
    gpus = f"{job.ranks} GPUs" if job.ranks else "all GPUs"
    volume = f"{_count(job.params)} parameters x {job.width:g} bytes = {size(job.bytes)}"
    return f"{volume}, {gpus} of one node{micro}{bucket}"


def _block(job: Job, machine: Machine) -> Iterator[str]:
    yield f"{machine.title}  [{machine.source}]"
    if machine.bandwidths is not None:
        yield from wrapped([f"busbw: {_busbw(machine.bandwidths)}"])
        every = costs(machine.job(job), machine.bandwidths)
        table = [_head(job), *(_row(job, cost, name) for name, cost in _merged(job, every))]
        widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
        for row in table:
            cells = (
                cell.ljust(width) if column < 2 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            yield "  " + "  ".join(cells).rstrip()
        yield from wrapped(_substitutes(every))
    yield from wrapped(machine.remarks)


def wrapped(lines: Iterable[str], *, indent: str = "  ") -> Iterator[str]:
    """Each line in 80 columns, its further lines indented once more."""
    for line in lines:
        yield from wrap(
            line,
            WIDTH,
            initial_indent=indent,
            subsequent_indent=2 * indent,
            break_on_hyphens=False,
            break_long_words=False,
        )


def _head(job: Job) -> list[str]:
    share = ["% of step"] if job.compute else []
    return ["", "per step", "per GPU", "time", "exposed", *share, "P2P off"]


def _row(job: Job, cost: Cost, name: str) -> list[str]:
    share = [_share(job, cost)] if job.compute else []
    return [
        name,
        _transfers(job, cost.scheme),
        size(cost.gigabytes * 1e9),
        time(cost.seconds),
        _exposed(cost),
        *share,
        _lost(cost),
    ]


def _lost(cost: Cost) -> str:
    """The cost of disabling P2P; a difference within `NOISE` counts as none."""
    lost = cost.lost_without_p2p
    if lost is None:
        return MISSING
    if abs(lost) <= NOISE * (cost.seconds or 0.0):
        return "about 0"
    return f"+{time(lost)}" if lost > 0 else f"-{time(-lost)}"


def _merged(job: Job, every: Sequence[Cost]) -> Iterator[tuple[str, Cost]]:
    """Each scheme with its name; ZeRO-1 and ZeRO-2 share a line if they cost the same."""
    same = job.micro_batches == 1
    for cost in every:
        if same and cost.scheme is Scheme.ZERO_1:
            yield "ZeRO-1, -2", cost
        elif not (same and cost.scheme is Scheme.ZERO_2):
            yield cost.scheme.value, cost


def _transfers(job: Job, scheme: Scheme) -> str:
    counts = [(t.per_step + t.per_micro_batch * job.micro_batches, t.collective) for t in TRANSFERS[scheme]]
    return " + ".join(f"{times}x {_SHORT[name]}" if times > 1 else _SHORT[name] for times, name in counts)


def _exposed(cost: Cost) -> str:
    """From full overlap with the backward pass to none."""
    if cost.seconds is None or cost.exposed is None:
        return MISSING
    low, high = time(cost.exposed), time(cost.seconds)
    same = low.partition(" ")[2] == high.partition(" ")[2]
    return f"{low.partition(' ')[0] if same else low} .. {high}"


def _share(job: Job, cost: Cost) -> str:
    if cost.seconds is None or cost.exposed is None or job.compute is None:
        return MISSING
    low, high = (part / (part + job.compute) for part in (cost.exposed, cost.seconds))
    return f"{100 * low:.0f} .. {100 * high:.0f}"


def _substitutes(every: Sequence[Cost]) -> list[str]:
    names = sorted({name for cost in every for name in cost.substitutes})
    remarks = [f"Not measured, so another ring is used: {', '.join(names)}."] if names else []
    if any(cost.seconds is None for cost in every):
        remarks.append("-: unknown. all_reduce with NVLS says nothing about the other collectives.")
    return remarks


def _busbw(bandwidths: Bandwidths) -> str:
    parts = []
    for curve in bandwidths.curves:
        nvls = bandwidths.nvls is True and curve.collective == Collective.ALL_REDUCE
        parts.append(f"{curve.collective} {curve.gbps:.3g}{' (NVLS)' if nvls else ''}")
    off = next((c for c in bandwidths.p2p_off if c.collective == Collective.ALL_REDUCE), None)
    parts += [f"all_reduce with P2P off {off.gbps:.3g}"] if off else []
    return ", ".join(parts) + " GB/s"


def _legend(job: Job) -> Iterator[str]:
    yield "AR all_reduce, AG all_gather, RS reduce_scatter, each over all parameters or gradients."
    if job.compute:
        yield (
            "Exposed: communication that adds to the step, from full overlap with the backward pass (2/3 of "
            f"{job.compute:g} s) to none. Above {100 * SIGNIFICANT_SHARE:.0f} % of the step, the choice of "
            "node matters."
        )
    else:
        yield (
            "Exposed: communication that adds to the step, from full overlap with the backward pass to none. "
            "--compute SECONDS narrows the range."
        )


def time(seconds: float | None) -> str:
    """Seconds with a fitting unit."""
    if seconds is None:
        return MISSING
    for limit, unit, factor in ((1e-3, "us", 1e6), (1.0, "ms", 1e3)):
        if seconds < limit:
            return f"{digits(seconds * factor)} {unit}" if seconds else "0"
    return f"{digits(seconds)} s"


def size(number: float) -> str:
    """Bytes with a fitting unit."""
    for limit, unit in ((1e3, "B"), (1e6, "kB"), (1e9, "MB"), (1e12, "GB"), (1e15, "TB")):
        if number < limit:
            return f"{digits(number / limit * 1e3)} {unit}"
    return f"{number:.3g} B"


def _count(number: float) -> str:
    for limit, unit in ((1e3, ""), (1e6, " k"), (1e9, " M"), (1e12, " B"), (1e15, " T")):
        if number < limit:
            return f"{number / limit * 1e3:.4g}{unit}"
    return f"{number:.3g}"


def digits(number: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"
