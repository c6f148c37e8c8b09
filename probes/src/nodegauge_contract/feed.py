"""What the GPUs of a node did over one window, and what the machine gave them: readings of the feed probe.

Raw means and shares with units and no verdicts: whether a GPU starved, and of what, is the judge's to say.
A share is a number from 0 to 1 of the window.  Rates are means over the window.  Everything is read without
privileges: NVML, `/proc` and `/sys`; control groups only where the policy shows them to the container.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from nodegauge_contract.values import NOT_READ, Int, Int64, Num, Short, Str, Text

MAX_FED = 64
MAX_FEED_DISKS = 32
MAX_FEED_PORTS = 32
MAX_FEED_GROUPS = 24


class FeedGpu(Struct, frozen=True, kw_only=True):
    """One GPU over the window."""

    index: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    """NVML index."""
    samples: Int64 = 0
    """Samples of the utilisation in the window."""
    utilization: Num = NOT_READ
    """Mean of NVML's `gpu` utilisation, %: share of time in which any kernel ran (nvml.h)."""
    idle_share: Num = NOT_READ
    """Share of samples with 1 % or less."""
    full_share: Num = NOT_READ
    """Share of samples with 95 % or more."""
    swings: Int = NOT_READ
    """How often the utilisation went from above 50 % to below 20 % or back."""
    memory_utilization: Num = NOT_READ
    """Mean of NVML's `memory` utilisation, %: share of time in which memory was read or written."""
    memory_used_mib: Int = NOT_READ
    """Used memory at the end of the window, MiB."""
    power_mw: Num = NOT_READ
    """Mean draw, mW; by the energy counter where there is one."""
    limit_mw: Int = NOT_READ
    """The enforced power limit, mW."""
    sm_mhz: Num = NOT_READ
    """Mean SM clock, MHz."""
    slowed_share: Num = NOT_READ
    """Share of samples slowed down by heat, power brake or hardware (clocks event reasons 0x20, 0x40, 0x80,
    0x8; not the software power cap)."""
    pcie_rx_mbps: Num = NOT_READ
    """Mean of NVML's PCIe throughput into the GPU, MB/s (1e6)."""
    pcie_tx_mbps: Num = NOT_READ
    """The same out of the GPU."""
    pcie_rx_max_mbps: Num = NOT_READ
    """The largest sample into the GPU, MB/s."""
    pcie_link_mbps: Num = NOT_READ
    """What its link carries at its present width and its largest generation, one way, MB/s."""
    processes: Int = NOT_READ
    """Processes that compute on it (nvmlDeviceGetComputeRunningProcesses), at the end of the window."""
    numa: Int = NOT_READ
    """Its NUMA node; -1 where the machine has none."""
    sm_active: Num = NOT_READ
    """Share of time and of its SMs with a warp (DCGM_FI_PROF_SM_ACTIVE), 0 to 1."""
    tensor_active: Num = NOT_READ
    """Share of time in which a tensor core was in use (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE), 0 to 1."""


class FeedPressure(Struct, frozen=True, kw_only=True):
    """Pressure stall information (Documentation/accounting/psi.rst): growth of `total` over the window, as
    shares: `some` of the tasks were stalled, or all (`full`)."""

    cpu: Num = NOT_READ
    """`some` of cpu."""
    io: Num = NOT_READ
    """`some` of io."""
    io_full: Num = NOT_READ
    """`full` of io."""
    memory: Num = NOT_READ
    """`some` of memory."""
    memory_full: Num = NOT_READ
    """`full` of memory."""


class FeedDisk(Struct, frozen=True, kw_only=True):
    """One block device that is no partition and no loop device, from /proc/diskstats."""

    name: Short
    """The kernel's."""
    read_mbps: Num = NOT_READ
    """Read, MB/s."""
    write_mbps: Num = NOT_READ
    """Written, MB/s."""
    reads: Num = NOT_READ
    """Completed reads a second."""
    busy_share: Num = NOT_READ
    """Share of the window with a request under way (field 10)."""
    read_wait_ms: Num = NOT_READ
    """Mean time of a read from its queue to its end, ms."""


