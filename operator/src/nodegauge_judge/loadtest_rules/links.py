"""Rules about what feeds a loaded GPU: its PCIe link, an uplink that it shares, and 12 V rails."""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract import Sensor
from nodegauge_contract.load import LoadSensor
from nodegauge_judge.case import clip, identity, number, short_name
from nodegauge_judge.loadtest_rules.case import LoadCase, Loaded, LoadRule, positive
from nodegauge_judge.model import Scalar, Severity
from nodegauge_judge.nccl.measurement import LANE_GBPS
from nodegauge_judge.rule import REPORT, VENDOR, Observation, Probe
from nodegauge_judge.rules.sensors import NOMINAL, PLAUSIBLE, is_called_rail

DIRECTIONS = (("h2d", "from the host"), ("d2h", "to the host"))


def copies_slow(case: LoadCase) -> Iterator[Observation]:
    """GPUs whose copies, one GPU at a time, are slow for their PCIe link."""
    for loaded in case.finished:
        rate = link_gbps(loaded)
        for key, direction in DIRECTIONS:
            gbps = positive(getattr(loaded.load, f"{key}_gbps"))
            if rate is None or gbps is None or gbps >= case.thresholds.load_copy_share * rate:
                continue
            share = case.thresholds.load_copy_share
            yield loaded.observed(
                Severity.WARN,
                f"Copies {direction} reach {gbps:.1f} GB/s of the link's {rate:.1f} GB/s: below {share:.0%}.",
                {f"{key}_gbps": round(gbps, 2), "link_gbps": round(rate, 1)},
                weight=1 - gbps / rate,
            )
            break


def uplink_shared(case: LoadCase) -> Iterator[Observation]:
    """GPUs that copy much more slowly when all copy at the same time: a matter of how the node is built."""
    shared = []
    for loaded in case.finished:
        kept = [share for key, _ in DIRECTIONS if (share := _kept(loaded, key)) is not None]
        if kept and min(kept) < case.thresholds.load_shared_share:
            shared.append((min(kept), loaded))
    if shared:
        least = min(share for share, _ in shared)
        names = ", ".join(short_name(loaded.gpu) for _, loaded in shared)
        yield Observation(
            severity=Severity.INFO,
            location=names,
            message=(
                f"When all GPUs copy, these keep {least:.0%} or more of their own copy speed: they share an "
                f"uplink."
            ),
            evidence={"least_share": round(least, 3), "gpus": len(shared)},
            gpus=tuple(identity(loaded.gpu) for _, loaded in shared),
        )


def pcie_dropped(case: LoadCase) -> Iterator[Observation]:
    """GPUs whose PCIe link has fewer lanes under load than at rest, or stays below its generation."""
    for loaded in case.finished:
        width, rest = positive(loaded.load.width), positive(loaded.gpu.pcie.width)
        generation, best = positive(loaded.load.generation), positive(loaded.gpu.pcie.max_generation)
        fewer = width is not None and rest is not None and width < rest
        slower = generation is not None and best is not None and generation < best
        if not fewer and not slower:
            continue
        parts = [f"x{width:g} under load, x{rest:g} at rest"] if fewer else []
        parts += [f"generation {generation:g}; card and slot support {best:g}"] if slower else []
        known = {"width": width, "width_at_rest": rest, "generation": generation, "max_generation": best}
        evidence: dict[str, Scalar] = {name: value for name, value in known.items() if value is not None}
        text = "; ".join(parts)
        yield loaded.observed(
            Severity.WARN, f"{text[0].upper()}{text[1:]}.", evidence, weight=2.0 * fewer + slower
        )


def rail_droop(case: LoadCase) -> Iterator[Observation]:
    """12 V rails that sink under the load."""
    limits = case.thresholds
    for sensor in case.load.sensors:
        idle, low = _volts(sensor, sensor.idle), _volts(sensor, sensor.min)
        if low is None:
            continue
        least = round(NOMINAL * (1 - limits.rail_low), 3)
        sunk = 0.0 if idle is None else idle - low
        if low >= least and sunk <= NOMINAL * limits.rail_warn:
            continue
        name = clip(f"{sensor.chip} {sensor.label or sensor.name}")
        before = "" if idle is None else f", {idle:.2f} V before it"
        evidence: dict[str, Scalar] = {"volts": round(low, 3)}
        evidence |= {} if idle is None else {"idle_volts": round(idle, 3)}
        yield Observation(
            severity=Severity.WARN,
            location=name,
            message=f"{low:.2f} V at the lowest under load{before}; it should stay above {least:.2f} V and "
            f"sink by at most {NOMINAL * limits.rail_warn:.1f} V.",
            evidence=evidence,
            weight=NOMINAL - low,
        )


