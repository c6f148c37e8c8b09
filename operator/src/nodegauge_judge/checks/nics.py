"""Findings about network ports (RDMA devices): down, slow, or making errors.

Which port should be up is not written anywhere, so it is inferred, with care for spare ports that never had a
cable: from this node's own past (`History.ports` knows the ports that were up), from the kernel's count of
lost links, and from siblings.  Siblings are ports of one kind: same link layer, port number and PCI function
(the second function of a card is often spare), as near to a GPU (storage and management cards are farther off
and slower on purpose).  Few siblings prove nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from msgspec import Struct

from nodegauge_contract import Nics, Port
from nodegauge_judge.case import Case, Hit, clip, gather, number, text
from nodegauge_judge.findings import Code
from nodegauge_judge.history.growth import is_up
from nodegauge_judge.model import Finding, Scalar, Severity

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


def nic_down(case: Case) -> Iterator[Finding]:
    """Ports that are not ACTIVE, and those that were not for a while."""
    ports = _ports(case)
    hits = [hit for seen in ports if (hit := _down(case, seen, ports) or _was_down(case, seen)) is not None]
    yield from gather(Code.NIC_DOWN, hits)


def nic_slow(case: Case) -> Iterator[Finding]:
    """Ports below the rate that they had or that their kind has, and ports whose errors grow."""
    ports = _ports(case)
    hits = [hit for seen in ports if (hit := _slow(case, seen, ports)) is not None]
    hits += [hit for seen in ports if (hit := _errors(case, seen)) is not None]
    yield from gather(Code.NIC_SLOW, hits)


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


def _down(case: Case, seen: _Seen, ports: list[_Seen]) -> Hit | None:
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


def _was_down(case: Case, seen: _Seen) -> Hit | None:
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


def _slow(case: Case, seen: _Seen, ports: list[_Seen]) -> Hit | None:
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


def _errors(case: Case, seen: _Seen) -> Hit | None:
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


def _hit(seen: _Seen, severity: Severity, *, message: str, evidence: dict[str, Scalar], weight: float) -> Hit:
    name = clip(seen.key)
    return Hit(
        severity=severity,
        place=f"port {name}",
        short=name,
        message=message,
        evidence=evidence,
        weight=weight,
    )
