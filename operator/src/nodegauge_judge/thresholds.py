"""Every number that the judge compares with, with its unit, default and source.

The fields are `spec.thresholds` of a GPUValidationPolicy, in camelCase there; a number that is left out keeps
its default.  "Chosen by this project" marks a number without a published source.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

Ratio = Annotated[float, Meta(gt=0, le=1)]
Celsius = Annotated[int, Meta(ge=20, le=150)]
Degrees = Annotated[int, Meta(ge=0, le=60)]
Seconds = Annotated[float, Meta(ge=0, le=86_400)]
Percent = Annotated[int, Meta(ge=1, le=100)]
Samples = Annotated[int, Meta(ge=1, le=1000)]
Runs = Annotated[int, Meta(ge=1, le=8)]
PerHour = Annotated[int, Meta(ge=1, le=1_000_000_000)]
PerSecond = Annotated[float, Meta(gt=0, le=1_000_000_000)]


class ThresholdsInvalid(ValueError):
    """Thresholds that cannot be used; the message names the field and the fix."""


class Thresholds(Struct, frozen=True, rename="camel", kw_only=True):
    """Thresholds of the judgements; `Thresholds()` is the default policy."""

    hot_margin: Degrees = 5
    """°C below the vendor's limit (GPU_MAX, or the margin to the nearest slowdown) at which a GPU counts as
    hot.  Default 5.  Chosen by this project: early enough to act before clocks fall."""
    hot_warn: Celsius = 80
    """°C from which a GPU is hot if its driver gives no limit.  Default 80.  Source: below 80 is good,
    throttling is likely from 84 to 90 (stas00/ml-engineering, compute/accelerator)."""
    hot_fail: Celsius = 90
    """°C from which a GPU without a vendor limit fails.  Default 90.  Source: as `hotWarn`, the end of the
    range in which throttling is likely."""
    memory_hot_margin: Degrees = 5
    """°C below the vendor's limit for memory (MEM_MAX) at which memory counts as hot.  Default 5.  Chosen by
    this project: as `hotMargin`."""
    memory_hot_warn: Celsius = 95
    """°C from which memory is hot if its driver gives no limit in °C.  Default 95.  Source: the limit for HBM
    that drivers give on A100 (`nvidia-smi -q`, Memory Max Operating Temp)."""
    memory_hot_fail: Celsius = 105
    """°C from which memory without a vendor limit in °C fails.  Default 105.  Chosen by this project: ten
    degrees above the highest limit for HBM that a driver gives."""
    hot_leave_margin: Degrees = 5
    """°C below the temperature that fails (GPU_MAX, MEM_MAX, `hotFail` or `memoryHotFail`) at which a hot
    GPU counts as cool again.  Default 5.  Chosen by this project: a GPU at its limit does not flap."""
    throttling_likely: Celsius = 84
    """°C from which throttling is likely: the band of that name, and `hot-for-long`.  Default 84.  Source: as
    `hotWarn`, the start of the range."""
    hot_for_long_runs: Runs = 3
    """Runs under load at `throttlingLikely` or above, out of the last `hotForLongOf`, that raise
    `hot-for-long`.  Default 3.  Chosen by this project: one hot run can be chance."""
    hot_for_long_of: Runs = 4
    """Runs under load that `hotForLongRuns` looks at.  Default 4.  Chosen by this project: an hour, with
    a run every 15 minutes."""
    band_excellent: Celsius = 75
    """°C up to which a temperature is called excellent.  Default 75.  Source: as `hotWarn` (70 to 75)."""
    band_good: Celsius = 80
    """°C below which a temperature is called good.  Default 80.  Source: as `hotWarn`."""
    interval_floor: Seconds = 120
    """Seconds that must pass between two runs before growth of counters is judged.  Default 120.  Chosen by
    this project: in a shorter interval, one burst looks like a large share."""
    plausible_growth: Annotated[float, Meta(ge=1, le=2)] = 1.05
    """Growth of a time counter, as a multiple of the time that passed, above which it is not believed.
    Default 1.05.  Chosen by this project: it allows for reading the clock and the counter at different
    moments."""
    busy_floor: Seconds = 60
    """Seconds that a GPU must have been busy since the last run for that run to be one under load.  Default
    60.  Chosen by this project: a short job does not count as load."""
    busy_power_share: Ratio = 0.5
    """Share of the way from idle watts to the power limit at which a GPU counts as busy all the time, if the
    driver does not count idle time.  Default 0.5.  Chosen by this project: halfway between idle and full
    power."""
    busy_utilization: Percent = 50
    """Per cent of utilisation that every sample of a window must reach for it to be one under load.  Default
    50.  Chosen by this project: a GPU that works half of the time."""
    sw_thermal_warn_seconds: Seconds = 5
    """Seconds of software thermal slowdown since the last run that warn, together with `swThermalWarnShare`.
    Default 5.  Chosen by this project: a nanosecond of it has made whole fleets unhealthy (NVIDIA/DCGM issues
    242 and 285)."""
    sw_thermal_warn_share: Ratio = 0.01
    """Share of the busy time in software thermal slowdown above which it warns.  Default 0.01.  Chosen by
    this project: less costs a job under one per cent."""
    sw_thermal_fail_seconds: Seconds = 60
    """Seconds of software thermal slowdown since the last run that fail, together with `swThermalFailShare`.
    Default 60.  Chosen by this project: brief slowdown at a load step never fails."""
    sw_thermal_fail_share: Ratio = 0.1
    """Share of the busy time in software thermal slowdown above which it fails.  Default 0.1.  Chosen by this
    project: a tenth of the working time."""
    hw_thermal_warn_seconds: Seconds = 1
    """Seconds of hardware thermal slowdown since the last run that warn.  Default 1.  Chosen by this project:
    the GPU itself should never reach this step."""
    hw_thermal_fail_seconds: Seconds = 5
    """Seconds of hardware thermal slowdown since the last run that fail, together with `hwThermalFailShare`.
    Default 5.  Chosen by this project: clocks are halved meanwhile."""
    hw_thermal_fail_share: Ratio = 0.01
    """Share of the time since the last run in hardware thermal slowdown above which it fails.  Default 0.01.
    Chosen by this project: a single short event does not fail."""
    power_brake_warn_seconds: Seconds = 1
    """Seconds of power brake since the last run that warn.  Default 1.  Chosen by this project: short pulses
    at load steps stay below it."""
    power_brake_fail_seconds: Seconds = 30
    """Seconds of power brake since the last run that fail, together with `powerBrakeFailShare`.  Default 30.
    Chosen by this project: 9 of 288 nodes had it on for 36 hours without notice (NVIDIA/NVSentinel issue
    1666)."""
    power_brake_fail_share: Ratio = 0.05
    """Share of the time since the last run in power brake above which it fails.  Default 0.05.  Chosen by
    this project: more than short pulses add up to."""
    power_brake_idle_runs: Runs = 3
    """Runs in a row with the power brake that an idle GPU needs, if it is the only one with a brake, before
    it counts.  Default 3.  Chosen by this project: an idle card can show a brake that slows nothing, and a
    fault of the supply stays."""
    window_warn_share: Ratio = 0.01
    """Share of the sampling window in slowdown above which it warns, without an interval to judge.  Default
    0.01.  Chosen by this project: as `swThermalWarnShare`."""
    window_fail_share: Ratio = 0.5
    """Share of the sampling window in slowdown above which it fails, without an interval to judge.  Default
    0.5.  Chosen by this project: seconds prove less than an interval."""
    bit_warn_samples: Samples = 2
    """Samples in a row in which a slowdown bit without a counter must be set to warn.  Default 2.  Chosen by
    this project: it may be set briefly while clocks change (nvml.h, nvmlClocksEventReasonHwSlowdown)."""
    bit_fail_samples: Samples = 5
    """Samples, all of them with the bit, that fail, together with `bitFailSeconds`.  Default 5.  Chosen by
    this project: the slowdown lasts through the window."""
    bit_fail_seconds: Seconds = 2
    """Seconds that a window must last for its samples of a bit to fail.  Default 2.  Chosen by this project:
    longer than a clock change."""
    slow_clock_warn: Ratio = 0.93
    """Share of its identical siblings' median SM clock below which a busy GPU's clock warns.  Default 0.93.
    Chosen by this project: it tolerates small differences between chips."""
    slow_clock_fail: Ratio = 0.8
    """Share of its identical siblings' median SM clock below which a busy GPU's clock fails.  Default 0.8.
    Chosen by this project: a fifth of the speed is missing."""
    power_cap_ratio: Ratio = 0.9
    """Share of the default power limit below which the enforced limit is a finding.  Default 0.9.  Chosen by
    this project: it tolerates a slightly lower limit."""
    nvlink_sum_ratio: Ratio = 0.75
    """Share of the expected links below which a GPU's NVLinks fail and the node loses its interconnect label;
    from there up to the expected count they warn.  Default 0.75.  Chosen by this project: a quarter of the
    bandwidth is gone."""
    nvlink_errors: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 1
    """New replays and recoveries of a GPU's NVLinks (on NVLink 5 also faulty packets and errors that its
    correction let through) since the last run that fail.  Default 1.  Source: NVIDIA/DCGM
    DCGM_LIMIT_MAX_NVLINK_ERROR."""
    nvlink_crc_per_second: PerSecond = 100
    """CRC errors per second of a GPU's NVLinks, up to NVLink 4, from which they fail; fewer warn.  Default
    100.  Source: NVIDIA/DCGM DCGM_LIMIT_MAX_NVLINK_CRC_ERROR."""
    pcie_width_ratio: Ratio = 0.5
    """Share of the other GPUs' PCIe width, all under load, below which a narrow link fails.  Default 0.5.
    Chosen by this project: a link with half the lanes warns."""
    pcie_errors_per_hour: PerHour = 100
    """Replays, or correctable errors, of one GPU's PCIe link per hour above which they are a finding.
    Default 100.  Chosen by this project: it tolerates single errors, and is below the 8 a minute of
    NVIDIA/DCGM DCGM_LIMIT_MAX_PCIREPLAY_RATE, for a run's interval thins out a burst."""
    nic_errors_per_hour: PerHour = 100
    """Symbol and receive errors of one network port per hour above which they are a finding.  Default 100.
    Chosen by this project: as `pcieErrorsPerHour`."""
    rail_warn: Ratio = 0.05
    """Share of 12 V by which a rail may be off in either direction.  Default 0.05.  Source: the classic ATX
    tolerance of supplies."""
    rail_high: Ratio = 0.05
    """Share of 12 V above which a rail is out of range.  Default 0.05.  Source: Intel ATX 3.0 design guide
    (336521), table 3-5, 12 V at the card's connectors."""
    rail_low: Ratio = 0.08
    """Share of 12 V below which a rail is out of range.  Default 0.08.  Source: as `railHigh`."""
    fan_target: Percent = 60
    """Target speed of a GPU's fan, per cent of its maximum, from which 0 rpm means that it stands still
    (below it, fans may rest on purpose).  Default 60.  Chosen by this project: above the speeds at which fans
    may rest."""

    busbw_expected_share: Ratio = 0.9
    """Share of an expectation's bus bandwidth that is its floor, unless the expectation sets its own.
    Default 0.9.  Chosen by this project: it tolerates small differences between machines."""
    busbw_nvls_share: Ratio = 0.85
    """Share of the NVLinks' rate (GB/s per GPU one way) that all_reduce must reach at 1 GiB with NVLS on 8
    GPUs of compute capability 9; less on fewer GPUs.  Default 0.85.  Chosen by this project: 462 of 450 have
    been measured on H100, 464 on H200."""
    busbw_nvls_share_next: Ratio = 0.65
    """As `busbwNvlsShare`, from compute capability 10 on.  Default 0.65.  Chosen by this project: 838 of 900
    have been measured on B200 at 8 GiB, 681 to 724 in GB200 racks at 1 GiB."""
    busbw_ring_share: Ratio = 0.6
    """Share of the NVLinks' rate that collectives must reach at 1 GiB on rings, pairs and with NVLS
    disabled.  Default 0.6.  Chosen by this project: 229 of 300 have been measured on A100, 367 of 450 on H200
    without NVLS."""
    busbw_pcie_share: Ratio = 0.5
    """Share of the slowest link's PCIe rate that collectives must reach at 1 GiB if NCCL uses P2P through
    PCIe switches alone; through the host there is no floor, and this one only warns.  Default 0.5.  Chosen by
    this project: half of the link's rate; no such machine has been published."""
    busbw_peers_share: Ratio = 0.85
    """Share of the median of at least three comparable nodes below which a node's all_reduce warns at once.
    Default 0.85.  Chosen by this project: so far from it that a spread need not be known."""
    peers_warn: Ratio = 0.035
    """Share below the median of at least eight comparable nodes from which a node can be unusually slow
    (NCCL and load runs).  Default 0.035.  Chosen by this project: below the 5 % of
    SuperBench (docs/user-tutorial/data-diagnosis.md), which needs no second run."""
    peers_fail: Ratio = 0.07
    """Share below that median from which an unusually slow node fails, once a second run confirms it.
    Default 0.07.  Chosen by this project: twice `peersWarn`, above SuperBench's 5 %."""
    peers_spread: Ratio = 0.007
    """Least standard deviation between comparable nodes, as a share of their median, that is assumed
    however alike they measure; eight nodes are assumed to spread by twice that.  Default 0.007.  Chosen by
    this project: simulated fleets (`make peers`) are not accused with it."""
    busbw_disagreement: Ratio = 0.1
    """Share of the larger value by which two runs may differ before a third is asked for.  Default 0.1.
    Chosen by this project: it tolerates small differences between runs."""
    contradicted_share: Ratio = 0.4
    """Share of the NVLinks' rate below which, if PCIe could do it too, a measurement contradicts NVLink.
    Default 0.4.  Chosen by this project: the slowest complaint on record reaches 0.38 of it at nearly twice
    PCIe's rate (NVIDIA/nccl issue 1161)."""
    p2p_min_gain: Ratio = 0.15
    """Share by which all_reduce must at least be faster with P2P than without it on a node whose ring is
    NVLink.  Default 0.15.  Chosen by this project: NVLink gains far more, noise gains less."""
    pair_share: Ratio = 0.8
    """Share of the median of pairs with as many NVLinks below which copies between two GPUs are slow.
    Default 0.8.  Chosen by this project: one link of four missing is below it."""
    pair_link_share: Ratio = 0.5
    """Share of its NVLinks' rate below which copies between two GPUs are slow, whatever other pairs reach.
    Default 0.5.  Chosen by this project: 276 of 300 have been measured on A100, 396 of 450 on H200."""
    slow_init_seconds: Seconds = 15
    """Seconds for creating communicators and loading kernels above which NCCL starts slowly.  Default 15.
    Chosen by this project: 2.8 s warm and 55 s cold have been reported on B200 (NVIDIA/nccl issue 1646)."""

    load_power_share: Ratio = 0.6
    """Share of its power limit that every GPU must reach in a load run, or the load was too light to judge.
    Default 0.6.  Chosen by this project: dense matrix products draw nearly the limit, so much less says that
    the load was none."""
    load_throttle_warn_share: Ratio = 0.01
    """Share of a load run in thermal slowdown, power brake or hardware slowdown above which it warns.
    Default 0.01.  Chosen by this project: short pulses at the load step stay below it."""
    load_throttle_fail_share: Ratio = 0.1
    """Share of a load run in thermal slowdown, power brake or hardware slowdown above which it fails; as much
    as `loadThrottleWarnShare` fails if it went on to the end.  Default 0.1.  Chosen by this project: a tenth
    of the time, and a load of 30 s is shorter than any job."""
    load_hotter_than_siblings: Degrees = 15
    """°C above the median of its identical siblings at which a GPU under load is a finding.  Default 15.
    Chosen by this project: GPUs behind others in the air flow are some ten degrees warmer."""
    load_slow_warn: Ratio = 0.92
    """Share of its identical siblings' median computing speed or memory bandwidth below which a GPU under
    load warns.  Default 0.92.  Source: GPUs of one model vary by 8 % on average (Sinha et al., Not All GPUs
    Are Created Equal, SC 2022)."""
    load_slow_fail: Ratio = 0.8
    """Share of its identical siblings' median computing speed or memory bandwidth below which a GPU under
    load fails.  Default 0.8.  Chosen by this project: as `slowClockFail`, a fifth of the speed is
    missing."""
    load_peers_share: Ratio = 0.9
    """Share of the median of at least three comparable nodes below which the computing speed of a node's
    GPUs warns at once.  Default 0.9.  Chosen by this project: the median GPU of a node varies less than
    single GPUs."""
    load_copy_share: Ratio = 0.6
    """Share of the rate of a GPU's PCIe link below which its copies from or to the host are slow.  Default
    0.6.  Chosen by this project: copies from pinned memory mostly reach 80 % and more."""
    load_shared_share: Ratio = 0.7
    """Share of their copy speed one by one below which GPUs that copy at the same time share an uplink.
    Default 0.7.  Chosen by this project: two GPUs behind one uplink reach half."""

    def __post_init__(self) -> None:
        if self.hot_warn >= self.hot_fail:
            raise ValueError("hotFail must be above hotWarn: raise hotFail or lower hotWarn")
        if self.memory_hot_warn >= self.memory_hot_fail:
            raise ValueError(
                "memoryHotFail must be above memoryHotWarn: raise memoryHotFail or lower memoryHotWarn"
            )
        if self.peers_warn > self.peers_fail:
            raise ValueError("peersWarn must not be above peersFail: lower peersWarn or raise peersFail")
        if self.slow_clock_fail > self.slow_clock_warn:
            raise ValueError("slowClockFail must not be above slowClockWarn: lower slowClockFail")
        if self.load_slow_fail > self.load_slow_warn:
            raise ValueError("loadSlowFail must not be above loadSlowWarn: lower loadSlowFail")
        if self.load_throttle_warn_share > self.load_throttle_fail_share:
            raise ValueError(
                "loadThrottleWarnShare must not be above loadThrottleFailShare: lower loadThrottleWarnShare"
            )
        if self.hot_for_long_runs > self.hot_for_long_of:
            raise ValueError("hotForLongRuns must not be above hotForLongOf: lower hotForLongRuns")

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Thresholds:
        """Thresholds out of a policy's `spec.thresholds`; raises `ThresholdsInvalid`, naming the field.

        Stricter than decoding a whole policy: an unknown name is an error here, for a person typed it.
        """
        known = msgspec.structs.fields(cls)
        unknown = sorted(set(spec) - {field.encode_name for field in known})
        if unknown:
            names = [field.encode_name for field in known]
            near = [name for typed in unknown for name in get_close_matches(str(typed), names, n=1)]
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            wrong = ", ".join(map(str, unknown))
            raise ThresholdsInvalid(f"no such threshold: {wrong}{hint} (there are: {', '.join(names)})")
        try:
            return msgspec.convert(dict(spec), cls)
        except msgspec.ValidationError as error:
            raise ThresholdsInvalid(str(error).replace("`$", "`spec.thresholds")) from None