class FeedPort(Struct, frozen=True, kw_only=True):
    """One network interface or RDMA port that carried data."""

    name: Short
    """The kernel's, `mlx5_0/1` for an RDMA port."""
    rx_mbps: Num = NOT_READ
    """Received, MB/s."""
    tx_mbps: Num = NOT_READ
    """Sent, MB/s."""
    rate_gbps: Num = NOT_READ
    """Its rate, Gb/s."""


class FeedGroup(Struct, frozen=True, kw_only=True):
    """One pod's control group (version 1 or 2), over the window."""

    pod_uid: Short
    """UID of the pod, as the folder's name has it."""
    cpu_cores: Num = NOT_READ
    """Cores used, mean."""
    cpu_quota: Num = NOT_READ
    """Cores allowed by its quota; unavailable for none."""
    throttled_share: Num = NOT_READ
    """Share of its periods in which the quota stopped it (`nr_throttled` of `nr_periods`)."""
    throttled_cores: Num = NOT_READ
    """Time for which the quota stopped it, seconds of all its threads a second."""
    cpuset: Int = NOT_READ
    """CPUs that it may run on."""
    pressure: FeedPressure = FeedPressure()
    """The group's own."""
    memory_mib: Int = NOT_READ
    """Used memory at the end, MiB."""
    memory_limit_mib: Int = NOT_READ
    """Its limit, MiB; unavailable for none."""
    read_mbps: Num = NOT_READ
    """Read from block devices, MB/s."""
    refaults: Num = NOT_READ
    """Pages a second of the page cache that were dropped and read again (`workingset_refault_file`)."""


class FeedHost(Struct, frozen=True, kw_only=True):
    """The machine over the window.  CPU shares are of all CPUs together."""

    cpus: Int = NOT_READ
    """CPUs that are online."""
    cpu_busy: Num = NOT_READ
    """Share in user, system, irq and nice."""
    cpu_iowait: Num = NOT_READ
    """Share idle while a task waited for I/O."""
    cpu_steal: Num = NOT_READ
    """Share that the hypervisor took."""
    busiest_cpus: Int = NOT_READ
    """CPUs that were busy for 90 % of the window or more."""
    runnable: Num = NOT_READ
    """Mean number of tasks that ran or were ready to run."""
    blocked: Num = NOT_READ
    """Mean number of tasks that waited for I/O (`procs_blocked`)."""
    pressure: FeedPressure = FeedPressure()
    """/proc/pressure."""
    memory_mib: Int = NOT_READ
    """MemTotal."""
    available_mib: Int = NOT_READ
    """MemAvailable at the end."""
    cached_mib: Int = NOT_READ
    """Page cache at the end."""
    swap_mbps: Num = NOT_READ
    """Swapped in and out, MB/s."""
    refaults: Num = NOT_READ
    """Pages a second of the page cache that were dropped and read again (`workingset_refault_file`)."""
    reclaimed: Num = NOT_READ
    """Pages a second that tasks had to free themselves (`pgsteal_direct`)."""
    network_mounts: Int = NOT_READ
    """Network file systems whose traffic can be seen (/proc/self/mountstats, /proc/net/rpc), 0 for none."""
    network_read_mbps: Num = NOT_READ
    """Read from them, MB/s."""


class FeedResult(Struct, frozen=True, kw_only=True):
    """One window."""

    seconds: Num = NOT_READ
    """Length of the window."""
    source: Text = NOT_READ
    """Where `sm_active` comes from: `dcgm`, or why there is none."""
    gpus: Annotated[list[FeedGpu], Meta(max_length=MAX_FED)] = []
    """GPUs that could be read."""
    host: FeedHost = FeedHost()
    """The machine."""
    disks: Annotated[list[FeedDisk], Meta(max_length=MAX_FEED_DISKS)] = []
    """Busiest first."""
    ports: Annotated[list[FeedPort], Meta(max_length=MAX_FEED_PORTS)] = []
    """Busiest first."""
    groups: Annotated[list[FeedGroup], Meta(max_length=MAX_FEED_GROUPS)] = []
    """Pods whose control group the container sees, most CPU first."""
    groups_unread: Str = ""
    """Why no control group can be seen; empty if they can."""
