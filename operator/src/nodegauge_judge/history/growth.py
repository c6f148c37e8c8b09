"""How much each counter grew since the last run.

Counters restart at driver reload, at GPU reset, and when the last client closes while persistence is off.  So
rules judge growth, not values.  Growth is a number, or None with the reason; a check without it falls back on
the sampling window or gives no answer.  Nothing here judges.

Time is CLOCK_BOOTTIME, read together with the counters: wall clocks step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import astuple

from nodegauge_contract import Gpu, Int, LinkErrors, Port, Result
from nodegauge_contract.gpu import SATURATED
from nodegauge_judge.history.model import PORT_COUNTERS, Counts, History, PortHistory, keys
from nodegauge_judge.thresholds import Thresholds

GROWN_AS = {name: name.removesuffix("_ms") for name in Counts.__struct_fields__}
"""Each counter's member of `GpuGrowth`."""
TIMES = frozenset(name for name in GROWN_AS if name.endswith("_ms"))
CLOCKLIKE = TIMES | {"energy_cj"}
"""Counters that only a restart resets; if one went back, all growth of that GPU is unknown."""
MOST_GBPS = 100_000
"""Gb/s above any port's rate."""
MOST_INTERVALS = 2
"""Intervals of the policy between two runs that still count as one.  Chosen by this project: it tolerates one
missed run."""


AT_ONCE = frozenset({"ecc_uncorrected"})
"""Errors of which one run is proof enough: a new one counts even in an interval that is too short to clear a
GPU."""


class Interval(Struct, frozen=True, kw_only=True):
    """The time since the last run."""

    seconds: float | None = None
    """None if unknown (first run, reboot, other driver)."""
    reason: str = ""
    """Why throttle rules cannot use it; empty if they can."""
    counts: bool = False
    """Whether errors can be counted over it: also if it is too long for throttle rules, but not if it is too
    short."""

    @property
    def valid(self) -> bool:
        """Whether the throttle rules may use it."""
        return not self.reason

    @property
    def early(self) -> bool:
        """Whether it is too short to be judged, with the same boot and driver: a later run judges the
        counters."""
        return self.seconds is not None and self.seconds >= 0 and not self.counts


class GpuGrowth(Struct, frozen=True, kw_only=True):
    """Growth of one GPU's counters over the interval; None with the reason in `why`.  In an interval that is
    not valid, times and energy are None; errors are known if it is only too long."""

    reason: str = ""
    """Why growth is None where `unavailable` has no entry."""
    energy_cj: int | None = None
    """Hundredths of a joule."""
    sw_power_cap: float | None = None
    """Seconds held down by the power limit."""
    sync_boost: float | None = None
    """Seconds held down by a sync boost group."""
    sw_thermal: float | None = None
    """Seconds of software thermal slowdown."""
    hw_thermal: float | None = None
    """Seconds of hardware thermal slowdown."""
    power_brake: float | None = None
    """Seconds of power brake."""
    thermal_violation: float | None = None
    """Seconds held down by temperature."""
    low_utilization: float | None = None
    """Seconds with clocks low for want of work."""
    ecc_uncorrected: int | None = None
    """New uncorrected memory errors; also known in a short interval if there are any."""
    ecc_corrected: int | None = None
    """New corrected memory errors."""
    pcie_replays: int | None = None
    """New replays of the PCIe link."""
    pcie_correctable: int | None = None
    """New correctable errors of the PCIe link."""
    link_crc: int | None = None
    """New NVLink errors of the kind `Counts.link_crc`."""
    link_faults: int | None = None
    """New NVLink errors of the kind `Counts.link_faults`."""
    unavailable: dict[str, str] = {}
    """By name, why that growth alone is None."""

    def why(self, name: str) -> str:
        """Why the growth of `name` is None; empty if it is a number."""
        return self.unavailable.get(name, self.reason) if getattr(self, name) is None else ""


class Growth(Struct, frozen=True, kw_only=True):
    """All growth since the last run."""

    interval: Interval
    """The time since then."""
    gpus: tuple[GpuGrowth, ...]
    """In the order of the document."""
    counts: tuple[Counts, ...]
    """Each GPU's counters now."""
    ports: dict[str, int]
    """New errors by `device/port`, if known."""
    port_counts: dict[str, dict[str, int]]
    """Growth of each of `PORT_COUNTERS` by `device/port`, likewise."""
    ports_up: dict[str, PortHistory]
    """Ports that are up, by `device/port`."""


