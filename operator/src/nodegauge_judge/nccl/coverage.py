"""How much of the node was measured (GPUs, sizes, arms), and did NCCL start in time?"""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract import ArmName, ArmOutcome, Collective
from nodegauge_judge.case import clip, gpu_named
from nodegauge_judge.model import Scalar, Severity
from nodegauge_judge.nccl.arm_outcomes import (
    ARMS,
    arm_evidence,
    arm_text,
    other_arms,
    outcome_text,
    phase_text,
    quoted,
)
from nodegauge_judge.nccl.grading import (
    SMALLEST_LABEL_SIZE,
    Grading,
    NcclRule,
    headline_arm,
    nvls_broken,
    of_node,
    size_text,
)
from nodegauge_judge.nccl.measurement import GIB
from nodegauge_judge.rule import DRIVER_LOG, REPORT, Observation, Probe

NAMES_LISTED = 8
"""Names that a message lists."""


def fewer_gpus(grading: Grading) -> Iterator[Observation]:
    """Fewer GPUs took part than the node should have."""
    measurement, expected = grading.measurement, grading.expected
    if not 0 < measurement.ranks < expected:
        return
    missing = ", ".join(measurement.missing[:NAMES_LISTED])
    evidence: dict[str, Scalar] = {"measured": measurement.ranks, "expected": expected}
    if missing:
        evidence["missing"] = missing
    message = f"{measurement.ranks} of {expected} GPUs took part.{f' Missing: {missing}.' if missing else ''}"
    gpus = tuple(gpu_named(name) for name in measurement.missing)
    yield of_node(Severity.WARN, message, evidence=evidence, gpus=gpus)


def incomplete(grading: Grading) -> Iterator[Observation]:
    """Missing sizes, arms or pairs, and latencies that throttling made worthless."""
    measurement = grading.measurement
    cut_arms = [arm for arm in measurement.arms if arm.outcome == ArmOutcome.CUT]
    parts = [f"the run with {clip(arm.name)} was cut short" for arm in cut_arms]
    if measurement.cut:
        parts.append(f"time ran out before: {', '.join(measurement.cut[:NAMES_LISTED])}")
    if measurement.throttled:
        throttled = f"the CPU limit throttled the pod {measurement.throttled} times"
        parts.append(f"{throttled}, so latencies were discarded")
    if bound := _launch_bound(grading):
        parts.append(f"latencies are launch-bound, they show the host and not the links: {bound}")
    evidence: dict[str, Scalar] = {
        "cut": ", ".join(measurement.cut[:NAMES_LISTED]),
        "throttled": measurement.throttled,
    }
    message = "; ".join(parts)
    if message:
        yield of_node(Severity.INFO, f"{message[0].upper()}{message[1:]}.", evidence=evidence)
    headline = grading.headlines.get(Collective.ALL_REDUCE)
    if measurement.from_log:
        return  # it has no label, and `not-gradable` says what it lacks
    if _ended_well(grading) and (headline is None or headline.cell.bytes != GIB):
        yield _no_gibibyte(grading)


def _launch_bound(grading: Grading) -> str:
    """The sizes whose time is mostly that of launching the call."""
    arm = headline_arm(grading.measurement)
    cells = arm.cells if arm is not None else ()
    return ", ".join(
        f"{cell.collective.value} at {size_text(cell.bytes)}" for cell in cells if cell.launch_bound
    )


def _ended_well(grading: Grading) -> bool:
    """Whether only time or memory explains a missing size; other outcomes have findings of their own."""
    arm = headline_arm(grading.measurement)
    if arm is None or arm.outcome not in (ArmOutcome.DONE, ArmOutcome.CUT):
        return False
    return not any(cell.wrong for cell in arm.cells)


