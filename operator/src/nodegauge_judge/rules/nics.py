"""Rules about network ports (RDMA devices): down, slow, or with errors.

No setting says which ports should be up, and spare ports have no cable, so nodegauge infers it: from the
node's history (`History.ports` holds the ports that were up), from the kernel's count of lost links, and from
siblings.  Siblings have the same link layer, port number and PCI function (a card's second function is often
spare) and are as near to a GPU (storage and management cards are farther away and slower on purpose).  A few
siblings prove nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from msgspec import Struct

from nodegauge_contract import Nics, Port
from nodegauge_judge.case import Case, HealthRule, clip, number, once, text
from nodegauge_judge.history.growth import is_up
from nodegauge_judge.model import Scalar, Severity
from nodegauge_judge.rule import Observation

SWITCHED_OFF = "disabled"
SIBLINGS = 3
"""Ports of a kind that must agree before they count as a measure for another one.  Chosen by this
project: two ports may both be spare."""
SECONDS_PER_HOUR = 3600


class Counter(Struct, frozen=True):
    """One counter's limit: more than `most` within `seconds` warn; 0 seconds: within any interval."""

    text: str
    most: float
    seconds: float


COUNTERS = {
    "integrity_errors": Counter("errors beyond the port's own limit (local_link_integrity_errors)", 0, 0),
    "overruns": Counter("packets without a buffer (excessive_buffer_overrun_errors)", 0, 0),
    "receiver_not_ready": Counter("sends without room at the other end (rnr_nak_retry_err)", 0, 0),
    "recoveries": Counter("recoveries of the link (link_error_recovery)", 5, 60),
    "ack_timeouts": Counter("packets without an acknowledgement (local_ack_timeout_err)", 1, 1),
    "discards": Counter("packets thrown away unsent (port_xmit_discards)", 100, 1),
}
"""Source: NVIDIA/NVSentinel, NIC health monitor, default thresholds of its counters (appendix A of "Link
Counter Detection").  It calls the first three fatal to jobs; here all warn, because the other end or a job
may be the cause.  Its limit for symbol errors, 120 an hour, is above `nicErrorsPerHour`."""
_NEAREST_FIRST = ("PIX", "PXB", "PHB", "NODE", "SYS")


class _NamedPort(Struct, frozen=True, kw_only=True):
    """A port with its name (`mlx5_0/1`, the key of `History.ports`), its kind, its rate in Gb/s (0 if
    unknown) and whether it is up."""

    key: str
    port: Port
    kind: tuple[str, int, str, str]
    rate: float
    up: bool


def nic_down(case: Case) -> Iterator[Observation]:
    """Ports that are not ACTIVE, and ports that lost their link for a while."""
    ports = _ports(case)
    for named in ports:
        observation = _down(case, named, ports) or _was_down(case, named)
        if observation is not None:
            yield observation


def nic_slow(case: Case) -> Iterator[Observation]:
    """Ports below their earlier rate or that of their kind, and ports whose errors grow."""
    ports = _ports(case)
    observations = [_slow(case, named, ports) for named in ports] + [_errors(case, named) for named in ports]
    yield from (observation for observation in observations if observation is not None)
    for named in ports:
        yield from _counted(case, named)


@once
def _ports(case: Case) -> list[_NamedPort]:
    nics = case.result.nics
    return [
        _NamedPort(
            key=f"{nics.names[port.nic]}/{port.port}",
            port=port,
            kind=_kind(nics, port),
            rate=number(port.rate_gbps) or 0,
            up=is_up(port),
        )
        for port in nics.ports
        if port.nic < len(nics.names)
    ]


def _kind(nics: Nics, port: Port) -> tuple[str, int, str, str]:
    address = text(nics.pci[port.nic]) if port.nic < len(nics.pci) else ""
    row = nics.to_gpu[port.nic] if port.nic < len(nics.to_gpu) else []
    nearest = next((letters for letters in _NEAREST_FIRST if letters in row), "")
    return text(port.link_layer), port.port, address.rpartition(".")[2], nearest


