"""The page's tables of GPUs: condition, links and P2P, throttling, errors and repairs.

Zero is "0" and a missing value is "-".  Empty columns are left out, so a GeForce has a short table and an
H100 a long one; GPUs with the same values share a line.
"""

from __future__ import annotations

from nodegauge_contract import (
    Ecc,
    Fan,
    Gpu,
    Int,
    LinkErrors,
    Pcie,
    Repair,
    Result,
    Span,
    Unavailable,
    Window,
    Xids,
)
from nodegauge_probes.page import format
from nodegauge_probes.page.format import (
    NOTHING,
    Cells,
    columns,
    known_columns,
    merged,
    shown,
    with_limit,
    with_unit,
)

NAME_WIDTH = 24
HOUR_NS = 3_600_000_000_000


def condition(result: Result) -> str:
    head = ("GPU", "Name", "Temp", "Limit", "Memory", "Power", "SM MHz", "P", "Util", "Clocks event reasons")
    return columns([head, *(_health_row(gpu) for gpu in result.gpus)], right={0, 2, 4, 5, 6, 8})


def _health_row(gpu: Gpu) -> tuple[str, ...]:
    name = str(shown(gpu.name)).removeprefix("NVIDIA ")[:NAME_WIDTH]
    if gpu.error is not None:
        return (f"{gpu.index}", name, *[NOTHING] * 7, f"{gpu.error.kind}: {gpu.error.message}")
    temperature, clocks = gpu.temperature, gpu.clocks
    return (
        f"{gpu.index}",
        name,
        with_unit(temperature.gpu, " C"),
        _limit(gpu),
        with_unit(temperature.memory, " C"),
        with_limit(_watts(gpu.power.usage_mw), _watts(gpu.power.enforced_limit_mw), between=" / ", unit=" W"),
        with_limit(str(shown(clocks.sm_mhz)), str(shown(clocks.max_sm_mhz)), between=" / "),
        with_unit(clocks.pstate, "", before="P"),
        _span(gpu.window.utilization if gpu.window else None),
        format.reasons(gpu.events),
    )


def _limit(gpu: Gpu) -> str:
    """The margin that the GPU reports, or its lowest threshold."""
    temperature = gpu.temperature
    if isinstance(temperature.margin, int):
        return f"{temperature.margin} C left"
    known = [limit for limit in (temperature.gpu_max, temperature.slowdown) if isinstance(limit, int)]
    return f"max {min(known)} C" if known else NOTHING


def links(result: Result) -> str:
    head = ("GPU", "PCI", "PCIe", "NUMA", "NVLinks", "P2P read", "write", "NVLink", "Fabric")
    rows: list[tuple[str, ...]] = [head]
    for i, gpu in enumerate(result.gpus):
        grids = (result.pairs.read, result.pairs.write, result.pairs.nvlink)
        rows.append(
            (
                f"{gpu.index}",
                str(shown(gpu.pci)),
                _pcie(gpu),
                str(shown(gpu.numa_node)),
                format.links(gpu),
                *(format.p2p(grid[i], i) if i < len(grid) else NOTHING for grid in grids),
                format.fabric(gpu.fabric),
            )
        )
    return columns(rows, right={0, 3})


def _pcie(gpu: Gpu) -> str:
    pcie = gpu.pcie
    generation = with_limit(str(shown(pcie.generation)), str(shown(pcie.max_generation)), between="/")
    width = with_limit(str(shown(pcie.width)), str(shown(pcie.max_width)), between="/")
    return NOTHING if generation == width == NOTHING else f"gen {generation} x{width}"


def p2p_legend(result: Result) -> str:
    """The meaning of the P2P statuses in the table."""
    grids = (result.pairs.read, result.pairs.write, result.pairs.nvlink)
    codes = {status for grid in grids for row in grid for status in row if isinstance(status, int)}
    names = [format.P2P[code] for code in sorted(codes) if code in format.P2P]
    return ", ".join(f"{name} = {format.P2P_LEGEND[name]}" for name in names if name in format.P2P_LEGEND)


def _watts(milliwatts: int | Unavailable) -> str:
    return NOTHING if isinstance(milliwatts, Unavailable) else f"{milliwatts / 1000:.0f}"


def _span(span: Span | None) -> str:
    return NOTHING if span is None else f"{shown(span.median):g} %"


def throttling(gpus: list[Gpu]) -> str:
    """Time with reduced clocks; the growth within the window follows a plus sign."""
    head = ("GPU", *format.COUNTERS.values())
    rows = [(gpu.index, _throttling_row(gpu)) for gpu in gpus]
    table = known_columns([head, *merged(rows)], right=set(range(1, len(head))))
    title = "Time with reduced clocks since the counters were reset, and within the window (+)"
    return f"{title}\n{table}" if table else ""


