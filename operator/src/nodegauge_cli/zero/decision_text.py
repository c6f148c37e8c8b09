"""The text of a decision: a block for each class, a line for each way, and what to take.  It fits 80
columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nodegauge_cli.zero.classes import Class
from nodegauge_cli.zero.communication_text import digits, size, time, wrapped
from nodegauge_cli.zero.manifest import wishes
from nodegauge_judge.zero.decide import NO_NETWORK, best, bigger, decide
from nodegauge_judge.zero.estimators import Offload, usable
from nodegauge_judge.zero.offload import MFU
from nodegauge_judge.zero.serve import Serving, serve
from nodegauge_judge.zero.ways import Limit, NodeClass, Option, Span, Training, Way

HEAD = ("", "", "GPUs", "GB a GPU", "a step", "tok/s", "limit")
NAMED = 3


def text(job: Training, matches: Sequence[Class], *, remarks: Sequence[str] = ()) -> Iterator[str]:
    """All lines; `remarks` follow the heading."""
    yield from wrapped([heading(job), *remarks], indent="")
    for each in matches:
        yield ""
        yield from block(job, each)
    yield ""
    yield from wrapped(answers(job, matches), indent="")
    yield ""
    yield from wrapped(legend(), indent="")


def heading(job: Training) -> str:
    """What is to be trained, and whose shape it has."""
    shape, each = job.shape, job.bytes
    origin = f"as {shape.name}" if shape.name else "by rule"
    states = size((each.weights + each.states) * shape.params)
    return (
        f"{count(shape.params)} parameters ({shape.layers} layers of {shape.hidden}, {origin}), "
        f"{job.precision}, {job.optimizer}: {states} of states. Sequence {job.sequence}, batch {job.batch} "
        f"a GPU, recomputing: {job.checkpointing}."
    )


def block(job: Training, each: Class) -> Iterator[str]:
    """One class."""
    facts = each.facts
    total = len(each.nodes) + len(each.left_out)
    nodes = f"{facts.usable} of {total} nodes usable" if total else "published, measured nowhere here"
    yield from wrapped([f"{facts.name}: {nodes}"], indent="")
    yield from wrapped([f"without {left_out(each)}"] if each.left_out else [])
    options = decide(job, facts)
    rows = [HEAD, *(row(job, facts, option) for option in options)]
    widths = [max(len(line[column]) for line in rows) for column in range(len(HEAD))]
    for line in rows:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        yield ("  " + "  ".join(cells)).rstrip()
    yield from wrapped([*gaps(options), served(serve(job.shape.params, facts)), *each.remarks])


def left_out(each: Class) -> str:
    """The first of the nodes that no job can get, and why."""
    named = [f"{name} ({why})" for name, why in each.left_out[:NAMED]]
    more = len(each.left_out) - NAMED
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def row(job: Training, facts: NodeClass, option: Option) -> tuple[str, ...]:
    """Way, how, GPUs, memory, time, throughput, limit."""
    gpus = f"{option.nodes}x{option.gpus}" if option.nodes > 1 else str(option.gpus)
    uncounted = option.way is Way.MORE and facts.gpu_bytes is None  # how many would do is unknown
    if uncounted or (option.way is Way.MORE and option.limit is Limit.GPU_MEMORY):
        gpus = "-"
    needs = "?" if uncounted else f"{option.gpu_bytes / 1e9:.0f}"
    if option.way is Way.NODE and option.fits and option.fewest < option.gpus:
        gpus = f"{option.fewest}..{option.gpus}"
    has = f"/{usable(facts.gpu_bytes) / 1e9:.0f}" if facts.gpu_bytes else "/?"
    limit = "not known" if option.limit is Limit.UNKNOWN else str(option.limit)
    if option.step.most is None and option.limit not in (Limit.UNKNOWN, Limit.NETWORK):
        limit += "?"
    answer = {True: limit, False: f"no: {option.limit}", None: "unknown"}[option.fits]
    rate = option.tokens_per_second(job) if option.fits else None
    return (
        str(option.way).removesuffix(" offload"),
        how(option),
        gpus,
        f"{needs}{has}",
        span(option.step) if option.fits else "-",
        "-" if rate is None else f"{'' if option.step.most else '<'}{_thousands(rate)}",
        answer,
    )


def how(option: Option) -> str:
    """The scheme, and what leaves the GPUs."""
    scheme = str(option.scheme) if option.gpus > 1 or option.offload else "plain"
    return scheme + {Offload.NOTHING: "", Offload.OPTIMIZER: " opt.", Offload.ALL: " all"}[option.offload]


def span(step: Span) -> str:
    """From full overlap to none; a lower bound if a part is unknown."""
    if step.least is None:
        return "?"
    if step.most is None:
        return f">{time(step.least)}"
    low, high = time(step.least), time(step.most)
    return (
        low
        if low == high
        else f"{low.partition(' ')[0]}..{high}"
        if low[-2:] == high[-2:]
        else f"{low}..{high}"
    )


def gaps(options: Sequence[Option]) -> Iterator[str]:
    """What each way needs beside GPUs, and what nobody measured."""
    for option in options:
        parts = [f"needs {size(option.host_bytes)} of host memory"] if option.way is Way.CPU else []
        parts += [f"needs {size(option.disk_bytes)} on the disk"] if option.disk_bytes else []
        parts += [f"not measured: {', '.join(option.unknown)}"] if option.unknown else []
        if parts:
            yield f"{option.way}: {'; '.join(parts)}."


def served(serving: Serving) -> str:
    """What serving needs, in one line."""
    gpus = {None: "unknown GPUs", 0: "no node here", 1: "1 GPU"}.get(serving.gpus, f"{serving.gpus} GPUs")
    host, disk = (
        "unknown" if passes is None else f"{digits(passes)} tokens/s a sequence" if passes else "no"
        for passes in (serving.host_passes, serving.nvme_passes)
    )
    return f"Serve: {size(serving.weights)} on {gpus}; streamed from host memory: {host}; from NVMe: {disk}."


def answers(job: Training, matches: Sequence[Class]) -> Iterator[str]:
    """Bigger, more or offload, and what to ask for."""
    pairs = [(each, option) for each in matches for option in decide(job, each.facts)]
    for title, ways in (
        ("Bigger GPUs", (Way.NODE,)),
        ("More GPUs", (Way.MORE,)),
        ("Offload", (Way.CPU, Way.NVME)),
    ):
        yield f"{title}: {_answer(job, matches, [p for p in pairs if p[1].way in ways], ways)}"
    taken = best([(each.facts, option) for each, option in pairs], job)
    if taken is None:
        yield "Take: nothing here that is known to hold it."
        return
    chosen = next(each for each in matches if each.facts is taken[0])
    yield f"Take: {taken[1].way} of {chosen.facts.name}, {how(taken[1])}."
    if NO_NETWORK in taken[1].unknown:
        yield "Measure the network first (nccl-tests over several nodes): nodegauge does not."
    if taken[1].disk_bytes:
        yield f"See first that {size(taken[1].disk_bytes)} of the disk are free: nodegauge does not."
    yield f"Ask for: {', '.join(wish.text for wish in wishes(chosen, taken[1])) or 'nothing'} (--manifest)."


def _answer(
    job: Training, matches: Sequence[Class], pairs: Sequence[tuple[Class, Option]], ways: tuple[Way, ...]
) -> str:
    taken = best([(each.facts, option) for each, option in pairs], job)
    if taken is not None:
        facts, option = taken
        nodes = f"{option.nodes} nodes of " if option.nodes > 1 else ""
        way = f"{option.way}, " if option.way in (Way.CPU, Way.NVME) else ""
        return f"yes, {nodes}{facts.name}: {way}{how(option)}, {span(option.step)} a step."
    if ways == (Way.MORE,) and not pairs:
        return "not needed."
    if any(option.fits is None for _, option in pairs):
        return "unknown; see above what was not measured."
    if ways == (Way.NODE,):
        least, gpus = min((bigger(job, each.facts.gpus), each.facts.gpus) for each in matches)
        return f"none here is big enough; {gpus} in one node need {least / 1e9:.0f} GB each."
    short = [(option.nodes, each.facts.name) for each, option in pairs if option.limit is Limit.NODES]
    if short:
        enough, name = min(short)
        return f"too few usable nodes; {enough} of {name} would do."
    return "no."


def legend() -> Iterator[str]:
    """How to read the numbers."""
    yield (
        "GB a GPU: needed/available after a reserve. A step: from full overlap to none; >, < and ?: at "
        "least, at most and perhaps, because a part is unknown. Computing: "
        f"{100 * MFU:.0f} % of the published peak. docs/placement.md has the formulas."
    )


def count(params: float) -> str:
    """`7B`, `124M`, two or three digits."""
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if params >= unit:
            return f"{params / unit:.3g}{name}"
    return f"{params:.3g}"


def _thousands(rate: float) -> str:
    return f"{digits(rate / 1000)}k" if rate >= 1000 else digits(rate)