def _siblings(named: _NamedPort, ports: list[_NamedPort]) -> list[_NamedPort]:
    return [other for other in ports if other is not named and other.kind == named.kind]


def _down(case: Case, named: _NamedPort, ports: list[_NamedPort]) -> Observation | None:
    port = named.port
    if not isinstance(port.state, str) or named.up:
        return None
    severity, why = _expected_up(case, named, _siblings(named, ports))
    if severity is None:
        return None
    physical = f", {clip(port.physical)}" if isinstance(port.physical, str) else ""
    evidence: dict[str, Scalar] = {"state": clip(port.state)}
    if isinstance(port.physical, str):
        evidence["physical"] = clip(port.physical)
    if isinstance(port.link_downed, int):
        evidence["link_downed"] = port.link_downed
    return _observe(
        named,
        severity,
        message=f"{clip(port.state)}{physical}; {why}.",
        evidence=evidence,
        weight=named.rate,
    )


def _was_down(case: Case, named: _NamedPort) -> Observation | None:
    """A port that was up in both runs and lost its link between them."""
    past, now = case.history.ports.get(named.key), named.port.link_downed
    if not isinstance(now, int) or not named.up or not case.growth.interval.counts:
        return None
    if past is None or past.downs is None or now <= past.downs:
        return None
    times = now - past.downs
    often = "once" if times == 1 else f"{times} times"
    return _observe(
        named,
        Severity.WARN,
        message=f"Lost its link {often} since the last run and came back.",
        evidence={"link_downed": now, "link_downed_growth": times},
        weight=0,
    )


def _expected_up(case: Case, named: _NamedPort, siblings: list[_NamedPort]) -> tuple[Severity | None, str]:
    """The severity of a port that is down, and why it should be up."""
    port = named.port
    if isinstance(port.physical, str) and SWITCHED_OFF in port.physical.lower():
        return Severity.INFO, "it is switched off"
    if named.key in case.history.ports:
        return Severity.WARN, "it was up before"
    if isinstance(port.link_downed, int) and port.link_downed > 0:
        times = "once" if port.link_downed == 1 else f"{port.link_downed} times"
        return Severity.WARN, f"it lost its link {times} since its driver was loaded"
    if len(siblings) < SIBLINGS or not all(other.up for other in siblings):
        return None, ""
    siblings_up = f"all {len(siblings)} ports of its kind are up"
    if case.history.boot:
        return Severity.INFO, f"{siblings_up}; no run ever saw it up: a spare, or without a cable"
    return Severity.WARN, f"{siblings_up}, and it has no history yet"


def _slow(case: Case, named: _NamedPort, ports: list[_NamedPort]) -> Observation | None:
    rate = named.rate
    if not rate or not named.up:
        return None
    usual, why = max(_usual(named, ports), _before(case, named), key=lambda measure: measure[0])
    if rate >= usual:
        return None
    return _observe(
        named,
        Severity.WARN,
        message=f"{rate:g} Gb/s; {why} {usual:g} Gb/s.",
        evidence={"rate_gbps": rate, "expected_gbps": usual},
        weight=1000 * (1 - rate / usual),
    )


def _usual(named: _NamedPort, ports: list[_NamedPort]) -> tuple[float, str]:
    """The rate that its kind agrees on; 0 if they are too few or disagree."""
    rates = [other.rate for other in _siblings(named, ports) if other.up]
    usual = median(rates) if len(rates) >= SIBLINGS else 0
    agree = sum(rate == usual for rate in rates) >= SIBLINGS
    return (usual if agree else 0), f"{len(rates)} ports of its kind have"


def _before(case: Case, named: _NamedPort) -> tuple[float, str]:
    past = case.history.ports.get(named.key)
    return (past.rate / 10 if past is not None else 0), "earlier runs saw"