def build_growth(result: Result, *, history: History, thresholds: Thresholds, interval: float) -> Growth:
    """Growth from `history` to `result`; `interval` is the policy's, in seconds."""
    since = _interval(result, history, thresholds=thresholds, expected=interval)
    up = _ports_up(result)
    past = history.ports if since.counts else {}
    ports = _port_growth(up, past)
    now = tuple(counts(gpu) for gpu in result.gpus)
    gpus = tuple(
        _grown(
            counted, past, since=since, limit=thresholds.plausible_growth, full=full_links(gpu.link_errors)
        )
        for gpu, counted, past in zip(result.gpus, now, _past(result, history), strict=True)
    )
    return Growth(
        interval=since,
        gpus=gpus,
        counts=now,
        ports=ports,
        port_counts={key: _counted(port, past[key]) for key, port in up.items() if key in past},
        ports_up=up,
    )


def saturated(value: int) -> bool:
    """Whether a counter is at the largest number that it can hold."""
    return value in SATURATED


def counts(gpu: Gpu) -> Counts:
    """The counters of one GPU now."""
    times, kinds = gpu.counters, _kinds(gpu.link_errors)
    return Counts(
        energy_cj=_whole(gpu.power.energy_mj, 10),
        sw_power_cap_ms=_whole(times.sw_power_cap_ns, 1_000_000),
        sync_boost_ms=_whole(times.sync_boost_ns, 1_000_000),
        sw_thermal_ms=_whole(times.sw_thermal_ns, 1_000_000),
        hw_thermal_ms=_whole(times.hw_thermal_ns, 1_000_000),
        power_brake_ms=_whole(times.power_brake_ns, 1_000_000),
        thermal_violation_ms=_whole(times.thermal_violation_ns, 1_000_000),
        low_utilization_ms=_whole(times.low_utilization_ns, 1_000_000),
        ecc_uncorrected=_whole(gpu.ecc.volatile_uncorrected),
        ecc_corrected=_whole(gpu.ecc.volatile_corrected),
        pcie_replays=_whole(gpu.pcie.replays),
        pcie_correctable=_whole(gpu.pcie.correctable),
        link_crc=_first_whole(*kinds["link_crc"]),
        link_faults=_first_whole(*kinds["link_faults"]),
    )


Family = tuple[Int, ...]
"""Counters of one kind that are read together or not at all."""


def _kinds(links: LinkErrors) -> dict[str, tuple[Family, ...]]:
    """The counters behind each sum, by its member of `Counts`: up to NVLink 4, of NVLink 5, and those that
    probes read before version 1.7."""
    failed = links.recovery_failed if isinstance(links.recovery_failed, int) else 0
    received = (links.recoveries, links.received, links.integrity, failed)
    return {
        "link_crc": ((links.crc_flit, links.crc_data), (links.effective,)),
        "link_faults": ((links.replay, links.recovery, failed), received, (links.recovery_failed,)),
    }


def full_links(links: LinkErrors) -> frozenset[str]:
    """The members of `Counts` whose growth is unknown because a link's counter is at its maximum.

    A document before version 1.7 has sums alone: one that only full counters of 16 bits add up to is told by
    that, as a single one is."""
    if isinstance(links.full, int):
        return frozenset(_kinds(links)) if links.full else frozenset()
    return frozenset(
        name
        for name, families in _kinds(links).items()
        for count in (count for family in families for count in family)
        if isinstance(count, int) and count > 0 and (saturated(count) or count % (2**16 - 1) == 0)
    )


def _ports_up(result: Result) -> dict[str, PortHistory]:
    """Every NIC port that is up, by `device/port`.

    A port that is down is left out, because `History.ports` also answers whether a port was ever up.
    """
    names, ports = result.nics.names, {}
    for port in result.nics.ports:
        if port.nic < len(names) and is_up(port):
            total = _total((port.link_downed, port.symbol_errors, port.receive_errors))
            key, rate = f"{names[port.nic]}/{port.port}", _tenths(port.rate_gbps)
            others = tuple(_whole(getattr(port, name)) for name in PORT_COUNTERS)
            ports[key] = PortHistory(total, rate, _whole(port.link_downed), others)
    return ports


def _tenths(gbps: object) -> int:
    known = isinstance(gbps, int | float) and not isinstance(gbps, bool) and 0 < gbps < MOST_GBPS
    return round(gbps * 10) if known else 0  # type: ignore[operator]


def _counted(now: PortHistory, then: PortHistory) -> dict[str, int]:
    """Growth by counter, of those that were read both times and did not go back."""
    pairs = zip(PORT_COUNTERS, now.counts, then.counts, strict=False)
    return {
        name: value - before
        for name, value, before in pairs
        if value is not None and before is not None and value >= before
    }


def _port_growth(now: Mapping[str, PortHistory], then: Mapping[str, PortHistory]) -> dict[str, int]:
    pairs = [(key, port.errors, then[key].errors) for key, port in now.items() if key in then]
    return {
        key: value - before
        for key, value, before in pairs
        if value is not None and before is not None and value >= before
    }


