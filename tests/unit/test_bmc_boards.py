"""GPUs as a baseboard's BMC shows them: heat of GPU and memory, and how long each cause slowed them down."""

from __future__ import annotations

from typing import Any

import pytest
import trustme

from nodegauge_bmc import growth, values
from nodegauge_bmc.connection import Access
from nodegauge_bmc.redfish import read
from nodegauge_contract.chassis import BoardGpu, ChassisReading
from nodegauge_contract.values import Unavailable
from testbed.hardware.bmc import PASSWORD, USER, serving, tree

BOARD = "/redfish/v1/Systems/HGX_Baseboard_0"
METRICS = f"{BOARD}/Processors/GPU_SXM_3/ProcessorMetrics"
MEMORY = f"{BOARD}/Memory/GPU_SXM_3_DRAM_0"
SENSORS = "/redfish/v1/Chassis/HGX_GPU_SXM_3/ThermalSubsystem/ThermalMetrics"


async def third_gpu(resources: dict[str, Any], tmp_path: Any) -> BoardGpu:
    """The third GPU of the tree, read over HTTPS."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with serving(resources, authority=authority) as bmc:
        reading = await read(Access(url=bmc.url, user=USER, password=PASSWORD, ca=str(tmp_path / "ca.pem")))
    [gpu] = [gpu for gpu in reading.gpus if gpu.name == "GPU_SXM_3"]
    return gpu


def memory(*celsius: Any) -> dict[str, Any]:
    """The memory's own resources, one per stack."""
    resources: dict[str, Any] = {}
    for number, value in enumerate(celsius):
        path = f"{MEMORY}{number or ''}"
        metrics = f"{path}/EnvironmentMetrics"
        resources[path] = {"@odata.id": path, "EnvironmentMetrics": {"@odata.id": metrics}}
        resources[metrics] = {"@odata.id": metrics, "TemperatureCelsius": {"Reading": value}}
    return resources


async def test_memory_is_as_hot_as_its_hottest_part(tmp_path: Any) -> None:
    """By its own resource, where the board has one."""
    resources = tree("dgx-h100") | memory(81, 94.5)
    links = resources[f"{BOARD}/Processors/GPU_SXM_3"]["Links"]
    links["Memory"] = [{"@odata.id": MEMORY}, {"@odata.id": f"{MEMORY}1"}]
    assert (await third_gpu(resources, tmp_path)).memory_celsius == 94.5


async def test_memory_without_a_resource_is_read_from_the_chassis_sensors(tmp_path: Any) -> None:
    """The recorded DGX lists it there as text; the margin to the GPU's limit (54.6) beside it is none."""
    gpu = await third_gpu(tree("dgx-h100"), tmp_path)
    assert (gpu.memory_celsius, gpu.throttled_seconds) == (40, {})


async def heat(tmp_path: Any, **sensor: Any) -> Any:
    """The third GPU's temperature as its own resource gives it, from a sensor with these members."""
    path = "/redfish/v1/Chassis/HGX_GPU_SXM_3/Sensors/GPU"
    resources = tree("dgx-h100") | {path: {"@odata.id": path, "Reading": 71.5} | sensor}
    environment = resources[f"{BOARD}/Processors/GPU_SXM_3/EnvironmentMetrics"]
    environment["TemperatureCelsius"] = {"DataSourceUri": path, "Reading": 71.5}
    return (await third_gpu(resources, tmp_path)).celsius


async def test_a_margin_to_the_limit_is_no_temperature(tmp_path: Any) -> None:
    """By its name the recorded tree's, by Redfish's `ReadingBasis` any other's; no basis is a temperature."""
    assert (await third_gpu(tree("dgx-h100"), tmp_path)).celsius == 32.406
    assert [await heat(tmp_path), await heat(tmp_path, ReadingBasis="Zero")] == [71.5, 71.5]
    for basis in ("Headroom", "Delta"):
        assert isinstance(await heat(tmp_path, ReadingBasis=basis), Unavailable)
    alone = tree("dgx-h100") | {SENSORS: {"@odata.id": SENSORS}}
    assert isinstance((await third_gpu(alone, tmp_path)).celsius, Unavailable)


