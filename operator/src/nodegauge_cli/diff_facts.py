"""What is compared between two nodes: a list of facts, each from the last reading or the report.  Pure.

A fact that could not be read is None, never a value: it differs from nothing, and is listed on its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from nodegauge_contract import Gpu, LinkErrors, Result, Unavailable
from nodegauge_judge import Verdict
from nodegauge_operator import names
from nodegauge_operator.api.report import ReportStatus

CELSIUS = 5.0
"""Temperatures that are closer are alike.  Chosen by this project: neighbours in a rack differ by as much."""
BANDWIDTH, CLOCK = 0.03, 0.03
"""Shares by which bandwidths and clocks of alike nodes differ.  Chosen by this project: runs vary by 1 to 2 %
on one node."""
MANY = 3
"""Different values of one node's GPUs that are written out."""
OWN_LABELS = ("kubernetes.io/hostname", names.LABEL_VALIDATED_AT)
"""Labels that tell nodes apart, whatever they have."""
ACTIVE = 1
"""State of an NVLink (`LinkGroup.state`)."""
LINK_ERRORS, REPLAYS, CORRECTABLE = "NVLink errors", "PCIe replays", "PCIe correctable errors"
COUNTERS = (LINK_ERRORS, REPLAYS, CORRECTABLE)
"""What the driver counts from its start on: how much it says depends on how long ago that was."""
KINDS_OF_ERRORS = (
    {
        "replay": "replays",
        "recovery": "recoveries",
        "crc_flit": "CRC errors of flits",
        "crc_data": "CRC errors of data",
    },
    {
        "recoveries": "recoveries",
        "recovery_failed": "failed recoveries",
        "received": "faulty packets",
        "integrity": "integrity errors",
        "effective": "errors after correction",
    },
)
"""Members of `LinkErrors`, summed over a GPU's active links: up to NVLink 4, and of NVLink 5."""


class Fact(NamedTuple):
    """One value: as people read it, and as a number where close ones are alike."""

    text: str
    number: float | None = None
    slack: float = 0.0
    """By how much the numbers of alike nodes may differ."""


Facts = dict[str, Fact | None]


def differs(one: Fact, other: Fact) -> bool:
    """Whether two facts are more than noise apart."""
    if one.number is None or other.number is None:
        return one.text != other.text
    return abs(one.number - other.number) > max(one.slack, other.slack)


def facts(status: ReportStatus, result: Result | None) -> Facts:
    """All facts of one node, in the order in which they are shown; None for what was not read.

    `result`: its last health reading.
    """
    gpus = result.gpus if result is not None else []
    return {**_machine(status, result), **_settings(gpus), **_links(gpus, result), **_measured(status, gpus)}


def labels(known: Mapping[str, str]) -> dict[str, Fact]:
    """The node's labels without those that every node has for itself."""
    return {f"label {key}": Fact(value) for key, value in sorted(known.items()) if key not in OWN_LABELS}


def _machine(status: ReportStatus, result: Result | None) -> Facts:
    gpus = result.gpus if result is not None else []
    system, host = (result.system, result.host) if result is not None else (None, None)
    in_report = f"{status.gpus.count} x {status.gpus.product}" if status.gpus.count else ""
    products = ", ".join(f"{count} x {name}" for name, count in Counter(_names(gpus)).most_common())
    driver, kernel = _text(system and system.driver), _text(host and host.kernel)
    return {
        "GPUs": _fact(products or in_report),
        "driver": _fact(driver or status.gpus.driver),
        "CUDA of driver": _fact(_cuda(system.cuda) if system is not None else ""),
        "VBIOS": _each(gpus, lambda gpu: gpu.vbios) or _fact(status.versions.vbios),
        "kernel": _fact(kernel or status.versions.kernel),
        "GPU memory": _each(gpus, lambda gpu: gpu.memory_mib, "MiB"),
        "MIG": _each(gpus, lambda gpu: _switch(gpu.mig)),
        "ECC": _each(gpus, lambda gpu: _switch(gpu.ecc.mode)),
        "persistence mode": _each(gpus, lambda gpu: _switch(gpu.persistence)),
        "compute mode": _each(gpus, lambda gpu: gpu.compute_mode),
    }


def _settings(gpus: Sequence[Gpu]) -> Facts:
    return {
        "power limit": _each(gpus, lambda gpu: _watts(gpu.power.enforced_limit_mw), "W"),
        "power limit by default": _each(gpus, lambda gpu: _watts(gpu.power.default_limit_mw), "W"),
        "highest power limit": _each(gpus, lambda gpu: _watts(gpu.power.max_limit_mw), "W"),
        "highest SM clock": _each(gpus, lambda gpu: gpu.clocks.max_sm_mhz, "MHz"),
        "SM clock allowed": _each(gpus, lambda gpu: gpu.clocks.app_sm_mhz, "MHz"),
        "highest memory clock": _each(gpus, lambda gpu: gpu.clocks.max_memory_mhz, "MHz"),
    }


