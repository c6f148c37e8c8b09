"""Findings about network ports (RDMA devices): down, slow, or making errors.

Which port should be up is not written anywhere, so it is inferred, with care for spare ports that never had a
cable: from this node's own past (`History.ports` knows the ports that were up), from the kernel's count of
lost links, and from siblings.  Siblings are ports of one kind: same link layer, port number and PCI function
(the second function of a card is often spare), as near to a GPU (storage and management cards are farther off
and slower on purpose).  Few siblings prove nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from msgspec import Struct

from nodegauge_contract import Nics, Port
from nodegauge_judge.case import Case, HealthRule, clip, number, text
from nodegauge_judge.history.growth import is_up
from nodegauge_judge.model import Scalar, Severity
from nodegauge_judge.rule import Observation

SWITCHED_OFF = "disabled"
SIBLINGS = 3
"""Ports of a kind that must agree before they say anything about one more.  Own."""
SECONDS_PER_HOUR = 3600
_NEAREST_FIRST = ("PIX", "PXB", "PHB", "NODE", "SYS")


class _Seen(Struct, frozen=True, kw_only=True):
    """A port with what it is called (`mlx5_0/1`, the key of `History.ports`) and the kind it is of."""

    key: str
    port: Port
    kind: tuple[str, int, str, str]


def nic_down(case: Case) -> Iterable[Observation]:
    """Ports that are not ACTIVE, and those that were not for a while."""
    ports = _ports(case)
    return [hit for seen in ports if (hit := _down(case, seen, ports) or _was_down(case, seen)) is not None]


def nic_slow(case: Case) -> Iterable[Observation]:
    """Ports below the rate that they had or that their kind has, and ports whose errors grow."""
    ports = _ports(case)
    hits = [hit for seen in ports if (hit := _slow(case, seen, ports)) is not None]
    hits += [hit for seen in ports if (hit := _errors(case, seen)) is not None]
    return hits


def _ports(case: Case) -> list[_Seen]:
    nics = case.result.nics
    return [
        _Seen(key=f"{nics.names[port.nic]}/{port.port}", port=port, kind=_kind(nics, port))
        for port in nics.ports
        if port.nic < len(nics.names)
    ]


def _kind(nics: Nics, port: Port) -> tuple[str, int, str, str]:
    address = text(nics.pci[port.nic]) if port.nic < len(nics.pci) else ""
    row = nics.to_gpu[port.nic] if port.nic < len(nics.to_gpu) else []
    nearest = next((letters for letters in _NEAREST_FIRST if letters in row), "")
    return text(port.link_layer), port.port, address.rpartition(".")[2], nearest


def _siblings(seen: _Seen, ports: list[_Seen]) -> list[_Seen]:
    return [other for other in ports if other is not seen and other.kind == seen.kind]


def _down(case: Case, seen: _Seen, ports: list[_Seen]) -> Observation | None:
    port = seen.port
    if not isinstance(port.state, str) or is_up(port):
        return None
    severity, why = _expected_up(case, seen, _siblings(seen, ports))
    if severity is None:
        return None
    physical = f", {clip(port.physical)}" if isinstance(port.physical, str) else ""
    evidence: dict[str, Scalar] = {"state": clip(port.state)}
    if isinstance(port.physical, str):
        evidence["physical"] = clip(port.physical)
    if isinstance(port.link_downed, int):
        evidence["link_downed"] = port.link_downed
    return _hit(
        seen,
        severity,
        message=f"{clip(port.state)}{physical}; {why}.",
        evidence=evidence,
        weight=number(port.rate_gbps) or 0,
    )


def _was_down(case: Case, seen: _Seen) -> Observation | None:
    """A port that is up, and lost its link between two runs that both saw it up."""
    past, now = case.history.ports.get(seen.key), seen.port.link_downed
    if not isinstance(now, int) or not is_up(seen.port) or not case.growth.interval.counts:
        return None
    if past is None or past.downs is None or now <= past.downs:
        return None
    times = now - past.downs
    words = "once" if times == 1 else f"{times} times"
    return _hit(
        seen,
        Severity.WARN,
        message=f"Lost its link {words} since the last run and came back.",
        evidence={"link_downed": now, "link_downed_growth": times},
        weight=0,
    )


def _expected_up(case: Case, seen: _Seen, siblings: list[_Seen]) -> tuple[Severity | None, str]:
    """How bad it is that the port is down, and what says that it should be up."""
    port = seen.port
    if isinstance(port.physical, str) and SWITCHED_OFF in port.physical.lower():
        return Severity.INFO, "it is switched off"
    if seen.key in case.history.ports:
        return Severity.WARN, "it was up before"
    if isinstance(port.link_downed, int) and port.link_downed > 0:
        times = "once" if port.link_downed == 1 else f"{port.link_downed} times"
        return Severity.WARN, f"it lost its link {times} since its driver was loaded"
    if len(siblings) < SIBLINGS or not all(is_up(other.port) for other in siblings):
        return None, ""
    words = f"all {len(siblings)} ports of its kind are up"
    if case.history.boot:
        return Severity.INFO, f"{words}, nothing says that it ever was: a spare, or never cabled"
    return Severity.WARN, f"{words}, and nothing is known of its past"


def _slow(case: Case, seen: _Seen, ports: list[_Seen]) -> Observation | None:
    rate = number(seen.port.rate_gbps)
    if not rate or not is_up(seen.port):
        return None
    usual, why = max(_usual(seen, ports), _before(case, seen), key=lambda measure: measure[0])
    if rate >= usual:
        return None
    return _hit(
        seen,
        Severity.WARN,
        message=f"{rate:g} Gb/s; {why} {usual:g} Gb/s.",
        evidence={"rate_gbps": rate, "expected_gbps": usual},
        weight=1000 * (1 - rate / usual),
    )


def _usual(seen: _Seen, ports: list[_Seen]) -> tuple[float, str]:
    """The rate that its kind agrees on; 0 where there are too few of them, or they do not agree."""
    rates = [number(other.port.rate_gbps) or 0 for other in _siblings(seen, ports) if is_up(other.port)]
    usual = median(rates) if len(rates) >= SIBLINGS else 0
    agree = sum(rate == usual for rate in rates) >= SIBLINGS
    return (usual if agree else 0), f"{len(rates)} ports of its kind have"


def _before(case: Case, seen: _Seen) -> tuple[float, str]:
    past = case.history.ports.get(seen.key)
    return (past.rate / 10 if past is not None else 0), "it was seen with"


def _errors(case: Case, seen: _Seen) -> Observation | None:
    grown, seconds = case.growth.ports.get(seen.key), case.growth.interval.seconds
    limit = case.thresholds.nic_errors_per_hour
    if not grown or not seconds:
        return None
    rate = grown * SECONDS_PER_HOUR / seconds
    if rate <= limit:
        return None
    return _hit(
        seen,
        Severity.WARN,
        message=(
            f"{grown} errors in {seconds:.0f} s since the last run, {rate:.0f} an hour; more than {limit} an "
            "hour is a finding."
        ),
        evidence={"errors": grown, "seconds": seconds, "per_hour": round(rate), "limit": limit},
        weight=rate,
    )


def _hit(
    seen: _Seen, severity: Severity, *, message: str, evidence: dict[str, Scalar], weight: float
) -> Observation:
    name = clip(seen.key)
    return Observation(
        severity=severity,
        location=f"port {name}",
        short=name,
        message=message,
        evidence=evidence,
        weight=weight,
    )


NIC_DOWN = HealthRule(
    code="nic-down",
    title="a network port is down",
    meaning=(
        "A port of an RDMA device is not ACTIVE although it should be: it was up before, or it lost its "
        "link since its driver was loaded. Jobs that span nodes fall back to fewer or slower ports. A "
        "port that was never seen up may be a spare without a cable: beside three or more ports of its "
        "kind that are all up it warns once, when the node is first seen, and is only mentioned later."
    ),
    when={
        Severity.INFO: (
            "a port that has never been seen up, while three or more of its kind are up; or one that is "
            "switched off (Disabled)"
        ),
        Severity.WARN: (
            "a port that was up in the last reading, or that counts lost links, is not ACTIVE; a port "
            "lost its link since the last run and came back; on a first run, the only port of four or "
            "more of its kind that is not ACTIVE"
        ),
    },
    next_step="check cable, transceiver and switch port; InfiniBand also needs a subnet manager.",
    way_out=(
        "`ibstat` or `rdma link` on the node: Polling means no signal (cable, transceiver, switch port); "
        "Initializing means no subnet manager has seen it.",
        "`mlxlink -d DEVICE -m` reads the transceiver.",
        "If the port is not meant to be used: `kubectl delete nodereport NODE` forgets that it was up.",
    ),
    check=nic_down,
)
NIC_SLOW = HealthRule(
    code="nic-slow",
    title="a network port is slow or makes errors",
    meaning=(
        "A port negotiated a lower rate than it has been seen with, or than the ports of its kind beside "
        "it (same link layer, same PCI function, as near to a GPU), or its error counters grow. The "
        "slowest port sets the pace of a job that spans nodes."
    ),
    when={
        Severity.WARN: (
            "the rate is below what the port has been seen with, or below that of three or more of its "
            "kind that agree; or errors (symbol, receive, lost links) grew by more than "
            "`nicErrorsPerHour` (default 100) an hour"
        )
    },
    next_step="check cable and transceiver; a bent or dirty one negotiates fewer lanes.",
    way_out=(
        "`ibstat DEVICE` or `ethtool INTERFACE` on the node; `mlxlink -d DEVICE -e -c` shows lanes and "
        "errors.",
        "Reseat or replace the cable, then the transceiver; try another switch port.",
        "If the lower rate is meant: `kubectl delete nodereport NODE` forgets the higher one.",
    ),
    check=nic_slow,
)

RULES = (
    NIC_DOWN,
    NIC_SLOW,
)