def errors(gpus: list[Gpu]) -> str:
    """Memory errors, repairs, error counters, Xids and fans."""
    head = (
        "GPU",
        "ECC",
        "Uncorrected",
        "Corrected",
        "Remapped",
        "Recovery action",
        "PCIe errors",
        "NVLink errors",
        "Xids",
        "Fans",
    )
    table = known_columns([head, *merged([(gpu.index, _error_row(gpu)) for gpu in gpus])], right=set())
    title = "Errors (since driver load / in the board's lifetime), repairs and fans"
    return f"{title}\n{table}" if table else ""


def _throttling_row(gpu: Gpu) -> Cells:
    return tuple(
        _throttled(getattr(gpu.counters, name), _grown(gpu.window, name)) for name in format.COUNTERS
    )


def _error_row(gpu: Gpu) -> Cells:
    return (
        _mode(gpu.ecc),
        _since(gpu.ecc.volatile_uncorrected, gpu.ecc.aggregate_uncorrected),
        _since(gpu.ecc.volatile_corrected, gpu.ecc.aggregate_corrected),
        remapped(gpu.repair),
        format.action(gpu.repair),
        _pcie_errors(gpu.pcie),
        _link_errors(gpu.link_errors),
        _xids(gpu.xids),
        _fans(gpu.fans),
    )


def _grown(window: Window | None, name: str) -> Int | None:
    return None if window is None or window.growth is None else getattr(window.growth, name, None)


def _throttled(total: Int, grown: Int | None) -> str:
    if isinstance(total, Unavailable):
        return NOTHING
    hours = f"{total / HOUR_NS:.1f} h"
    text = "0" if total == 0 else f"{total / 1e9:.1f} s" if total < HOUR_NS else hours
    return f"{text} +{grown / 1e9:.2f} s" if isinstance(grown, int) and grown else text


def _mode(ecc: Ecc) -> str:
    if isinstance(ecc.mode, Unavailable):
        return NOTHING
    over = ", SRAM above its limit" if ecc.sram_threshold == 1 else ""
    return ("on" if ecc.mode else "off") + over


def _since(loaded: Int, ever: Int) -> str:
    if isinstance(loaded, Unavailable) and isinstance(ever, Unavailable):
        return NOTHING
    return " / ".join(NOTHING if isinstance(count, Unavailable) else f"{count}" for count in (loaded, ever))


def remapped(repair: Repair) -> str:
    """`2 rows`, `3 rows, pending`, `5 pages, FAILED`."""
    rows = [n for n in (repair.rows_corrected, repair.rows_uncorrected) if isinstance(n, int)]
    pages = [n for n in (repair.pages_single_bit, repair.pages_double_bit) if isinstance(n, int)]
    parts = [_counted(sum(rows), "row")] if rows else [_counted(sum(pages), "page")] if pages else []
    parts += ["pending"] if 1 in (repair.rows_pending, repair.pages_pending) else []
    parts += ["FAILED"] if repair.rows_failed == 1 else []
    parts += ["unrepairable"] if repair.unrepairable == 1 else []
    return ", ".join(parts) or NOTHING


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _pcie_errors(pcie: Pcie) -> str:
    """The counters above zero, by name."""
    return _above_zero({"replay": pcie.replays, "correctable": pcie.correctable})


def _link_errors(link_errors: LinkErrors) -> str:
    names = {name: getattr(link_errors, name) for name in link_errors.__struct_fields__}
    return _above_zero({name.replace("_", " "): value for name, value in names.items() if name != "full"})


def _above_zero(counts: dict[str, Int]) -> str:
    known = {name: count for name, count in counts.items() if isinstance(count, int)}
    if not known:
        return NOTHING
    return ", ".join(f"{count} {name}" for name, count in known.items() if count) or "0"


def _xids(xids: Xids) -> str:
    if xids.seen:
        counts = [xid_count.count for xid_count in xids.counts] or [1] * len(xids.seen)
        pairs = zip(xids.seen, counts, strict=False)
        return ", ".join(f"{code} ({count}x)" if count > 1 else str(code) for code, count in pairs)
    return "none" if xids.registered is True else NOTHING


def _fans(fans: list[Fan]) -> str:
    return ", ".join(map(_fan, fans)) or NOTHING


def _fan(fan: Fan) -> str:
    if isinstance(fan.rpm, int):
        return f"{fan.rpm} rpm" if isinstance(fan.target, Unavailable) else f"{fan.rpm} rpm at {fan.target} %"
    return NOTHING if isinstance(fan.percent, Unavailable) else f"{fan.percent} %"