def _errors(case: Case, named: _NamedPort) -> Observation | None:
    growth, seconds = case.growth.ports.get(named.key), case.growth.interval.seconds
    limit = case.thresholds.nic_errors_per_hour
    if not growth or not seconds:
        return None
    rate = growth * SECONDS_PER_HOUR / seconds
    if rate <= limit:
        return None
    return _observe(
        named,
        Severity.WARN,
        message=(
            f"{growth} errors in {seconds:.0f} s since the last run: {rate:.0f} an hour "
            f"(warns above {limit})."
        ),
        evidence={"errors": growth, "seconds": seconds, "per_hour": round(rate), "limit": limit},
        weight=rate,
    )


def _counted(case: Case, named: _NamedPort) -> Iterator[Observation]:
    """Counters that grew beyond their limits, in one observation."""
    grown, seconds = case.growth.port_counts.get(named.key, {}), case.growth.interval.seconds
    if not seconds:
        return
    limits = {name: COUNTERS[name] for name in grown}
    over = {
        name: grown[name]
        for name, counter in limits.items()
        if grown[name] > counter.most * (seconds / counter.seconds if counter.seconds else 1)
    }
    if over:
        listed = "; ".join(f"{count} {limits[name].text}" for name, count in over.items())
        yield _observe(
            named,
            Severity.WARN,
            message=f"Within {seconds:.0f} s since the last run: {listed}.",
            evidence={"seconds": seconds, **over},
            weight=sum(over.values()) * SECONDS_PER_HOUR / seconds,
        )


def _observe(
    named: _NamedPort, severity: Severity, *, message: str, evidence: dict[str, Scalar], weight: float
) -> Observation:
    name = clip(named.key)
    return Observation(
        severity=severity,
        location=f"port {name}",
        short=name,
        message=message,
        evidence=evidence | {"device": name.rpartition("/")[0] or name, "port": named.port.port},
        weight=weight,
    )


RULES = (
    HealthRule(
        code="nic-down",
        title="a network port is down",
        meaning=(
            "A port of an RDMA device should be ACTIVE and is not: it was up before, or it lost its link "
            "since its driver was loaded. Jobs that span nodes use fewer or slower ports. A port that was "
            "never up may be a spare without a cable: if three or more ports of its kind are all up, it "
            "is a warning in the node's first run and information in later runs."
        ),
        when={
            Severity.INFO: (
                "a port that was never up while three or more of its kind are up; or a port that is switched "
                "off (Disabled)"
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
            "Initializing means that no subnet manager has seen it.",
            "`mlxlink -d DEVICE -m` reads the transceiver.",
            "If the port is not in use: `kubectl delete nodereport NODE` forgets that it was up.",
        ),
        check=nic_down,
    ),
    HealthRule(
        code="nic-slow",
        title="a network port is slow or makes errors",
        meaning=(
            "The port negotiated a lower rate than in an earlier run or than the node's other ports of its "
            "kind (same link layer, same PCI function, as near to a GPU), or its error counters grow. The "
            "slowest port sets the pace of a job that spans nodes."
        ),
        when={
            Severity.WARN: (
                "the rate is below the port's highest earlier rate, or below that of three or more ports of "
                "its kind that agree; or errors (symbol, receive, lost links) grew by more than "
                "`nicErrorsPerHour` (default 100) an hour; or since the last run any error beyond the port's "
                "own limit, any packet without a buffer, any send without room at the other end, more than 5 "
                "recoveries a minute, more than one packet a second without an acknowledgement, or more than "
                "100 a second thrown away unsent"
            )
        },
        next_step="check cable and transceiver; a bent or dirty one negotiates fewer lanes.",
        way_out=(
            "`ibstat DEVICE` or `ethtool INTERFACE` on the node; `mlxlink -d DEVICE -e -c` shows lanes and "
            "errors.",
            "Reseat or replace the cable, then the transceiver; try another switch port.",
            "If the lower rate is intended: `kubectl delete nodereport NODE` forgets the higher one.",
        ),
        check=nic_slow,
    ),
)
