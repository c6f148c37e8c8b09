"""Simulated machines for tests of the driver and of hardware: other drivers, busy ones, what they show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from testbed import profiles
from testbed.driver.client import GPU, NvmlClient, NvmlRefused, Struct
from testbed.hardware import Hardware, plug
from testbed.hardware.plugged import boottime_ns

FUNCTION_NOT_FOUND = 13
SECOND = 10**9
WARMED_UP = 600 * SECOND
"""By then every temperature is where it will stay."""
SHOWN = 3
"""How many GPUs a snapshot asks for everything: a test breaks one of the first."""
FABRIC = "c_nvmlGpuFabricInfo_v2_t"
GPU_CALLS: list[tuple[Any, ...]] = [
    ("nvmlDeviceGetTemperature", 0),
    ("nvmlDeviceGetCurrentClocksThrottleReasons",),
    ("nvmlDeviceGetClockInfo", 1),
    ("nvmlDeviceGetEnforcedPowerLimit",),
    ("nvmlDeviceGetPowerSource",),
    ("nvmlDeviceGetPersistenceMode",),
    ("nvmlDeviceGetCurrPcieLinkGeneration",),
    ("nvmlDeviceGetCurrPcieLinkWidth",),
    ("nvmlDeviceGetFanSpeedRPM",),
    ("nvmlDeviceGetRetiredPagesPendingStatus",),
    ("nvmlDeviceGetRetiredPages", 1),
    ("nvmlDeviceGetRemappedRows",),
    ("nvmlDeviceGetRepairStatus",),
    ("nvmlDeviceGetUnrepairableMemoryFlag_v1",),
    ("nvmlDeviceGetTotalEccErrors", 0, 0),
    ("nvmlDeviceGetTotalEccErrors", 1, 0),
    ("nvmlDeviceGetTotalEccErrors", 1, 1),
    ("nvmlDeviceGetSramEccErrorStatus", Struct("c_nvmlEccSramErrorStatus_v1_t")),
    ("nvmlDeviceGetGpuFabricInfoV", Struct(FABRIC)),
]
FIELDS = (38, 45, 52, 59, 82, 94, 147, 169, 173, 230)
"""Sums of NVLink errors, memory temperature, PCIe errors, links to switches, recovery action."""


def with_driver(version: str, directory: Path, *, profile: str = "h100-sxm-8") -> Hardware:
    """A machine of some profile under another driver."""
    chosen = profiles.load(profile)
    driver = msgspec.structs.replace(chosen.driver, version=version)
    return plug(msgspec.structs.replace(chosen, driver=driver), directory)


def busy(profile: str, directory: Path, *, load: int = 100) -> Hardware:
    """A machine that has been under this load for so long that nothing changes any more."""
    start = boottime_ns()
    hardware = plug(profile, directory, clock=lambda: start - 2 * WARMED_UP)
    Hardware(directory, clock=lambda: start - WARMED_UP).load(load)
    return Hardware.open(hardware.directory)


def sysfs(hardware: Hardware) -> Path:
    """Its /sys."""
    return Path(hardware.env()["NODEGAUGE_SYSFS"])


def link_ends(nvml: NvmlClient, gpu: int, slots: int) -> list[str]:
    """The sysfs address at the far end of each link of a GPU that is up."""
    up = [link for link in range(slots) if nvml.ask("nvmlDeviceGetNvLinkState", GPU(gpu), link) == 1]
    infos = [nvml.ask("nvmlDeviceGetNvLinkRemotePciInfo", GPU(gpu), link) for link in up]
    return [info["busId"].lower().removeprefix("0000") for info in infos]


def snapshot(hardware: Hardware) -> dict[str, Any]:
    """Whatever a fault can change, as NVML and sysfs tell it now, but for what grows by itself."""
    root = sysfs(hardware)
    seen: dict[str, Any] = {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.glob("devices/**/*")
        if path.is_file() and not path.is_symlink()
    }
    with NvmlClient(hardware.env(), initialise=False) as nvml:
        if (refused := nvml.refusal("nvmlInit")) != 0:
            return seen | {"init": refused}
        count = nvml.ask("nvmlDeviceGetCount")
        handles = [nvml.refusal("nvmlDeviceGetHandleByIndex", gpu) for gpu in range(count)]
        whole = [gpu for gpu, refused in enumerate(handles) if refused == 0]
        seen["handles"] = handles
        for gpu in whole[:SHOWN]:
            seen |= {f"GPU {gpu}: {name}": answer for name, answer in _gpu(nvml, gpu, whole).items()}
        seen["events"] = _events(nvml, whole)
        nvml.send("nvmlDeviceGetPowerUsage", GPU(0))
        seen["power hangs"] = nvml.silent(seconds=0.5)
    return seen


def _events(nvml: NvmlClient, whole: list[int]) -> set[tuple[int, ...]]:
    nvml.listen(*whole)
    try:
        return {tuple(event) for event in nvml.events(milliseconds=120)}
    except NvmlRefused as refused:
        if refused.code != FUNCTION_NOT_FOUND:
            raise
        return set()  # driver 418 knows only a way to wait that pynvml has forgotten


def _gpu(nvml: NvmlClient, gpu: int, whole: list[int]) -> dict[str, Any]:
    def answer(call: str, *arguments: Any) -> Any:
        refused = nvml.refusal(call, *arguments)
        return f"error {refused}" if refused else nvml.ask(call, *arguments)

    seen = {" ".join(map(str, call)): answer(call[0], GPU(gpu), *call[1:]) for call in GPU_CALLS}
    for number in FIELDS:
        field = nvml.field(gpu, number)
        seen[f"field {number}"] = field["nvmlReturn"], field["value"]["ullVal"]
    for link in range(6):
        seen[f"link {link}"] = answer("nvmlDeviceGetNvLinkState", GPU(gpu), link)
        seen[f"recoveries failed {link}"] = nvml.field(gpu, 214, link)["value"]["ullVal"]
    for other in set(whole) - {gpu}:
        seen[f"p2p {other}"] = [
            answer("nvmlDeviceGetP2PStatus", GPU(gpu), GPU(other), cap) for cap in range(3)
        ]
    return seen
