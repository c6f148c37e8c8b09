"""Which faults gate single GPUs instead of their node, and which devices that takes (ADR 0060).

A node with eight GPUs of which one is broken still has seven.  Where its GPUs come by DRA alone, a fault of
single GPUs taints their devices by DeviceTaintRules, if the policy asks for that.  Whatever cannot be told
for certain stays a taint of the node: which device a GPU is, a fault between GPUs or of the machine, and more
bad GPUs than half of them.  Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from nodegauge_judge import Cause
from nodegauge_operator.api.desired_device import DesiredDevice, DeviceState
from nodegauge_operator.api.gpus_status import GpusStatus
from nodegauge_operator.api.policy import DeviceRules, Effect, Policy
from nodegauge_operator.api.report import GateState, GateStatus, ReportStatus
from nodegauge_operator.core.devices import GPU, Device
from nodegauge_operator.core.gates import FIRST_IN_LINE, GATES, TAINT_KEYS
from nodegauge_operator.core.model import NodeView

OF_A_GPU = frozenset(
    {
        Cause.THERMAL,
        Cause.HW_SLOWDOWN,
        Cause.CORRUPTION,
        Cause.GPU_LOST,
        Cause.RESET_REQUIRED,
        Cause.POWER_CABLE,
        Cause.GPU_FAULT,
        Cause.RECOVERY_ACTION,
        Cause.XID,
        Cause.MEMORY,
        Cause.PCIE,
        Cause.SLOW_GPU,
    }
)
"""Causes that one GPU can have while the others work.  Not among them: what feeds them all (power-brake,
psu), what joins them (p2p, nvlink, nccl, busbw), and a driver that does not answer (unreadable)."""
_PCI_DIGITS = 12
"""Characters of a PCI address with the four digits of its domain that sysfs has; NVML may have eight."""


def devices_of(uuid: str, *, gpus: GpusStatus, devices: Iterable[Device]) -> tuple[Device, ...] | None:
    """The devices that this GPU is, its MIG devices among them; empty if the slices name every GPU and not
    this one, so that nobody can get it; None if that cannot be told."""
    pci = next((_pci(gpu.pci) for gpu in gpus.known() if gpu.uuid == uuid), "")
    devices = tuple(devices)
    own = tuple(
        device
        for device in devices
        if device.uuid == uuid or (pci and _pci(device.pci) == pci and not _is_named(device))
    )
    return own if own or (devices and all(_is_named(device) for device in devices)) else None


def on_devices(
    gates: Iterable[GateStatus], *, policy: Policy, node: NodeView, gpus: GpusStatus, served: bool
) -> frozenset[str]:
    """Codes of entered gates whose GPUs are gated instead of the node.  `served`: the API server has
    DeviceTaintRules, and took the last one."""
    if policy.spec.taints.devices is not DeviceRules.NO_SCHEDULE or not served:
        return frozenset()
    return frozenset(gate.code for gate in _of_single_gpus(gates, policy=policy, node=node, gpus=gpus))


def desired(status: ReportStatus, *, policy: Policy, node: NodeView, slots: int) -> list[DesiredDevice]:
    """The devices that the gates of this status gate, the worst cause of each; `slots`: how many the budget
    lets the node have.  Those that are gated keep theirs, then the worst come first.

    In a dry run each device that would be gated, and no slot is needed."""
    setting = policy.spec.taints.devices
    if setting is DeviceRules.NONE:
        return []
    dry = setting is DeviceRules.DRY_RUN
    worst = _by_gpu(
        _of_single_gpus(status.gates, policy=policy, node=node, gpus=status.gpus)
        if dry
        else [gate for gate in status.gates if gate.on_devices and gate.state.entered]
    )
    before = {(device.uuid, device.name) for device in status.desired.devices if device.taken}
    every = [
        device for uuid, gate in worst.items() for device in _desired(uuid, gate, status, node=node, dry=dry)
    ]
    every.sort(key=lambda device: ((device.uuid, device.name) not in before, _rank(device.cause)))
    after: list[DesiredDevice] = []
    for device in every:
        if device.state is DeviceState.GATED and not dry:
            slots -= 1
            device = device if slots >= 0 else replace(device, state=DeviceState.HELD_BACK)
        after.append(device)
    return after


def taken(status: ReportStatus) -> int:
    """Devices that rules of this status take out of use."""
    return sum(device.taken for device in status.desired.devices)


def waiting(status: ReportStatus) -> int:
    """Devices that wait for a slot; one whose gate an incident holds back waits for none."""
    elsewhere = {gate.code for gate in status.gates if gate.incident or gate.good}
    return sum(
        device.state is DeviceState.HELD_BACK and device.code not in elsewhere
        for device in status.desired.devices
    )


def lost_gpus(status: ReportStatus) -> dict[str, str]:
    """By UUID, the worst cause of each GPU that is bad while the node keeps the others."""
    entered = [gate for gate in status.gates if gate.on_devices and gate.state.entered and gate.code in GATES]
    return {uuid: GATES[gate.code].cause.value for uuid, gate in _by_gpu(entered).items()}


def _of_single_gpus(
    gates: Iterable[GateStatus], *, policy: Policy, node: NodeView, gpus: GpusStatus
) -> list[GateStatus]:
    """Entered gates of faults that devices can carry; none if the node's GPUs do not come by DRA alone, or
    more than half of them are bad (chosen by this project: what hits most GPUs is rarely theirs)."""
    if not node.devices or node.gpu_capacity not in ("", "0"):
        return []
    chosen = [
        gate
        for gate in gates
        if gate.state.entered and gate.gpus and gate.code in GATES
        if GATES[gate.code].cause in OF_A_GPU
        if policy.effects[GATES[gate.code].cause] is Effect.NO_SCHEDULE
        if all(devices_of(uuid, gpus=gpus, devices=node.devices) is not None for uuid in gate.gpus)
    ]
    bad = {uuid for gate in chosen for uuid in gate.gpus}
    whole = sum(device.type == GPU for device in node.devices)
    return chosen if 2 * len(bad) <= max(gpus.count, whole) else []


def _by_gpu(gates: Sequence[GateStatus]) -> dict[str, GateStatus]:
    """By UUID, the gate of the worst cause."""
    worst: dict[str, GateStatus] = {}
    for gate in sorted(gates, key=lambda gate: _rank(GATES[gate.code].cause), reverse=True):
        worst |= dict.fromkeys(gate.gpus, gate)
    return worst


def _desired(
    uuid: str, gate: GateStatus, status: ReportStatus, *, node: NodeView, dry: bool
) -> Iterator[DesiredDevice]:
    rule = GATES[gate.code]
    matches = devices_of(uuid, gpus=status.gpus, devices=node.devices) or ()
    waits = gate.state is GateState.HELD_BACK and not dry
    whole = DesiredDevice(
        uuid=uuid,
        state=DeviceState.HELD_BACK if waits else DeviceState.GATED,
        key=TAINT_KEYS[rule.kind],
        cause=rule.cause.value,
        code=gate.code,
        since=gate.fault_at or gate.entered_at,
        effect="None" if dry else "NoSchedule",
        serial=next((gpu.serial for gpu in status.gpus.known() if gpu.uuid == uuid), ""),
    )
    if not matches:
        yield replace(whole, state=DeviceState.NOT_OFFERED)
    for device in matches:
        yield replace(whole, driver=device.driver, pool=device.pool, name=device.name)


def _is_named(device: Device) -> bool:
    """Whether it says itself which GPU it is; a MIG device has a UUID of its own."""
    return device.type == GPU and bool(device.uuid)


def _pci(address: str) -> str:
    return address.lower()[-_PCI_DIGITS:]


def _rank(cause: str) -> int:
    return FIRST_IN_LINE[cause]
