"""When a node is not measured, and who takes part when it is."""

from typing import Any

import pytest
from msgspec.structs import replace

from nodegauge_contract import Gpu, Int, Problem, ProblemKind, Unavailable
from nodegauge_probes.nccl import precondition
from nodegauge_probes.nvml.library import Device, Nvml
from support.library import Library

NO = Unavailable("NVML_ERROR_NOT_SUPPORTED")
IDLE = precondition.GpuUse(processes=0, used_mib=4, free_mib=80_000, virtualization=0)
LOST = Problem(kind=ProblemKind.GPU_LOST, call="nvmlDeviceGetUUID", code=15)


def gpus(count: int = 8) -> list[Gpu]:
    return [Gpu(index=n, uuid=f"GPU-{n}", mig=0) for n in range(count)]


def skipped(
    read: list[Gpu], *uses: precondition.GpuUse, expected: int = 8, shared: str = "", confidential: Int = NO
) -> precondition.Skipped | None:
    each = list(uses) or [IDLE] * len(precondition.usable(read))
    node = precondition.Node(gpus=read, uses=each, confidential=confidential)
    return precondition.skip_reason(node, expected=expected, shared=shared)


def one_with(**use: Any) -> list[precondition.GpuUse]:
    return [IDLE, replace(IDLE, **use)]


EIGHT, TWO = gpus(), gpus(2)
UNTOLD = precondition.GpuUse(processes=NO, used_mib=NO, free_mib=NO, virtualization=NO)
MEASURED = {
    "idle": (EIGHT, [], NO),
    "an old driver, which knows little": ([replace(gpu, mig=NO) for gpu in TWO], [UNTOLD] * 2, NO),
    "passed through to a virtual machine of a cloud": (TWO, [replace(IDLE, virtualization=1)] * 2, 0),
    "confidential computing off": (EIGHT, [], 0),
    "a desktop's memory": (TWO, [IDLE, replace(IDLE, used_mib=600)], NO),
}


@pytest.mark.parametrize("case", MEASURED)
def test_a_free_node_is_measured(case: str) -> None:
    read, uses, confidential = MEASURED[case]
    assert skipped(read, *uses, confidential=confidential) is None


ONE_OF_EIGHT = [EIGHT[0], *(replace(gpu, error=LOST) for gpu in EIGHT[1:])]
SKIPPED = {
    **{f"vGPU {mode}": (TWO, one_with(virtualization=mode), {}, "vgpu", "") for mode in (2, 3, 4)},
    "MIG on one": ([*gpus(7), Gpu(index=7, uuid="GPU-7", mig=1)], [], {}, "mig", ""),
    "copies are encrypted": (EIGHT, [], {"confidential": 1}, "confidential-computing", ""),
    "shared": (EIGHT, [], {"shared": "time-slicing x4"}, "shared", "the GPUs are shared: time-slicing x4"),
    "nobody to talk to": (ONE_OF_EIGHT, [], {}, "single-gpu", "1 of 8 GPUs"),
    "no GPU": ([], [], {}, "single-gpu", ""),
    "a process": (TWO, one_with(processes=1), {}, "busy", "GPU 1 is in use by 1 compute process"),
    "processes": (TWO, one_with(processes=2), {}, "busy", "GPU 1 is in use by 2 compute processes"),
    "somebody whom NVML does not list": (TWO, one_with(used_mib=30_000), {}, "busy", ""),
}


@pytest.mark.parametrize("case", SKIPPED)
def test_a_node_that_is_not_free_and_whole_is_skipped(case: str) -> None:
    read, uses, how, reason, message = SKIPPED[case]
    result = skipped(read, *uses, **how)
    assert (result.reason, message in result.message) == (reason, True), result.message


CACHED = replace(IDLE, used_mib=71_000, free_mib=300, utilization=0)
COHERENT = [
    pytest.param(
        Gpu(index=0, uuid="GPU-0", name="NVIDIA GH200 144G HBM3e", gpu_numa_id=1), CACHED, id="gh200"
    ),
    pytest.param(Gpu(index=0, uuid="GPU-0", name="NVIDIA GB200", gpu_numa_id=10), CACHED, id="gb200"),
    pytest.param(
        Gpu(index=0, uuid="GPU-0", name="NVIDIA GB300", gpu_numa_id=NO),
        replace(CACHED, c2c_links=10),
        id="gb300, by its links to the CPU",
    ),
    pytest.param(
        Gpu(index=0, uuid="GPU-0", name="NVIDIA GB10", gpu_numa_id=NO),
        replace(CACHED, used_mib=NO, free_mib=NO),
        id="gb10, whose driver tells no memory",
    ),
]


