"""The page's tables of what went wrong and what held the clocks back.

Zero is "0" and a value that is not there is "-"; columns that have nothing are left out, so a GeForce has a
short table and an H100 a long one; GPUs that say the same share a row.  Shows and never judges.
"""

from __future__ import annotations

from nodegauge_contract import Ecc, Fan, Gpu, Int, LinkErrors, Pcie, Repair, Unavailable, Window, Xids
from nodegauge_probes.page import nvml_names
from nodegauge_probes.page.layout import Cells, known_columns, merged
from nodegauge_probes.page.nvml_names import NOTHING

HOUR_NS = 3_600_000_000_000


def held_back(gpus: list[Gpu]) -> str:
    """Time with clocks held back; what grew within the window stands behind a plus."""
    head = ("GPU", *nvml_names.COUNTERS.values())
    rows = [(gpu.index, _held_row(gpu)) for gpu in gpus]
    table = known_columns([head, *merged(rows)], right=set(range(1, len(head))))
    title = "Time with clocks held back since the counters began, and within the window (+)"
    return f"{title}\n{table}" if table else ""


def damage(gpus: list[Gpu]) -> str:
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
    table = known_columns([head, *merged([(gpu.index, _damage_row(gpu)) for gpu in gpus])], right=set())
    title = "Errors since the driver was loaded / over the board's life, repairs, and fans"
    return f"{title}\n{table}" if table else ""


def _held_row(gpu: Gpu) -> Cells:
    return tuple(_held(getattr(gpu.counters, name), _grown(gpu.window, name)) for name in nvml_names.COUNTERS)


def _damage_row(gpu: Gpu) -> Cells:
    return (
        _mode(gpu.ecc),
        _since(gpu.ecc.volatile_uncorrected, gpu.ecc.aggregate_uncorrected),
        _since(gpu.ecc.volatile_corrected, gpu.ecc.aggregate_corrected),
        remapped(gpu.repair),
        nvml_names.action(gpu.repair),
        _pcie(gpu.pcie),
        _link_errors(gpu.link_errors),
        _xids(gpu.xids),
        _fans(gpu.fans),
    )


def _grown(window: Window | None, name: str) -> Int | None:
    return None if window is None or window.growth is None else getattr(window.growth, name, None)


def _held(total: Int, grown: Int | None) -> str:
    if isinstance(total, Unavailable):
        return NOTHING
    hours = f"{total / HOUR_NS:.1f} h"
    told = "0" if total == 0 else f"{total / 1e9:.1f} s" if total < HOUR_NS else hours
    return f"{told} +{grown / 1e9:.2f} s" if isinstance(grown, int) and grown else told


def _mode(ecc: Ecc) -> str:
    if isinstance(ecc.mode, Unavailable):
        return NOTHING
    over = ", SRAM over its limit" if ecc.sram_threshold == 1 else ""
    return ("on" if ecc.mode else "off") + over


def _since(loaded: Int, ever: Int) -> str:
    if isinstance(loaded, Unavailable) and isinstance(ever, Unavailable):
        return NOTHING
    return " / ".join(NOTHING if isinstance(count, Unavailable) else f"{count}" for count in (loaded, ever))


def remapped(repair: Repair) -> str:
    """`2 rows`, `3 rows, pending`, `5 pages`; what failed or waits is said."""
    rows = [n for n in (repair.rows_corrected, repair.rows_uncorrected) if isinstance(n, int)]
    pages = [n for n in (repair.pages_single_bit, repair.pages_double_bit) if isinstance(n, int)]
    told = [_counted(sum(rows), "row")] if rows else [_counted(sum(pages), "page")] if pages else []
    told += ["pending"] if 1 in (repair.rows_pending, repair.pages_pending) else []
    told += ["FAILED"] if repair.rows_failed == 1 else []
    told += ["unrepairable"] if repair.unrepairable == 1 else []
    return ", ".join(told) or NOTHING


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _pcie(pcie: Pcie) -> str:
    """Counters above zero by name; their sum says too little."""
    known = {"replay": pcie.replays, "correctable": pcie.correctable}
    return _above_zero(known)


def _link_errors(errors: LinkErrors) -> str:
    names = {name: getattr(errors, name) for name in errors.__struct_fields__}
    return _above_zero({name.replace("_", " "): value for name, value in names.items()})


def _above_zero(counts: dict[str, Int]) -> str:
    known = {name: count for name, count in counts.items() if isinstance(count, int)}
    if not known:
        return NOTHING
    return ", ".join(f"{count} {name}" for name, count in known.items() if count) or "0"


def _xids(xids: Xids) -> str:
    if xids.seen:
        return ", ".join(map(str, xids.seen))
    return "none" if xids.registered is True else NOTHING


def _fans(fans: list[Fan]) -> str:
    return ", ".join(map(_fan, fans)) or NOTHING


def _fan(fan: Fan) -> str:
    if isinstance(fan.rpm, int):
        return f"{fan.rpm} rpm" if isinstance(fan.target, Unavailable) else f"{fan.rpm} rpm at {fan.target} %"
    return NOTHING if isinstance(fan.percent, Unavailable) else f"{fan.percent} %"