def _no_gibibyte(grading: Grading) -> Observation:
    headline = grading.headlines.get(Collective.ALL_REDUCE)
    if headline is None:
        message = (
            f"all_reduce was not measured at {size_text(SMALLEST_LABEL_SIZE)} or more, so it has no label."
        )
        return of_node(Severity.WARN, message, evidence={"bytes": 0})
    message = (
        f"all_reduce was not measured at 1 GiB; the label uses {size_text(headline.cell.bytes)}, which "
        "understates the bandwidth."
    )
    return of_node(Severity.WARN, message, evidence={"bytes": headline.cell.bytes})


FEWER_GPUS = NcclRule(
    code="fewer-gpus",
    title="NCCL measured fewer GPUs than the node has",
    meaning=(
        "The NCCL probe got fewer GPUs than the node should have, and measured those. They are graded as a "
        "node of that size, and the labels show what they reach together."
    ),
    when={Severity.WARN: "fewer ranks than the node's capacity of nvidia.com/gpu"},
    next_step="compare the node's allocatable and capacity of nvidia.com/gpu: less is an unhealthy GPU.",
    way_out=(
        "`kubectl describe node NODE` and the device plugin's log name the GPU that it calls unhealthy.",
        DRIVER_LOG,
        "Check the node's health findings (`gpu-lost`, `xid`, `reset-required`).",
    ),
    probe=Probe.NCCL,
    check=fewer_gpus,
)
NCCL_INCOMPLETE = NcclRule(
    code="nccl-incomplete",
    title="a part of the NCCL run is missing",
    meaning=(
        "Time or memory ran out, or the pod's CPU limit stalled launches, so some numbers are missing or "
        "unreliable. Labels are for 1 GiB. A smaller size replaces it down to 256 MiB (83 and 90 per cent of "
        "full speed have been published there, so it understates the bandwidth); below that there is no "
        "label."
    ),
    when={
        Severity.INFO: (
            "sizes, NCCL configurations or the pair matrix are missing, or latencies are unreliable or "
            "launch-bound (one thread that launches on all GPUs takes most of a small call)"
        ),
        Severity.WARN: "the probe did not measure all_reduce at 1 GiB",
    },
    next_step="raise the deadline or the memory limit if it happens again.",
    way_out=(
        REPORT,
        "Raise `spec.probes.nccl.deadline` or `spec.podTemplate.ncclResources` of the policy. A CPU limit "
        "stalls the threads that feed NCCL: request cores, set no limit.",
    ),
    probe=Probe.NCCL,
    check=incomplete,
)


def broken_nvls(grading: Grading) -> Iterator[Observation]:
    """NVLS that NCCL cannot start with."""
    measurement = grading.measurement
    arm = measurement.arm(ArmName.DEFAULT)
    if arm is None or not nvls_broken(measurement):
        return
    symptom = f"{outcome_text(arm)} with NVLS while {phase_text(arm)}{quoted(arm)}"
    message = f"NCCL {symptom}; it worked with NVLS disabled."
    yield of_node(Severity.WARN, message, evidence=arm_evidence(arm))


def slow_starts(grading: Grading) -> Iterator[Observation]:
    """Arms that did not start in time, unless NVLS explains it."""
    measurement = grading.measurement
    for arm in measurement.arms:
        explained = arm.name == ArmName.DEFAULT and nvls_broken(measurement)
        if arm.outcome == ArmOutcome.START_SLOW and not explained:
            again = " twice" if arm.starts > 1 else ""
            yield of_node(
                Severity.WARN,
                f"The run with {arm_text(arm)} did not start in time{again}, while {phase_text(arm)}"
                f"{quoted(arm)}.{other_arms(measurement, arm)}",
                evidence=arm_evidence(arm) | {"starts": arm.starts},
                location=arm.name,
                weight=float(arm.name == ArmName.DEFAULT),
            )


