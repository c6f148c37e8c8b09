"""One row of the findings catalogue: its codes and what a row must say."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from nodegauge_judge.model import Gate, Severity


class Code(StrEnum):
    """Finding codes.  Values are stable: they stand in reports, metrics and alerts."""

    P2P_REFUSED = "p2p-refused"
    NVLINK_DEGRADED = "nvlink-degraded"
    NVLINK_UNRESOLVED = "nvlink-unresolved"
    HOT = "hot"
    MEMORY_HOT = "memory-hot"
    POWER_CAP_LOW = "power-cap-low"
    GPU_LOST = "gpu-lost"
    RESET_REQUIRED = "reset-required"
    INSUFFICIENT_POWER = "insufficient-power"
    GPU_FAULT = "gpu-fault"
    MIXED_GPUS = "mixed-gpus"
    GPUS_NOT_VISIBLE = "gpus-not-visible"
    GPU_UNREADABLE = "gpu-unreadable"
    LIBRARY_NOT_FOUND = "library-not-found"
    DRIVER_NOT_LOADED = "driver-not-loaded"
    DRIVER_MISMATCH = "driver-mismatch"
    CALL_HUNG = "call-hung"
    PROBE_DEADLINE = "probe-deadline"
    PROBE_TERMINATED = "probe-terminated"
    PROBE_CRASHED = "probe-crashed"
    RESULT_TOO_LARGE = "result-too-large"
    PROBE_PROBLEM = "probe-problem"
    HOT_FOR_LONG = "hot-for-long"
    SW_THERMAL_SLOWDOWN = "sw-thermal-slowdown"
    HW_THERMAL_SLOWDOWN = "hw-thermal-slowdown"
    POWER_BRAKE = "power-brake"
    HW_SLOWDOWN = "hw-slowdown"
    SLOW_CLOCK = "slow-clock"
    PCIE_NARROW = "pcie-narrow"
    PCIE_ERRORS = "pcie-errors"
    RECOVERY_ACTION = "recovery-action"
    ECC = "ecc"
    ROW_REMAP = "row-remap"
    XID = "xid"
    PSU_FAULT = "psu-fault"
    RAIL = "rail"
    FAN_STOPPED = "fan-stopped"
    NIC_DOWN = "nic-down"
    NIC_SLOW = "nic-slow"
    BUSBW_LOW = "busbw-low"
    BUSBW_BELOW_PEERS = "busbw-below-peers"
    BUSBW_DISAGREES = "busbw-disagrees"
    INTERCONNECT_CONTRADICTED = "interconnect-contradicted"
    PAIR_SLOW = "pair-slow"
    NCCL_WRONG_DATA = "nccl-wrong-data"
    NCCL_HANG = "nccl-hang"
    NCCL_FAILED = "nccl-failed"
    P2P_BROKEN = "p2p-broken"
    NVLS_BROKEN = "nvls-broken"
    SLOW_INIT = "slow-init"
    FEWER_GPUS = "fewer-gpus"
    NCCL_INCOMPLETE = "nccl-incomplete"
    NOT_GRADABLE = "not-gradable"


class Probe(StrEnum):
    """Which probe's judgement raises a row, and answers its gate."""

    HEALTH = "health"
    NCCL = "nccl"


class Effect(StrEnum):
    """What a finding does to the verdict: `severity` counts, or the node is left `unjudged` (verdict unknown,
    unless something else has failed)."""

    SEVERITY = "severity"
    UNJUDGED = "unjudged"


class Entry(Struct, frozen=True, kw_only=True):
    """One row: `title` is what is wrong in a few words, `when` says per severity what raises it, `gate` what
    a failure may put on the node and after how many runs in a row, `next_step` the first thing to do,
    `way_out` all of it in order (commands in backquotes)."""

    code: Code
    title: str
    meaning: str
    when: dict[Severity, str]
    next_step: str
    way_out: tuple[str, ...]
    gate: Gate | None = None
    effect: Effect = Effect.SEVERITY
    probe: Probe = Probe.HEALTH


# Steps that several rows share.
REPORT = "`kubectl get nodereport NODE -o yaml` shows what was read."
DRIVER_LOG = "On the node: `dmesg | grep -iE 'NVRM|Xid'` says what the driver saw."
DRAIN = "`kubectl cordon NODE`, then `kubectl drain NODE --ignore-daemonsets --delete-emptydir-data`."
RESET = "With nothing running on it: `nvidia-smi --gpu-reset -i INDEX` (all GPUs of an NVSwitch machine)."
REBOOT = "If that does not help, reboot; if it comes back after that, hand the board to your vendor."
VENDOR = "If it returns, hand the board to your vendor with `nvidia-bug-report.sh` output."
POD_LOG = (
    "`kubectl logs -n NAMESPACE PROBE-POD` while the pod exists; `kubectl describe node NODE` for its events."
)
OWN_RUN = "On the node, its GPUs free: `NCCL_DEBUG=INFO all_reduce_perf -b 64M -e 1G -f 4 -g COUNT`."