def link_gbps(loaded: Loaded) -> float | None:
    """GB/s one way of the GPU's PCIe link as it was under load, else at its best; None if unknown."""
    pcie = loaded.gpu.pcie
    generation = number(loaded.load.generation) or number(pcie.max_generation)
    width = number(loaded.load.width) or number(pcie.max_width)
    if generation not in LANE_GBPS or width is None or not 1 <= width <= 32:
        return None
    return LANE_GBPS[int(generation)] * width


def _kept(loaded: Loaded, key: str) -> float | None:
    """Copy speed with all others as a share of that alone."""
    alone, together = (
        positive(getattr(loaded.load, f"{key}_gbps")),
        positive(getattr(loaded.load, f"{key}_all_gbps")),
    )
    return None if alone is None or together is None else together / alone


def _volts(sensor: LoadSensor, millivolts: object) -> float | None:
    """A plausible reading of a 12 V rail."""
    called = is_called_rail(Sensor(chip=sensor.chip, name=sensor.name, label=sensor.label))
    volts = (number(millivolts) or 0.0) / 1000
    return volts if called and PLAUSIBLE[0] <= volts <= PLAUSIBLE[1] else None


_LINK = (
    "`nvidia-smi -q -i INDEX | grep -A 20 'GPU Link Info'` under load; `lspci -vv -s ADDRESS | grep LnkSta`."
)

RULES = (
    LoadRule(
        code="load-pcie-dropped",
        title="a PCIe link drops under load",
        meaning=(
            "Under load the link has fewer lanes than at rest, or does not reach the generation of card "
            "and slot: contacts or a riser that fail with heat or current, or a link that was trained down."
        ),
        when={
            Severity.WARN: (
                "fewer lanes under load than at rest, or a lower generation than card and slot support"
            )
        },
        next_step="reseat the card and its riser.",
        way_out=(_LINK, "Power off; reseat card and riser, clean the contacts. " + VENDOR),
        probe=Probe.LOAD,
        check=pcie_dropped,
    ),
    LoadRule(
        code="load-copy-slow",
        title="copies between host and GPU are slow",
        meaning=(
            "Copies of pinned memory, one GPU at a time, stay far below the rate of the GPU's own PCIe "
            "link: a narrow link above it, the far processor's memory, or an IOMMU or ACS setting."
        ),
        when={Severity.WARN: "below `loadCopyShare` (0.6) of the link's rate, in either direction"},
        next_step="compare it with the other GPUs, then look at the links above the GPU.",
        way_out=(
            _LINK,
            "`lspci -tv`, and `LnkSta` of every bridge above the GPU.",
            "BIOS: IOMMU, ACS, link speed.",
        ),
        probe=Probe.LOAD,
        check=copies_slow,
    ),
    LoadRule(
        code="load-uplink-shared",
        title="GPUs share an uplink to the host",
        meaning=(
            "Each GPU copies at full speed alone, and all of them at the same time are slower: they are "
            "behind one switch or bridge. Many servers are built this way; it is not a fault. Jobs that "
            "load data on all GPUs at once are slower."
        ),
        when={Severity.INFO: "below `loadSharedShare` (0.7) of its own copy speed when all GPUs copy"},
        next_step="spread data loading over the GPUs, if jobs wait for it.",
        way_out=(REPORT, "`nvidia-smi topo -m` and `lspci -tv` show which GPUs are behind one bridge."),
        probe=Probe.LOAD,
        check=uplink_shared,
    ),
    LoadRule(
        code="load-rail-droop",
        title="12 V sinks under load",
        meaning=(
            "A 12 V rail sinks far while the GPUs draw full power: a supply at its limit, a worn one, or a "
            "cable that carries too much."
        ),
        when={
            Severity.WARN: (
                "below 12 V less `railLow` (8 %) at any moment, or more than `railWarn` (5 %) of 12 V "
                "below its value before the load"
            )
        },
        next_step="check the power supplies, their rating and the cables of this rail.",
        way_out=(
            "`ipmitool sdr type Voltage` under load.",
            "Reseat power cables, one cable per socket; replace the supply if the rail sinks alone.",
        ),
        probe=Probe.LOAD,
        check=rail_droop,
    ),
)