def slow_init(grading: Grading) -> Iterator[Observation]:
    """NCCL that starts slowly; a slow first start alone is only mentioned, as the image was cold."""
    limit = grading.thresholds.slow_init_seconds
    times = {
        arm.name: arm.start_ms / 1000
        for arm in grading.measurement.arms
        if arm.start_ms is not None and arm.outcome != ArmOutcome.START_SLOW
    }
    slow = {name: seconds for name, seconds in times.items() if seconds > limit}
    if not slow:
        return
    name, seconds = max(slow.items(), key=lambda item: item[1])
    cold = len(slow) < len(times)
    excuse = " Another run started faster, so the first one probably loaded from disk." if cold else ""
    yield of_node(
        Severity.INFO if cold else Severity.WARN,
        f"Creating communicators and loading kernels took {seconds:.0f} s ({ARMS.get(name, clip(name))}); "
        f"the limit is {limit:g} s.{excuse}",
        evidence={"arm": name, "seconds": round(seconds, 1), "limit": limit},
    )


NVLS_BROKEN = NcclRule(
    code="nvls-broken",
    title="NVLink SHARP does not work",
    meaning=(
        "NCCL cannot start with NVLS (reductions inside the NVSwitches) and works without it. Jobs on this "
        "node fail or hang at their start unless they set `NCCL_NVLS_ENABLE=0`, which makes them slower. The "
        "all_reduce bandwidth comes from the run without NVLS."
    ),
    when={
        Severity.WARN: "NCCL failed or hung before measuring with its defaults, and worked with NVLS disabled"
    },
    next_step="restart the fabric manager with no job running; until then jobs need `NCCL_NVLS_ENABLE=0`.",
    way_out=(
        "`systemctl status nvidia-fabricmanager`; its version must equal the driver's.",
        "`nvidia-smi -q | grep -A 6 -i fabric` must say Completed and Success on every GPU.",
        "Killed jobs can leave multicast memory behind: with nothing running, reset all GPUs or reboot.",
    ),
    probe=Probe.NCCL,
    check=broken_nvls,
)
NCCL_START_SLOW = NcclRule(
    code="nccl-start-slow",
    title="NCCL did not start in time",
    meaning=(
        "Starting processes, creating CUDA contexts, loading libraries and creating communicators took "
        "longer than a start may take, and the probe stopped it. A cold disk, a lazily unpacked image, "
        "kernels that are loaded for the first time (55 s have been published for 8 B200, NCCL issue 1646) "
        "and a broken link all look like this. So it sets no taint, and without a measurement the verdict is "
        "unknown. If other NCCL configurations start, this one is started a second time."
    ),
    when={
        Severity.WARN: (
            "no communicator after 90 s and 15 s more for each GPU with NCCL's defaults, or after 60 s and "
            "8 s for each GPU in the configurations after it"
        )
    },
    next_step="run NCCL once on the node by hand, and see where it waits.",
    way_out=(
        "On the node: `NCCL_DEBUG=INFO all_reduce_perf -g COUNT` prints `Init timings`.",
        "`nvidia-smi -pm 1` (persistence): without it, every first client initialises the GPUs.",
        "NVSwitch machines: `systemctl status nvidia-fabricmanager`.",
        "A slow disk or a lazily unpacked image: compare `spawn_ms` and `init_ms` in the result.",
        "`cut` instead of `start-slow`: `spec.probes.nccl.deadline` was shorter than the start. Raise it.",
    ),
    probe=Probe.NCCL,
    check=slow_starts,
)
SLOW_INIT = NcclRule(
    code="slow-init",
    title="NCCL takes long to start",
    meaning=(
        "Creating communicators and loading kernels took long, and every job start pays for it. The first "
        "start from a cold image is slow on any node (library and kernels come from disk), so it is only "
        "INFO if a later start in the same run was fast."
    ),
    when={
        Severity.INFO: "only the first start took more than `slowInitSeconds` (default 15)",
        Severity.WARN: "every start that reached the measurement took longer than that",
    },
    next_step="find out what it waits for: `NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT` with timestamps.",
    way_out=(
        "`nvidia-smi -pm 1` (persistence): without it, every first client initialises the GPUs.",
        "A slow disk or a lazily unpacked image: compare `spawn_ms` and `load_ms` in the result.",
        "Name resolution, or a firewall between sidecars: here NCCL needs only the loopback device.",
    ),
    probe=Probe.NCCL,
    check=slow_init,
)
