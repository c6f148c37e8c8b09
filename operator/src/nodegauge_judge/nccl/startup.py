"""Does NCCL start, and fast enough?  NVLS that stops it from starting, and slow starts."""

from __future__ import annotations

from collections.abc import Iterator

from nodegauge_contract import ArmName, ArmOutcome
from nodegauge_judge.case import clip
from nodegauge_judge.model import Severity
from nodegauge_judge.nccl.arm_outcomes import ARMS, arm_evidence, outcome_text, phase_text, quoted
from nodegauge_judge.nccl.grading import Grading, NcclRule, nvls_broken, of_node
from nodegauge_judge.rule import Observation, Probe


def broken_nvls(grading: Grading) -> Iterator[Observation]:
    """NVLS that NCCL cannot start with."""
    measurement = grading.measurement
    arm = measurement.arm(ArmName.DEFAULT)
    if arm is None or not nvls_broken(measurement):
        return
    symptom = "hung" if arm.outcome == ArmOutcome.HUNG else outcome_text(arm)
    message = f"NCCL {symptom} with NVLS while {phase_text(arm)}{quoted(arm)}; it worked with NVLS disabled."
    yield of_node(Severity.WARN, message, evidence=arm_evidence(arm))


def slow_init(grading: Grading) -> Iterator[Observation]:
    """NCCL that starts slowly; a slow first start alone is only mentioned, as the image was cold."""
    limit = grading.thresholds.slow_init_seconds
    times = {arm.name: arm.start_ms / 1000 for arm in grading.measurement.arms if arm.start_ms is not None}
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
        "A slow disk or a lazily unpacked image: compare `spawn_ms` and `load_ms` of the arms in the result.",
        "Name resolution, or a firewall between sidecars: here NCCL needs only the loopback device.",
    ),
    probe=Probe.NCCL,
    check=slow_init,
)
