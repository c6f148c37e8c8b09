"""Single cards and workstations: what NVML answers on a profile is what nvidia-smi printed on the real card.

The recordings are XML of nvidia-smi; the answers come through the real pynvml from the simulated library.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testbed.driver.client import GPU, NvmlClient, NvmlRefused
from testbed.hardware import plug

FIXTURES = Path(__file__).parents[1] / "fixtures"
RECORDED = {
    "t4-1": "nvidia-smi-qx_tesla-t4.xml",
    "rtx4000ada-1": "nvidia-smi-qx_rtx4000ada.xml",
    "rtx3060-1": "nvidia-smi-qx_rtx3060.xml",
    "gtx1660ti-1": "nvidia-smi-qx_gtx1660ti.xml",
    "a100-mig-4": "nvidia-smi-qx_a100-sxm4.xml",
}
UNSAID = {
    "t4-1": {"reason_gpu_idle"},  # a program held this card open: P0, and neither idle nor at work
    # its number was blotted out by whoever published it; ECC is off there, and the profile has none
    "rtx4000ada-1": {"serial", "current_ecc"},
    # its place and its number are made up, and it too was neither idle nor at work
    "a100-mig-4": {"pci_bus_id", "serial", "reason_gpu_idle"},
}
NOT_SUPPORTED, FUNCTION_NOT_FOUND = 3, 13
SW_POWER_CAP = 74
BRANDS = {5: "GeForce", 13: "NVIDIA RTX", 14: "NVIDIA"}
MEMORY_V2 = 0x02000028
SHUTDOWN, SLOWDOWN, MEMORY_MAX, GPU_MAX = range(4)
SM, MEMORY, VIDEO = 1, 2, 3
IDLE, POWER_CAP, HW_SLOWDOWN, SW_THERMAL = 0x1, 0x4, 0x8, 0x20

Ask = Callable[[NvmlClient], object]


def reported(name: str, *arguments: object, show: Callable[..., object] = str) -> Ask:
    """A question about GPU 0, and how nvidia-smi prints the answer."""
    return lambda nvml: show(nvml.ask(name, GPU(0), *arguments))


def watts(milliwatts: int) -> str:
    return f"{milliwatts / 1000:.2f} W"


def on_or_off(value: int) -> str:
    return "Enabled" if value else "Disabled"


def power(name: str) -> Ask:
    return reported(f"nvmlDeviceGet{name}", show=watts)


def power_limit(location: int) -> Ask:
    return reported(
        "nvmlDeviceGetPowerManagementLimitConstraints", show=lambda limits: watts(limits[location])
    )


def pci(name: str, show: Callable[..., str] = str) -> Ask:
    return reported("nvmlDeviceGetPciInfo", show=lambda info: show(info[name]))


def memory(name: str) -> Ask:
    def ask(nvml: NvmlClient) -> str:
        newer = nvml.refusal("nvmlDeviceGetMemoryInfo", GPU(0), MEMORY_V2) == 0
        info = nvml.ask("nvmlDeviceGetMemoryInfo", GPU(0), *([MEMORY_V2] if newer else []))
        return f"{info[name] >> 20} MiB"

    return ask


def celsius(name: str, *arguments: object) -> Ask:
    return reported(f"nvmlDeviceGet{name}", *arguments, show=lambda value: f"{value} C")


def mhz(name: str, domain: int) -> Ask:
    return reported(f"nvmlDeviceGet{name}", domain, show=lambda value: f"{value} MHz")


def field(number: int, show: Callable[..., object], kind: str = "siVal") -> Ask:
    def ask(nvml: NvmlClient) -> object:
        answer = nvml.field(0, number)
        if answer["nvmlReturn"]:
            raise NvmlRefused(f"field {number}", answer["nvmlReturn"])
        return show(answer["value"][kind])

    return ask


def reason(bit: int) -> Ask:
    name = "nvmlDeviceGetCurrentClocksThrottleReasons"
    return reported(name, show=lambda mask: "Active" if mask & bit else "Not Active")


def repair(location: int) -> Ask:
    return reported("nvmlDeviceGetRepairStatus", show=lambda pending: "Yes" if pending[location] else "No")


PRINTED: dict[str, Ask] = {
    "product_name": reported("nvmlDeviceGetName"),
    "product_brand": reported("nvmlDeviceGetBrand", show=lambda brand: BRANDS[brand]),
    "persistence_mode": reported("nvmlDeviceGetPersistenceMode", show=on_or_off),
    "current_ecc": reported("nvmlDeviceGetEccMode", show=lambda modes: on_or_off(modes[0])),
    "current_mig": reported("nvmlDeviceGetMigMode", show=lambda modes: on_or_off(modes[0])),
    "serial": reported("nvmlDeviceGetSerial", show=lambda serial: "0" * len(serial)),
    "minor_number": reported("nvmlDeviceGetMinorNumber"),
    "vbios_version": reported("nvmlDeviceGetVbiosVersion"),
    "module_id": reported("nvmlDeviceGetModuleId"),
    "pci_bus_id": pci("busId"),
    "pci_device_id": pci("pciDeviceId", lambda number: f"{number:08X}"),
    "pci_sub_system_id": pci("pciSubSystemId", lambda number: f"{number:08X}"),
    "max_link_gen": reported("nvmlDeviceGetMaxPcieLinkGeneration"),
    "max_device_link_gen": reported("nvmlDeviceGetGpuMaxPcieLinkGeneration"),
    "current_link_gen": reported("nvmlDeviceGetCurrPcieLinkGeneration"),
    "max_link_width": reported("nvmlDeviceGetMaxPcieLinkWidth", show=lambda lanes: f"{lanes}x"),
    "current_link_width": reported("nvmlDeviceGetCurrPcieLinkWidth", show=lambda lanes: f"{lanes}x"),
    "replay_counter": reported("nvmlDeviceGetPcieReplayCounter"),
    "fan_speed": reported("nvmlDeviceGetFanSpeed", show=lambda speed: f"{speed} %"),
    "gpu_util": reported("nvmlDeviceGetUtilizationRates", show=lambda rates: f"{rates['gpu']} %"),
    "performance_state": reported("nvmlDeviceGetPerformanceState", show=lambda state: f"P{state}"),
    "reason_gpu_idle": reason(IDLE),
    "reason_sw_power_cap": reason(POWER_CAP),
    "reason_hw_slowdown": reason(HW_SLOWDOWN),
    "reason_sw_thermal_slowdown": reason(SW_THERMAL),
    "fb_memory_usage/total": memory("total"),
    "fb_memory_usage/reserved": memory("reserved"),
    "fb_memory_usage/used": memory("used"),
    "gpu_recovery_action": field(230, lambda action: "None" if action == 0 else action),
    "remapped_row_pending": field(144, lambda pending: "Yes" if pending else "No"),
    "channel_repair_pending": repair(0),
    "tpc_repair_pending": repair(1),
    "unrepairable_memory": reported("nvmlDeviceGetUnrepairableMemoryFlag_v1"),
    "row_remapper_histogram_max": reported(
        "nvmlDeviceGetRowRemapperHistogram", show=lambda values: f"{values['max']} bank(s)"
    ),
    "gpu_temp": celsius("Temperature", 0),
    "memory_temp": field(82, lambda value: f"{value} C", "uiVal"),
    "gpu_temp_max_threshold": celsius("TemperatureThreshold", SHUTDOWN),
    "gpu_temp_slow_threshold": celsius("TemperatureThreshold", SLOWDOWN),
    "gpu_temp_max_gpu_threshold": celsius("TemperatureThreshold", GPU_MAX),
    "gpu_temp_max_mem_threshold": celsius("TemperatureThreshold", MEMORY_MAX),
    "gpu_temp_tlimit": celsius("MarginTemperature"),
    "gpu_temp_max_tlimit_threshold": field(193, lambda value: f"{value} C"),
    "gpu_temp_slow_tlimit_threshold": field(194, lambda value: f"{value} C"),
    "gpu_temp_max_gpu_tlimit_threshold": field(196, lambda value: f"{value} C"),
    "gpu_temp_max_mem_tlimit_threshold": field(195, lambda value: f"{value} C"),
    "power_draw": power("PowerUsage"),
    "power_limit": power("EnforcedPowerLimit"),
    "default_power_limit": power("PowerManagementDefaultLimit"),
    "min_power_limit": power_limit(0),
    "max_power_limit": power_limit(1),
    "clocks/sm_clock": mhz("ClockInfo", SM),
    "clocks/mem_clock": mhz("ClockInfo", MEMORY),
    "clocks/video_clock": mhz("ClockInfo", VIDEO),
    "max_clocks/sm_clock": mhz("MaxClockInfo", SM),
    "max_clocks/mem_clock": mhz("MaxClockInfo", MEMORY),
    "max_clocks/video_clock": mhz("MaxClockInfo", VIDEO),
}
"""What nvidia-smi prints, by tag, and the question that it asks for it."""

SPELLINGS = {
    "module_id": ("module_id", "gpu_module_id"),
    "power_draw": ("gpu_power_readings/average_power_draw", "power_readings/power_draw"),
    "power_limit": ("gpu_power_readings/current_power_limit", "power_readings/enforced_power_limit"),
    "default_power_limit": (
        "gpu_power_readings/default_power_limit",
        "power_readings/default_power_limit",
    ),
    "min_power_limit": ("gpu_power_readings/min_power_limit", "power_readings/min_power_limit"),
    "max_power_limit": ("gpu_power_readings/max_power_limit", "power_readings/max_power_limit"),
    **{
        f"reason_{name}": (f"clocks_event_reason_{name}", f"clocks_throttle_reason_{name}")
        for name in ("gpu_idle", "sw_power_cap", "hw_slowdown", "sw_thermal_slowdown")
    },
}
"""Tags that changed their names between driver releases, or stand in several places."""


def printed(log: ElementTree.Element, tag: str) -> str | None:
    for path in SPELLINGS.get(tag, (tag,)):
        for below in ("gpu/", "gpu//"):  # a MIG slice has tags of the same names further down
            if (text := log.findtext(f"{below}{path}")) is not None:
                return text.strip()
    return None


def answered(nvml: NvmlClient, ask: Ask) -> object:
    try:
        return ask(nvml)
    except NvmlRefused as refused:
        return "N/A" if refused.code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND) else refused.code


@pytest.fixture(scope="module", params=RECORDED)
def card(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, NvmlClient, ElementTree.Element]]:
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    with NvmlClient(plug(name, folder).env()) as nvml:
        yield name, nvml, ElementTree.parse(FIXTURES / RECORDED[name]).getroot()


Card = tuple[str, NvmlClient, ElementTree.Element]


def test_the_driver_is_the_recorded_one(card: Card) -> None:
    """Driver and CUDA version are those that nvidia-smi printed above its cards."""
    _, nvml, log = card
    cuda = nvml.ask("nvmlSystemGetCudaDriverVersion_v2")

    assert nvml.ask("nvmlSystemGetDriverVersion") == log.findtext("driver_version")
    assert f"{cuda // 1000}.{cuda % 1000 // 10}" == log.findtext("cuda_version")
    assert nvml.ask("nvmlDeviceGetCount") == int(log.findtext("attached_gpus") or 0)


def test_nvml_answers_what_was_printed(card: Card) -> None:
    """Every tag of the recording that NVML can be asked for has the recorded value, N/A included."""
    name, nvml, log = card
    recorded = {tag: printed(log, tag) for tag in PRINTED.keys() - UNSAID.get(name, set())}
    recorded = {tag: text for tag, text in recorded.items() if text}

    assert {tag: answered(nvml, PRINTED[tag]) for tag in recorded} == recorded
    assert len(recorded) > 30


def test_healthy_cards_have_capped_their_power_for_long(tmp_path: Path) -> None:
    """The recorded 4,252 s of SW power cap are there from the start; only growth may be judged."""
    recorded = ElementTree.parse(FIXTURES / RECORDED["rtx4000ada-1"]).findtext(
        "gpu/clocks_event_reasons_counters/clocks_event_reasons_counters_sw_power_cap"
    )
    with NvmlClient(plug("rtx4000ada-1", tmp_path).env()) as nvml:
        nanoseconds = nvml.field(0, SW_POWER_CAP)["value"]["ullVal"]

    assert recorded is not None
    assert nanoseconds / 1e9 == pytest.approx(int(recorded.split()[0]) / 1e6, abs=1)
