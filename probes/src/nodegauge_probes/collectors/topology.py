"""The GPUs' interconnect: pairs, NVLinks and the fabric, as the driver reports them.

Links are read as in NCCL (src/graph/xml.cc): capability, state, remote end; from Hopper on the state is a
field.  `nodegauge_contract.nvlink` counts NV# from the document.

Drivers before 470 do not report the type of a link's remote end, and those before 460 not even how many lead
to switches.  There the class of the remote PCI function decides, as in NCCL.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from nodegauge_contract import Fabric, Int, LinkGroup, Text, Unavailable
from nodegauge_probes.host.pci import function_class
from nodegauge_probes.nvml import library
from nodegauge_probes.nvml.library import Device, Nvml
from nodegauge_probes.result_builder import GpuBuilder, ResultBuilder

P2P_SUPPORTED = 0
"""NVML_NVLINK_CAP_P2P_SUPPORTED."""

STATE_BY_FIELD_FROM = (9, 0)
"""From this compute capability on nvmlDeviceGetNvLinkState is replaced by field 165."""

FI_SWITCH_LINKS = 147
FI_LINK_SPEED, FI_LINK_STATE, FI_LINK_SPEED_COMMON = 164, 165, 90
FI_LINK_SPEED_OF = (84, 85, 86, 87, 88, 89, 132, 133, 134, 135, 136, 137)
"""NVML_FI_DEV_NVLINK_SPEED_MBPS_L0 to _L11."""

UP = frozenset({1, 2, 3})
"""Active, asleep, active with traffic disabled: states in which a link has a remote end."""

REMOTE_NPU, REMOTE_SWITCH = 1, 2
"""NVML_NVLINK_DEVICE_TYPE_*."""
BRIDGES = {"0x068000": REMOTE_SWITCH, "0x068001": REMOTE_NPU}
"""Classes of PCI functions at the remote end of a link: an NVSwitch, a POWER CPU (NCCL src/graph/xml.cc)."""

NOT_UP = Unavailable("link is not active")


def pairs(nvml: Nvml, devices: list[Device], result: ResultBuilder) -> None:
    """The common ancestor and the three P2P statuses of every ordered pair."""
    for cells, call, arguments in (
        (result.pairs.ancestor, "nvmlDeviceGetTopologyCommonAncestor", ()),
        (result.pairs.read, "nvmlDeviceGetP2PStatus", (library.READ,)),
        (result.pairs.write, "nvmlDeviceGetP2PStatus", (library.WRITE,)),
        (result.pairs.nvlink, "nvmlDeviceGetP2PStatus", (library.NVLINK,)),
    ):
        for i, device in enumerate(devices):
            for j, other in enumerate(devices):
                if i != j:
                    cells[i][j] = nvml.pair(device, other, call, *arguments)


def links(nvml: Nvml, device: Device, gpu: GpuBuilder) -> None:
    """Every NVLink of one GPU, until the driver answers that there is no such link."""
    gpu.identity.switch_links = nvml.whole_field(device, FI_SWITCH_LINKS)
    state_by_field = has_state_field(gpu)
    for number in range(library.MAX_LINKS):
        link = _link(nvml, device, number, state_by_field=state_by_field)
        if library.NO_SUCH_LINK in (link.p2p, link.state):
            return
        gpu.links.append(link)
        if link.p2p == link.state == library.NO_SUCH_CALL or device.lost is not None:
            return


def has_state_field(gpu: GpuBuilder) -> bool:
    """Whether the state of this GPU's links is a field; its identity must have been read."""
    return _at_least(gpu.identity.compute_capability, STATE_BY_FIELD_FROM)


def add_remote_types(gpu: GpuBuilder, root: Path) -> None:
    """Fill in the type of remote ends from the PCI tree, if the driver has no call for it.

    Only switches and CPUs: links name GPUs themselves, and in a virtual machine a link may name its own GPU.
    """
    for index, link in enumerate(gpu.links):
        if isinstance(link.remote, str) and link.remote and link.remote_type == library.NO_SUCH_CALL:
            kind = function_class(root, link.remote)
            if isinstance(kind, str) and kind in BRIDGES:
                gpu.links[index] = replace(link, remote_type=BRIDGES[kind])


def fabric(nvml: Nvml, device: Device, gpu: GpuBuilder) -> None:
    """The GPU's position in a fabric; a refusal is the reason of every member."""
    answer = nvml.fabric(device)
    if isinstance(answer, Unavailable):
        answer = Fabric(**dict.fromkeys(Fabric.__struct_fields__, answer))
    gpu.fabric = answer


def _link(nvml: Nvml, device: Device, link: int, *, state_by_field: bool) -> LinkGroup:
    p2p = nvml.integer(device, "nvmlDeviceGetNvLinkCapability", link, P2P_SUPPORTED)
    state = _state(nvml, device, link, by_field=state_by_field)
    if state not in UP:
        return LinkGroup(
            links=[link],
            state=state,
            p2p=p2p,
            remote=NOT_UP,
            remote_type=NOT_UP,
            mbps=NOT_UP,
            version=NOT_UP,
        )
    older = (FI_LINK_SPEED_OF[link],) if link < len(FI_LINK_SPEED_OF) else ()
    return LinkGroup(
        links=[link],
        state=state,
        p2p=p2p,
        remote=nvml.remote_pci(device, link),
        remote_type=nvml.integer(device, "nvmlDeviceGetNvLinkRemoteDeviceType", link),
        mbps=nvml.whole_field(device, (FI_LINK_SPEED, link), *older, FI_LINK_SPEED_COMMON),
        version=nvml.integer(device, "nvmlDeviceGetNvLinkVersion", link),
    )


def _state(nvml: Nvml, device: Device, link: int, *, by_field: bool) -> Int:
    if not by_field:
        return nvml.integer(device, "nvmlDeviceGetNvLinkState", link)
    value = nvml.fields(device, (FI_LINK_STATE, link))[0]
    if not isinstance(value, Unavailable):
        return Unavailable("not a whole number") if isinstance(value, float) else value
    # A B200 reports all 36 links as capable; only this call refuses those beyond its 18.
    older = nvml.integer(device, "nvmlDeviceGetNvLinkState", link)
    return older if older == library.NO_SUCH_LINK else value


def _at_least(capability: Text, wanted: tuple[int, int]) -> bool:
    if not isinstance(capability, str):
        return False
    major, _, minor = capability.partition(".")
    return (int(major), int(minor)) >= wanted
