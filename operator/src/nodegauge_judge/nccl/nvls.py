"""Does NCCL use NVLS (reductions inside the NVSwitches) on machines that have it?

Without NVLS, all_reduce falls back to rings: 367 instead of 482 GB/s on 8 H200 (stas00/ml-engineering,
network).  Nothing fails, and a ring is a valid result for NVLinks, so nothing else finds it.  Where NCCL did
not log its choice, the bandwidth tells: on Hopper by the most that rings reach, on Blackwell, where the two
come close, by the floor with NVLS.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract import Collective
from nodegauge_judge.case import clip
from nodegauge_judge.model import InterconnectClass, Severity
from nodegauge_judge.nccl.floors import (
    BLACKWELL_SM,
    HOPPER_SM,
    SHARP_RANKS,
    Floor,
    floor_with_nvls,
    ran_nvls,
    with_named_links,
)
from nodegauge_judge.nccl.grading import (
    Grading,
    Headline,
    NcclRule,
    cell_text,
    gbps_text,
    nvls_broken,
    of_node,
)
from nodegauge_judge.nccl.measurement import GIB, Measurement
from nodegauge_judge.rule import OWN_RUN, Observation, Probe

MULTICAST_DRIVER = 530
"""The branch of CUDA 12.1, which brought multicast (NVIDIA/TransformerEngine issues 991 and 1923)."""

RINGS_SHARE = 370 / 450
"""The most that rings reach of the NVLinks' rate on Hopper: 367 of 450 GB/s have been published for 8 H200
(stas00/ml-engineering, network), 368.7 for 8 H100 at 8 GiB.  NVLS reaches 462 at 1 GiB."""


def unused(grading: Grading) -> Iterator[Observation]:
    """all_reduce without NVLS on 8 or more GPUs that could use it.

    Fewer GPUs prove nothing: published curves have NVLS from 5 GPUs on H200 and from 6 on B200.
    """
    measurement = with_named_links(grading.measurement)
    headline = grading.headlines.get(Collective.ALL_REDUCE)
    able = (measurement.sm or 0) >= HOPPER_SM and measurement.ranks >= SHARP_RANKS and measurement.nvswitch
    if headline is None or not able or measurement.interconnect != InterconnectClass.NVLINK:
        return
    if nvls_broken(measurement) or measurement.p2p_disabled:
        return
    without = _did_without(measurement, headline)
    floor = None
    if (measurement.sm or 0) >= BLACKWELL_SM:
        floor = floor_with_nvls(measurement, headline.cell, headline.arm, criteria=grading.criteria)
    least = grading.thresholds.busbw_ring_share
    if not without and not _as_rings(measurement, headline, least=least, floor=floor):
        return
    severity, cause = _cause(grading.measurement, headline, floor)
    how = "without NVLS" if without else "as much as rings do"
    yield of_node(
        severity,
        f"{cell_text(headline.cell)} reaches {gbps_text(headline.gbps)}, {how}, although "
        f"{measurement.ranks} GPUs of compute capability {HOPPER_SM / 10:g} or later are behind NVSwitches: "
        f"{cause}.",
        evidence={
            "busbw_gbps": float(f"{headline.gbps:.4g}"),
            "algorithm": headline.cell.algorithm,
            "multicast": _logged(headline.arm.multicast),
            "nvls_channels": _logged(headline.arm.nvls),
        },
    )


def _did_without(measurement: Measurement, headline: Headline) -> bool:
    """Whether NCCL did not use NVLS, by what it logged or was told; an unknown algorithm proves nothing."""
    ran = ran_nvls(headline.cell, headline.arm)
    return ran is False or (ran is None and (headline.arm.multicast is False or measurement.nvls_disabled))


def _as_rings(measurement: Measurement, headline: Headline, *, least: float, floor: Floor | None) -> bool:
    """Whether 8 or more GPUs are as fast as rings from 1 GiB on, and NCCL did not log what it ran; below the
    share `least` of the links' rate they are too slow for either.  On Blackwell, rings are what the floor
    with NVLS rules out."""
    rate = measurement.nvlink_gbps or 0.0
    unknown = ran_nvls(headline.cell, headline.arm) is None and headline.cell.bytes >= GIB
    if (measurement.sm or 0) >= BLACKWELL_SM:
        return unknown and floor is not None and least * rate <= headline.gbps < floor.gbps
    return unknown and least * rate <= headline.gbps <= RINGS_SHARE * rate


def _cause(measurement: Measurement, headline: Headline, floor: Floor | None) -> tuple[Severity, str]:
    """What NCCL said, and whether somebody chose it: then the node is healthy."""
    arm = headline.arm
    if measurement.nvls_disabled and measurement.from_log:
        return Severity.WARN, "the log shows that `NCCL_NVLS_ENABLE=0` or `NCCL_ALGO` disables it"
    if measurement.nvls_disabled:
        return Severity.INFO, "the policy's environment disables it"
    driver = int(measurement.driver) if measurement.driver.isdecimal() else None
    if driver is not None and driver < MULTICAST_DRIVER:
        return Severity.INFO, f"driver {driver} has no multicast, which came with {MULTICAST_DRIVER}"
    if arm.multicast is False and measurement.virtual:
        return Severity.INFO, "NCCL logged that multicast is not available, which a hypervisor may not offer"
    if arm.multicast is False:
        return Severity.WARN, "NCCL logged that NVLS multicast support is not available"
    if arm.nvls is False:
        logged = "logged that multicast is available" if arm.multicast else "did not log multicast support"
        return Severity.WARN, f"NCCL {logged}, and made no NVLS channels"
    if not headline.cell.algorithm and floor is not None:
        return Severity.WARN, f"the floor with NVLS is {gbps_text(floor.gbps)}"
    if not headline.cell.algorithm:
        return Severity.WARN, f"NVLS exceeds {RINGS_SHARE:.0%} of the NVLinks' rate"
    return Severity.WARN, f"NCCL chose {clip(headline.cell.algorithm)}"


def _logged(value: bool | None) -> str:
    return "not logged" if value is None else "yes" if value else "no"


NVLS_UNUSED = NcclRule(
    code="nvls-unused",
    title="NCCL does not use NVLink SHARP",
    meaning=(
        "The GPUs are behind NVSwitches that can reduce (NVLS), and NCCL's all_reduce ran without. Nothing "
        "fails, but all_reduce loses about a quarter of its bandwidth: 367 instead of 482 GB/s have been "
        "measured on 8 H200. The interconnect is still confirmed, because rings use the same NVLinks."
    ),
    when={
        Severity.WARN: (
            "8 or more GPUs of compute capability 9.0 or later behind NVSwitches, and NCCL logged another "
            "algorithm, no NVLS channels or no multicast support; or a log shows that its environment "
            "disables NVLS; or NCCL logged nothing of it, and 8 or more Hopper reach 0.6 to 0.82 of their "
            "NVLinks' rate, or 8 Blackwell 0.6 of it but not the floor with NVLS"
        ),
        Severity.INFO: (
            "the same, but the policy's environment disables NVLS (`NCCL_NVLS_ENABLE=0`, `NCCL_ALGO`), the "
            "driver is older than 530, or NCCL finds no multicast in a virtual machine"
        ),
    },
    next_step="check the fabric manager's log for multicast, and NCCL's variables in image and policy.",
    way_out=(
        OWN_RUN + " Look for `NVLS multicast support is available` and `nvls channels`.",
        "`grep NCCL_ /etc/nccl.conf` in the image and on the node: `NCCL_NVLS_ENABLE=0` or `NCCL_ALGO` "
        "there?",
        "`systemctl status nvidia-fabricmanager`; its version must equal the driver's. Multicast needs "
        "driver 530 or later.",
        "Killed jobs can leave multicast memory behind: with nothing running, reset all GPUs or reboot.",
        'NVLS is off on purpose: set `NCCL_NVLS_ENABLE: "0"` in `spec.probes.nccl.environment` of the '
        "policy.",
    ),
    probe=Probe.NCCL,
    check=unused,
)