def _links(gpus: Sequence[Gpu], result: Result | None) -> Facts:
    ports = result.nics.ports if result is not None else []
    states = Counter(f"{_text(port.state)} {_number(port.rate_gbps)} Gb/s" for port in ports)
    return {
        "active NVLinks": _each(gpus, _active_links),
        "NVLink rate": _each(gpus, _link_rate, "MB/s"),
        LINK_ERRORS: _each(gpus, lambda gpu: _link_errors(gpu.link_errors)),
        "PCIe of card and slot": _each(gpus, lambda gpu: _pcie(gpu.pcie.max_generation, gpu.pcie.max_width)),
        "PCIe lanes in use": _each(gpus, lambda gpu: gpu.pcie.width),
        REPLAYS: _each(gpus, lambda gpu: gpu.pcie.replays),
        CORRECTABLE: _each(gpus, lambda gpu: gpu.pcie.correctable),
        "RDMA ports": _fact(", ".join(f"{count} x {state}" for state, count in states.most_common())),
    }


def _measured(status: ReportStatus, gpus: Sequence[Gpu]) -> Facts:
    bandwidth, load = status.bandwidth, status.load
    hottest = [
        gpu.window.temperature.max
        for gpu in gpus
        if gpu.window is not None and gpu.window.temperature is not None
    ]
    celsius = [value for value in hottest if not isinstance(value, Unavailable)]
    celsius = celsius or [v for gpu in gpus if not isinstance(v := gpu.temperature.gpu, Unavailable)]
    return {
        "hottest GPU": _close(max(celsius, default=None), "°C", CELSIUS),
        "SM clock at work": _close(status.clock.sm_mhz or None, "MHz", status.clock.sm_mhz * CLOCK),
        "all_reduce": _rate(bandwidth.all_reduce),
        "all_gather": _rate(bandwidth.all_gather),
        "reduce_scatter": _rate(bandwidth.reduce_scatter),
        "all_reduce without P2P": _rate(bandwidth.p2p_off),
        "computing speed": _close(load.tflops, "TFLOPS", (load.tflops or 0) * CLOCK),
        "interconnect": _fact(status.interconnect.klass),
        "verdict": _fact(status.verdict.value if status.verdict is not Verdict.UNKNOWN else ""),
        "taints": _fact(", ".join(f"{t.key}={t.value}" for t in status.desired.taints) or "none"),
    }


def _each(gpus: Sequence[Gpu], value: Callable[[Gpu], object], unit: str = "") -> Fact | None:
    """The value of every GPU: one text if they agree, else the common one and whose differs."""
    values = {gpu.index: _shown(value(gpu), unit) for gpu in gpus}
    if not any(values.values()):
        return None
    groups: dict[str, list[int]] = {}
    for index, text in values.items():
        groups.setdefault(text or "not read", []).append(index)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    if len(ordered) == 1:
        return Fact(ordered[0][0])
    parts = [f"{text}: GPU {', '.join(map(str, indexes))}" for text, indexes in ordered[1 : MANY + 1]]
    more = f"; {len(ordered) - MANY - 1} more values" if len(ordered) > MANY + 1 else ""
    return Fact(f"{ordered[0][0]}; {'; '.join(parts)}{more}")


def _shown(value: object, unit: str) -> str:
    if value is None or value == "" or isinstance(value, Unavailable):
        return ""
    return f"{value} {unit}".strip()


def _fact(text: str | None) -> Fact | None:
    return Fact(text) if text else None


def _close(number: float | None, unit: str, slack: float) -> Fact | None:
    return Fact(f"{number:g} {unit}", float(number), slack) if number is not None else None


def _rate(number: float | None) -> Fact | None:
    return _close(number, "GB/s", (number or 0) * BANDWIDTH)


def _names(gpus: Iterable[Gpu]) -> list[str]:
    return [_text(gpu.name) or "GPU without a name" for gpu in gpus]


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else "?"


def _cuda(value: object) -> str:
    """NVML's integer: 12040 is 12.4."""
    return f"{value // 1000}.{value % 1000 // 10}" if isinstance(value, int) else ""


def _switch(value: object) -> str:
    return ("on" if value else "off") if isinstance(value, int) else ""


def _watts(value: object) -> object:
    return value // 1000 if isinstance(value, int) else value


def _pcie(generation: object, width: object) -> str:
    known = isinstance(generation, int) and isinstance(width, int)
    return f"generation {generation} x{width}" if known else ""


def _active_links(gpu: Gpu) -> object:
    """None where the state of a link is unknown, or the GPU answers no more."""
    if gpu.error is not None or any(isinstance(group.state, Unavailable) for group in gpu.links):
        return None
    active = sum(len(group.links) for group in gpu.links if group.state == ACTIVE)
    others = sorted(link for group in gpu.links if group.state != ACTIVE for link in group.links)
    without = f" without link {', '.join(map(str, others))}" if active and others else ""
    return f"{active}{without}"


def _link_errors(links: LinkErrors) -> str:
    """Each kind above zero, and the kinds that were not read; empty if none was."""
    for kinds in KINDS_OF_ERRORS:
        counts = {what: getattr(links, name) for name, what in kinds.items()}
        unread = [what for what, count in counts.items() if isinstance(count, Unavailable)]
        if len(unread) < len(counts):
            parts = [f"{count} {what}" for what, count in counts.items() if what not in unread and count]
            if isinstance(links.full, int) and links.full:
                parts.append(f"{links.full} links with a full counter")
            return (", ".join(parts) or "none") + (f" ({', '.join(unread)} not read)" if unread else "")
    return ""


def _link_rate(gpu: Gpu) -> object:
    rates = {group.mbps for group in gpu.links if isinstance(group.mbps, int)}
    return ", ".join(map(str, sorted(rates)))