@pytest.mark.parametrize("absurd", [None, "", "hot", 4730, True, {}, []])
async def test_a_temperature_that_cannot_be_is_none(absurd: Any, tmp_path: Any) -> None:
    """The sensors of the chassis are asked only where the memory says nothing."""
    resources = tree("dgx-h100") | memory(absurd)
    resources[SENSORS] = resources[SENSORS] | {"TemperatureReadingsCelsius": [absurd]}
    assert isinstance((await third_gpu(resources, tmp_path)).memory_celsius, Unavailable)


async def test_each_cause_has_its_seconds(tmp_path: Any) -> None:
    """DMTF's two durations, and two of NVIDIA's; one that is no duration is left out."""
    resources = tree("dgx-h100")
    nvidia = {"HardwareViolationThrottleDuration": "P1DT1H", "GlobalSoftwareViolationThrottleDuration": 5}
    resources[METRICS] |= {
        "PowerLimitThrottleDuration": "PT7M30.25S",
        "ThermalLimitThrottleDuration": "PT0S",
        "Oem": {"Nvidia": nvidia},
    }
    gpu = await third_gpu(resources, tmp_path)
    assert gpu.throttled_seconds == {"power": 450.25, "thermal": 0.0, "hardware": 90_000.0}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("PT0S", 0), ("PT12.345678901S", 12.346), ("P2D", 172_800), ("P0DT0H0M1.5S", 1.5), ("PT1H", 3600),
    ],
)  # fmt: skip
def test_a_duration_is_seconds(text: str, seconds: float) -> None:
    """ISO 8601, as Redfish writes it."""
    assert values.duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "12", "-PT1S", "PT1,5S", "P1Y", "PT1S ", "PT٣S", "P999999D", 12, True, ["PT1S"]]
)
def test_no_other_text_is_a_duration(text: Any) -> None:
    """Nor is one longer than twenty years."""
    assert isinstance(values.duration(text), Unavailable)


def reading(seconds: dict[str, float], **changes: Any) -> ChassisReading:
    return ChassisReading(
        gpus=[BoardGpu(**({"name": "GPU_1", "uuid": "a"} | changes), throttled_seconds=seconds)]
    )


@pytest.mark.parametrize(
    ("before", "now", "grown"),
    [
        (reading({"thermal": 5e6}), reading({"thermal": 5e6 + 12}), {"thermal": 12}),
        (reading({"thermal": 7}), reading({"thermal": 7}), {"thermal": 0}),
        (reading({"thermal": 7}), reading({"thermal": 3}), {}),
        (reading({"thermal": 7}), reading({"thermal": 7 + 400}), {}),
        (reading({"thermal": 7}), reading({"thermal": 7 + 305}), {"thermal": 300}),
        (reading({"power": 7}), reading({"thermal": 9}), {}),
        (reading({"thermal": 7}), reading({"thermal": 9}, uuid="b"), {}),
        (reading({"thermal": 7}, serial="1"), reading({"thermal": 9}, serial="2"), {}),
        (ChassisReading(), reading({"thermal": 9}), {}),
        (None, reading({"thermal": 9}), {}),
    ],
    ids=[
        "grew", "stood still", "began anew", "grew more than time", "grew as long as time", "other cause",
        "other GPU", "other board", "no GPU before", "first reading",
    ],
)  # fmt: skip
def test_only_growth_is_new(
    before: ChassisReading | None, now: ChassisReading, grown: dict[str, float]
) -> None:
    """Between two readings that are 300 s apart."""
    after = growth.since(before, now, seconds=300)
    assert after.gpus[0].throttled_lately_seconds == grown
    assert (after.since_seconds == 300) is (before is not None)


async def test_a_failed_try_between_two_readings_counts_as_time() -> None:
    """The sums of the last reading that worked are kept."""
    answers: list[ChassisReading | Exception] = [
        reading({"thermal": 1}),
        OSError(),
        reading({"thermal": 1.5}),
    ]

    async def next_answer(_access: Access, _deadline: float) -> ChassisReading:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    read_again = growth.remembering(next_answer)
    access = Access(url="https://127.0.0.1", user="", password="")
    assert not (await read_again(access, 1)).gpus[0].throttled_lately_seconds
    with pytest.raises(OSError):
        await read_again(access, 1)
    assert (await read_again(access, 1)).gpus[0].throttled_lately_seconds.keys() == {"thermal"}
