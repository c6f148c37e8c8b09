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
    """A clocks event reason bit under load."""

    bit: Int64
    """The bit's value (nvml.h, nvmlClocksEventReason*)."""
    samples: Int64
    """Samples with it."""
    longest: Int64
    """Most samples in a row with it."""
    first_ms: Int64
    """When it was first seen, ms."""


class LoadGpu(Struct, frozen=True, kw_only=True):
    """One GPU under load.  Bandwidths are in GB/s (1e9)."""

    index: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    """As in `Result.gpus`."""
    ended: Short = LoadEnd.DONE
    """Why its load ended, a `LoadEnd`."""
    message: Str = ""
    """What CUDA or the probe says about that end."""
    seconds: Num = NOT_READ
    """Seconds under load."""
    samples: Int64 = 0
    """Samples of NVML in that time."""
    limit_mw: Int = NOT_READ
    """The enforced power limit, mW."""
    idle_mw: Num = NOT_READ
    """Median draw before the load, mW."""
    steady_mw: Num = NOT_READ
    """Median draw of the steady samples, mW."""
    max_mw: Int = NOT_READ
    """Highest draw, mW."""
    reached_ms: Int = NOT_READ
    """ms until the draw was at 90 % of the limit, or why it never was."""
    start_c: Int = NOT_READ
    """°C in the last sample before the load."""
    steady_c: Num = NOT_READ
    """Median of the steady samples, °C."""
    max_c: Int = NOT_READ
    """Highest, °C."""
    slope_c_per_min: Num = NOT_READ
    """Growth over the steady samples by least squares, °C a minute."""
    memory_start_c: Int = NOT_READ
    """As `start_c`, of the memory."""
    memory_steady_c: Num = NOT_READ
    """As `steady_c`, of the memory."""
    memory_max_c: Int = NOT_READ
    """As `max_c`, of the memory."""
    margin_c: Int = NOT_READ
    """Least distance to the vendor's slowdown, °C."""
    stop_c: Int = NOT_READ
    """Temperature at which the probe stops the load itself, °C."""
    stop_margin_c: Int = NOT_READ
    """Margin at which it does, on the scale of `margin_c`, °C."""
    sm_mhz: Num = NOT_READ
    """SM clock, MHz: median of the steady samples."""
    sm_mhz_min: Int = NOT_READ
    """Lowest SM clock, MHz."""
    memory_mhz: Num = NOT_READ
    """Memory clock, MHz: median of the steady samples."""
    generation: Int = NOT_READ
    """PCIe generation while copying and under load (median)."""
    width: Int = NOT_READ
    """PCIe lanes likewise."""
    reasons_read: Int = NOT_READ
    """Samples in which clocks event reasons could be read."""
    reasons: Annotated[list[LoadReason], Meta(max_length=MAX_REASONS)] = []
    """The reasons that were seen."""
    growth: Growth | None = None
    """Throttle counters and energy, from before the load until after it."""
    kernel: Short = ""
    """What computes: `f16-m16n8k16` (inputs, shape of the tensor core instruction) or `f32-fma`."""
    tflops: Num = NOT_READ
    """1e12 operations a second in the median launch of an interval, median of the last third of intervals.  A
    multiplication with addition counts two."""
    tflops_first: Num = NOT_READ
    """The same in the first interval."""
    memory_gbps: Num = NOT_READ
    """Copies within its memory, read plus written, in the fastest of several rounds."""
    h2d_gbps: Num = NOT_READ
    """Pinned copies from the host while the other GPUs are idle."""
    d2h_gbps: Num = NOT_READ
    """Pinned copies to the host while the other GPUs are idle."""
    h2d_all_gbps: Num = NOT_READ
    """Pinned copies from the host while all GPUs copy."""
    d2h_all_gbps: Num = NOT_READ
    """Pinned copies to the host while all GPUs copy."""
    checksum: Text = NOT_READ
    """What most of its warps compute in one launch before the load, which is the same on every GPU."""
    expected: Text = NOT_READ
    """What the CPU computes for that launch."""
    checks: Int64 = 0
    """Launches under load whose results were compared."""
    mismatches: Int = NOT_READ
    """Threads in them with another result than most warps had before the load."""
    memory_mismatches: Int = NOT_READ
    """Vectors of 16 bytes that the GPU read back differently than it wrote them."""


class LoadSensor(Struct, frozen=True, kw_only=True):
    """A hwmon sensor near 12 V (`in*`, mV) or of power (`power*`, microwatts) before and under load."""

    chip: Short
    """The driver's name of the chip."""
    name: Short
    """The sensor's, as `in1`."""
    label: Short = ""
    """Its label; empty if there is none."""
    idle: Num = NOT_READ
    """Median before the load."""
    loaded: Num = NOT_READ
    """Median under load."""
    min: Num = NOT_READ
    """Smallest under load."""
    max: Num = NOT_READ
    """Largest under load."""
    samples: Int64 = 0
    """Readings under load."""


class Storage(Struct, frozen=True, kw_only=True):
    """Reads from the folder that the policy names, past the page cache.  GB/s are 1e9 bytes a second."""

    path: Str = ""
    """The folder, as the node calls it."""
    filesystem: Short = ""
    """Type of its file system; empty if unknown."""
    device: Short = ""
    """The kernel's name of the block device behind it; empty if unknown."""
    numa_node: Int = NOT_READ
    """NUMA node of that device."""
    read_gbps: Num = NOT_READ
    """Reads of 1 MiB by several threads."""
    write_gbps: Num = NOT_READ
    """Writes, of the run that made the file; not read in any other."""
    bytes: Int64 = 0
    """How much was read."""
    seconds: Num = NOT_READ
    """How long reading took."""
    problem: Str = ""
    """Why there is no `read_gbps`, and what to do; empty if there is one."""


class LoadResult(Struct, frozen=True, kw_only=True):
    """One run of the load probe."""

    seconds: Int64 | float = 0
    """How long the load was to last."""
    loaded_seconds: Num = NOT_READ
    """How long at least one GPU computed."""
    hz: Num = NOT_READ
    """Samples of NVML per second, as measured, of the GPU with the fewest."""
    expected: Int64 = 0
    """GPUs that the node should have; 0 if unknown."""
    skipped: Short = ""
    """A `LoadSkip` if nothing was loaded; else empty."""
    ended: Short = LoadEnd.DONE
    """Why the load of the node ended, a `LoadEnd`; empty if nothing was loaded.  A single GPU may have ended
    before."""
    message: Str = ""
    """Explains `skipped` or `ended`."""
    gpus: Annotated[list[LoadGpu], Meta(max_length=MAX_LOADED)] = []
    """The GPUs that were loaded."""
    sensors: Annotated[list[LoadSensor], Meta(max_length=MAX_LOAD_SENSORS)] = []
    """Supply sensors before and under load."""
    storage: Storage | None = None
    """What the storage gives that models could be offloaded to; None if nobody asked for it."""