@pytest.mark.parametrize(("gpu", "use"), COHERENT)
def test_page_cache_in_a_gpu_s_memory_is_nobody_s_job(gpu: Gpu, use: precondition.GpuUse) -> None:
    """Where the GPU's memory is a NUMA node, the kernel keeps files in it (developer.nvidia.com/blog,
    "Understanding Memory Management on Hardware-Coherent Platforms").  Processes count, and utilisation
    where they are hidden.  Cache makes way, so it does not make sizes smaller."""
    pair = [gpu, replace(gpu, index=1, uuid="GPU-1")]
    assert skipped(pair, use, use) is None
    node = precondition.Node(gpus=pair, uses=[use, use], confidential=NO)
    assert precondition.machine(node).free_bytes is None
    assert skipped(pair, use, replace(use, processes=1)).reason == "busy"


def test_a_job_that_is_hidden_in_another_container_shows_in_the_utilisation() -> None:
    pair = [replace(gpu, gpu_numa_id=8 + gpu.index) for gpu in gpus(2)]
    result = skipped(pair, CACHED, replace(CACHED, utilization=97))
    assert result.reason == "busy"
    assert result.message == "GPU 1 is at 97 % utilisation, but no process is visible"
    assert skipped(pair, CACHED, replace(CACHED, utilization=2)) is None


def test_seven_of_eight_are_measured_and_named() -> None:
    ill = [replace(gpu, error=LOST if gpu.index == 3 else None) for gpu in gpus()]
    assert [gpu.index for gpu in precondition.usable(ill)] == [0, 1, 2, 4, 5, 6, 7]
    assert skipped(ill) is None
    assert precondition.missing(ill, expected=8) == "measured on 7 of 8 GPUs: GPU 3 gpu-lost"
    assert precondition.missing(gpus(7), expected=8) == "measured on 7 of 8 GPUs: 1 not visible"
    assert precondition.missing(gpus(), expected=8) == precondition.missing(gpus(), expected=0) == ""


def test_a_gpu_without_a_name_cannot_be_asked_for() -> None:
    nameless = [*gpus(2), Gpu(index=2, uuid=NO)]
    assert [gpu.index for gpu in precondition.usable(nameless)] == [0, 1]


def test_the_fullest_gpu_decides_on_sizes() -> None:
    assert precondition.least_free([IDLE, replace(IDLE, free_mib=3)]) == 3 << 20
    assert precondition.least_free([IDLE, replace(IDLE, free_mib=NO)]) is None
    assert precondition.least_free([]) is None


def counting(number: int) -> Any:
    def listed(_: Any, count: Any, processes: Any) -> int:
        too_small = processes is None and number > 0
        count._obj.value = number
        return 7 if too_small else 0

    return listed


@pytest.mark.parametrize("version", ["_v3", "_v2"])
def test_every_driver_counts_processes(nvml: Nvml, library: Library, device: Device, version: str) -> None:
    library.has(f"nvmlDeviceGetComputeRunningProcesses{version}", counting(2))
    library.has(f"nvmlDeviceGetMPSComputeRunningProcesses{version}", counting(1))
    library.fills("nvmlDeviceGetMemoryInfo_v2", total=80 << 30, used=5 << 20, free=79 << 30)
    library.answers("nvmlDeviceGetVirtualizationMode", 0, number=2)
    library.fills("nvmlDeviceGetUtilizationRates", gpu=41)
    use = precondition.read_use(nvml, device)
    known = {"processes": 3, "used_mib": 5, "free_mib": 79 << 10, "virtualization": 2, "utilization": 41}
    assert {name: getattr(use, name) for name in known} == known
    assert not precondition.holds_page_cache(gpus(1)[0], use)


def test_a_driver_that_lists_no_processes_says_so(nvml: Nvml, library: Library, device: Device) -> None:
    assert isinstance(precondition.read_use(nvml, device).processes, Unavailable)
    library.has("nvmlDeviceGetComputeRunningProcesses_v3", counting(0))
    assert precondition.read_use(nvml, device).processes == 0


def test_confidential_computing_as_nvml_tells_it(nvml: Nvml, library: Library) -> None:
    assert isinstance(precondition.read_confidential(nvml), Unavailable)
    library.fills("nvmlSystemGetConfComputeState", environment=2, ccFeature=1)
    assert precondition.read_confidential(nvml) == 1
