"""The measurements of the load probe: what each GPU did while all GPUs of the node worked at the same time.

Raw numbers with units and no verdicts: what is too hot, too slow or too light is the judge's to say.
Milliseconds count from the moment at which the first GPU began to work (`LoadResult.seconds` plans that
time), on the clock of the probe.  "Steady" is the last third of a GPU's time under load.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from nodegauge_contract.gpu import Growth
from nodegauge_contract.values import NOT_READ, Int, Int64, Num, Short, Str, Text

MAX_LOADED = 64
MAX_LOAD_SENSORS = 48
MAX_REASONS = 64


class LoadEnd(StrEnum):
    """Why the load of a GPU ended.  Values are stable; new ones may be added.

    `temperature`: the probe's own stop (`LoadGpu.stop_c`, `stop_margin_c`), of this or of another GPU;
    `gave-way`: another process began to use a GPU; `cut`: the run's time was up or the pod was terminated;
    `failed`: CUDA returned an error, or the process that drives the GPU died; `hung`: it made no progress.
    """

    DONE = "done"
    TEMPERATURE = "temperature"
    GAVE_WAY = "gave-way"
    CUT = "cut"
    FAILED = "failed"
    HUNG = "hung"


class LoadSkip(StrEnum):
    """Why a node was not loaded.  Values are stable; new ones may be added.

    `hot`: a GPU was at its temperature stop before the load began; `no-cuda`: no libcuda in the container;
    `no-gpu`: no GPU can be used.  The others as in `nodegauge_contract.nccl.Skip`.
    """

    BUSY = "busy"
    MIG = "mig"
    VGPU = "vgpu"
    SHARED = "shared"
    CONFIDENTIAL = "confidential-computing"
    NO_GPU = "no-gpu"
    NO_CUDA = "no-cuda"
    HOT = "hot"


class LoadReason(Struct, frozen=True, kw_only=True):
    """A clocks event reason bit under load: samples with it, the longest run of them, and when it was first
    seen."""

    bit: Int64
    samples: Int64
    longest: Int64
    first_ms: Int64


class LoadGpu(Struct, frozen=True, kw_only=True):
    """One GPU under load; `index` as in `Result.gpus`.

    `ended`: a `LoadEnd`; `seconds` under load, `samples` of NVML in that time.
    Power, mW: `limit_mw` the enforced limit, `idle_mw` before the load (median), `steady_mw` (median of the
    steady samples), `max_mw`; `reached_ms`: until 90 % of the limit, or why not.
    Temperature, °C: `start_c` before the load, `steady_c` (median), `max_c`; `slope_c_per_min` of the steady
    samples by least squares; the same of the memory; `margin_c`: least distance to the vendor's slowdown;
    `stop_c` and `stop_margin_c`: temperature and distance at which the probe stops the load itself.
    Clocks, MHz: median of the steady samples, and the lowest of all.  `generation`, `width`: the PCIe link
    under load (median).  `reasons`: clocks event reasons; `reasons_read`: samples in which they could be
    read.  `growth`: throttle counters and energy from before the load until after it.
    `kernel`: what computes, as `f16-m16n8k16` (inputs, shape of the tensor core instruction) or `f32-fma`;
    `tflops`: 1e12 operations per second (a multiplication with addition counts two) in the median launch of
    an interval, median of the steady ones, `tflops_first` of the first one.  Bandwidths in GB/s (1e9):
    `memory_gbps` copies within the GPU's memory, read plus written, in the fastest of several rounds;
    `h2d_gbps`, `d2h_gbps` pinned copies while the other GPUs are idle; `h2d_all_gbps`, `d2h_all_gbps` while
    all GPUs copy.
    `checksum`: of what most of its warps compute in one launch before the load, which is the same launch on
    every GPU; `expected`: of what the CPU computes for it; `checks`: launches under load whose results were
    compared, `mismatches`: threads in them with another result than most warps had before the load;
    `memory_mismatches`: vectors of 16 bytes that the GPU read back differently than it wrote them.
    """

    index: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    ended: Short = LoadEnd.DONE
    message: Str = ""
    seconds: Num = NOT_READ
    samples: Int64 = 0
    limit_mw: Int = NOT_READ
    idle_mw: Num = NOT_READ
    steady_mw: Num = NOT_READ
    max_mw: Int = NOT_READ
    reached_ms: Int = NOT_READ
    start_c: Int = NOT_READ
    steady_c: Num = NOT_READ
    max_c: Int = NOT_READ
    slope_c_per_min: Num = NOT_READ
    memory_start_c: Int = NOT_READ
    memory_steady_c: Num = NOT_READ
    memory_max_c: Int = NOT_READ
    margin_c: Int = NOT_READ
    stop_c: Int = NOT_READ
    stop_margin_c: Int = NOT_READ
    sm_mhz: Num = NOT_READ
    sm_mhz_min: Int = NOT_READ
    memory_mhz: Num = NOT_READ
    generation: Int = NOT_READ
    width: Int = NOT_READ
    reasons_read: Int = NOT_READ
    reasons: Annotated[list[LoadReason], Meta(max_length=MAX_REASONS)] = []
    growth: Growth | None = None
    kernel: Short = ""
    tflops: Num = NOT_READ
    tflops_first: Num = NOT_READ
    memory_gbps: Num = NOT_READ
    h2d_gbps: Num = NOT_READ
    d2h_gbps: Num = NOT_READ
    h2d_all_gbps: Num = NOT_READ
    d2h_all_gbps: Num = NOT_READ
    checksum: Text = NOT_READ
    expected: Text = NOT_READ
    checks: Int64 = 0
    mismatches: Int = NOT_READ
    memory_mismatches: Int = NOT_READ


class LoadSensor(Struct, frozen=True, kw_only=True):
    """A hwmon sensor near 12 V (`in*`, mV) or of power (`power*`, microwatts) before and under load: medians
    `idle` and `loaded`, smallest and largest of all readings under load, and how many there were."""

    chip: Short
    name: Short
    label: Short = ""
    idle: Num = NOT_READ
    loaded: Num = NOT_READ
    min: Num = NOT_READ
    max: Num = NOT_READ
    samples: Int64 = 0


class LoadResult(Struct, frozen=True, kw_only=True):
    """One run of the load probe.

    `seconds`: how long the load was to last; `loaded_seconds`: how long at least one GPU computed; `hz`:
    samples of NVML per second and GPU, as measured.  `expected`: GPUs that the node should have (0 if
    unknown).  `skipped`: a `LoadSkip` if nothing was loaded; `ended`: why the load of the node ended, a
    `LoadEnd` (a single GPU may have ended before), empty if nothing was loaded; `message` explains either.
    """

    seconds: Int64 | float = 0
    loaded_seconds: Num = NOT_READ
    hz: Num = NOT_READ
    expected: Int64 = 0
    skipped: Short = ""
    ended: Short = LoadEnd.DONE
    message: Str = ""
    gpus: Annotated[list[LoadGpu], Meta(max_length=MAX_LOADED)] = []
    sensors: Annotated[list[LoadSensor], Meta(max_length=MAX_LOAD_SENSORS)] = []