def is_up(port: Port) -> bool:
    """Whether the port carries traffic: the kernel's ACTIVE."""
    return isinstance(port.state, str) and port.state.upper() == "ACTIVE"


def went_back(gpu: Counts, past: Counts) -> str:
    """The name of a counter that only a restart can have reset; empty for none."""
    return _restarted(_both(gpu, past))


def _restarted(both: Sequence[tuple[str, int, int]]) -> str:
    return next((name for name, now, then in both if name in CLOCKLIKE and now < then), "")


def _past(result: Result, history: History) -> Iterator[Counts | None]:
    key = keys(gpu.uuid for gpu in result.gpus if isinstance(gpu.uuid, str))
    for gpu in result.gpus:
        past = history.gpus.get(key[gpu.uuid]) if isinstance(gpu.uuid, str) else None
        yield past.counts if past is not None else None


def _interval(result: Result, history: History, *, thresholds: Thresholds, expected: float) -> Interval:
    now = _whole(result.host.boottime_ms)
    if history.boottime_ms is None or now is None:
        return Interval(reason="there is no earlier reading to compare with")
    if result.host.boot_id != history.boot:
        return Interval(reason="the node was rebooted since the last run")
    if result.system.driver != history.driver:
        return Interval(reason="the driver was changed since the last run")
    seconds = (now - history.boottime_ms) / 1000
    if seconds < thresholds.interval_floor:
        floor = f"intervalFloor is {thresholds.interval_floor:g} s"
        return Interval(seconds=seconds, reason=f"only {seconds:g} s passed since the last run; {floor}")
    if seconds > _longest(expected, floor=thresholds.interval_floor):
        return Interval(
            seconds=seconds, reason=f"{seconds:g} s passed since the last run: runs were missed", counts=True
        )
    return Interval(seconds=seconds, counts=True)


def _longest(expected: float, *, floor: float) -> float:
    """Seconds between two judged runs in which at most one was missed.  Runs sooner than `floor` are judged
    together; the last of them comes up to an interval after it."""
    together = floor + MOST_INTERVALS * expected if expected < floor else 0.0
    return max(together, MOST_INTERVALS * max(expected, floor))


def _grown(
    now: Counts, past: Counts | None, *, since: Interval, limit: float, full: frozenset[str]
) -> GpuGrowth:
    if past is None or since.seconds is None or not (since.counts or since.early):
        return GpuGrowth(reason=since.reason or "this GPU has no earlier reading to compare with")
    both = _both(now, past)
    if back := _restarted(both):
        return GpuGrowth(reason=f"counters were restarted since the last run ({back} went back)")
    if since.early:
        came = {n: value - then for n, value, then in both if n in AT_ONCE and value > then}
        return GpuGrowth(
            reason=since.reason,
            ecc_uncorrected=came.get("ecc_uncorrected") or None,
        )
    grown: dict[str, float | int] = {}
    unavailable: dict[str, str] = {}
    for name, value, then in both:
        short, by = GROWN_AS[name], value - then
        if name in CLOCKLIKE and not since.valid:
            continue
        if by < 0:
            unavailable[short] = f"{short} went back"
        elif by == 0 and (saturated(value) or name in full):
            unavailable[short] = f"{short} is at its maximum, {value}: it cannot grow"
        elif name not in TIMES:
            grown[short] = by
        elif by / 1000 > limit * since.seconds:
            unavailable[short] = f"{by / 1000:g} s within {since.seconds:g} s is not plausible"
        else:
            grown[short] = by / 1000
    read = {name for name, _, _ in both}
    for name, short in GROWN_AS.items():
        if name not in read and (name not in CLOCKLIKE or since.valid):
            unavailable[short] = "could not be read in both runs"
    return GpuGrowth(reason=since.reason, unavailable=unavailable, **grown)  # type: ignore[arg-type]


def _both(now: Counts, then: Counts) -> list[tuple[str, int, int]]:
    """Counters that were read both times."""
    counters = zip(Counts.__struct_fields__, astuple(now), astuple(then), strict=True)
    return [
        (name, value, before) for name, value, before in counters if value is not None and before is not None
    ]


def _first_whole(*families: Family) -> int | None:
    """The sum of the first family that was read completely: without one counter, it would jump once that is
    back."""
    return next((_total(each) for each in families if all(_whole(n) is not None for n in each)), None)


def _whole(value: object, divisor: int = 1) -> int | None:
    """A counter as the history keeps it; None if unreadable or implausible."""
    return value // divisor if type(value) is int and value >= 0 else None


def _total(values: Sequence[object]) -> int | None:
    read = [number for value in values if (number := _whole(value)) is not None]
    return min(sum(read), 2**63 - 1) if read else None
