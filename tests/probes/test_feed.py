"""The feed probe: what GPUs do over a window, what the machine gives them, and what of it cannot be seen.

Texts of /proc are of a 6.18 kernel, cut to two CPUs; folders of control groups as the kubelet makes them with
systemd (version 2) and cgroupfs (version 1).
"""

import re
from pathlib import Path
from typing import Any

import pytest

from nodegauge_contract import (
    FeedGpu,
    FeedHost,
    FeedPressure,
    FeedResult,
    Result,
    Unavailable,
    decode,
    text,
)
from nodegauge_contract.feed import FeedDisk, FeedGroup, FeedPort
from nodegauge_contract.reading import PART_BYTES
from nodegauge_probes.feed import dcgm
from nodegauge_probes.feed.gpus import GpuWindow, swings
from nodegauge_probes.feed.host import Counters
from nodegauge_probes.feed.window import MOMENT_S, Moment, News, Roots, build
from support.probing import PROGRAM, Probe

UID = "0b1f6b43-7a3e-4e25-9d53-6f1f7e1a2b3c"
SECOND = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice"
FIRST = f"kubepods/burstable/pod{UID}"


def write(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


def machine(at: int) -> dict[str, str]:
    """/proc after `at` seconds: CPU 0 works all the time, CPU 1 waits for a disk that reads 200 MB/s."""
    busy, us = 100 * at, 1_000_000 * at
    pressure = (
        "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total={}\n"
    )
    sectors = 200_000_000 * at // 512
    return {
        "stat": f"cpu  {busy} 0 0 0 {busy} 0 0 0 0 0\ncpu0 {busy} 0 0 0 0 0 0 0 0 0\n"
        f"cpu1 0 0 0 0 {busy} 0 0 0 0 0\nintr 1 2 3\nprocs_running 3\nprocs_blocked 1\n",
        "pressure/cpu": pressure.format(us // 4, 0),
        "pressure/io": pressure.format(us * 9 // 10, us // 2),
        "pressure/memory": pressure.format(0, 0),
        "meminfo": "MemTotal:       1048576 kB\nMemAvailable:    524288 kB\nCached:    262144 kB\n",
        "vmstat": f"pswpin 0\npswpout 0\nworkingset_refault_file {100 * at}\npgsteal_direct {10 * at}\n",
        "diskstats": f" 259 0 nvme0n1 {10 * at} 0 {sectors} {50 * at} 0 0 0 0 1 {950 * at} 0 0 0 0 0\n"
        f" 259 1 nvme0n1p1 {10 * at} 0 {sectors} {50 * at} 0 0 0 0 1 {950 * at} 0\n"
        " 7 0 loop0 9 0 9 9 0 0 0 0 0 9 0\n",
        "net/dev": f"Inter-|\n face |\n lo: {at} 0 0 0 0 0 0 0 {at} 0 0 0 0 0 0 0\n"
        f" eth0: {5_000_000 * at} 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n",
        "self/mountstats": "device rootfs mounted on / with fstype rootfs\n"
        f"device nas:/d mounted on /d with fstype nfs4\n\tbytes:\t0 0 0 0 {7_000_000 * at} 0 0 0\n",
    }


def second(at: int) -> dict[str, str]:
    """Control groups of version 2: a container may use 2 CPUs, and is stopped in 6 of 10 periods."""
    stopped = f"nr_periods {10 * at}\nnr_throttled {6 * at}\nthrottled_usec {300_000 * at}\n"
    return {
        "cgroup.controllers": "cpuset cpu io memory pids\n",
        f"{SECOND}/cpu.stat": f"usage_usec {2_000_000 * at}\nnr_periods 0\nnr_throttled 0\n",
        f"{SECOND}/cpu.max": "max 100000\n",
        f"{SECOND}/cri-a.scope/cpu.stat": f"usage_usec {2_000_000 * at}\n{stopped}",
        f"{SECOND}/cri-a.scope/cpu.max": "200000 100000\n",
        f"{SECOND}/cpuset.cpus.effective": "0-3,8\n",
        f"{SECOND}/cpu.pressure": f"some avg10=0 avg60=0 avg300=0 total={600_000 * at}\n",
        f"{SECOND}/memory.current": "1073741824\n",
        f"{SECOND}/memory.max": "max\n",
        f"{SECOND}/memory.stat": f"anon 1\nworkingset_refault_file {50 * at}\n",
        f"{SECOND}/io.stat": f"259:0 rbytes={3_000_000 * at} wbytes=0 rios=1\n",
    }


def first(at: int) -> dict[str, str]:
    """The same by version 1, where the pod itself has the quota."""
    stat = f"nr_periods {10 * at}\nnr_throttled {6 * at}\nthrottled_time {300_000_000 * at}\n"
    return {
        f"cpu,cpuacct/{FIRST}/cpu.stat": stat,
        f"cpu,cpuacct/{FIRST}/cpu.cfs_quota_us": "200000\n",
        f"cpu,cpuacct/{FIRST}/cpu.cfs_period_us": "100000\n",
        f"cpu,cpuacct/{FIRST}/cpuacct.usage": f"{2_000_000_000 * at}\n",
        f"cpuset/{FIRST}/cpuset.cpus": "0-3,8\n",
        f"unified/{FIRST}/cpu.pressure": f"some avg10=0 avg60=0 avg300=0 total={600_000 * at}\n",
        f"memory/{FIRST}/memory.usage_in_bytes": "1073741824\n",
        f"memory/{FIRST}/memory.limit_in_bytes": "9223372036854771712\n",
        f"memory/{FIRST}/memory.stat": f"cache 1\nworkingset_refault_file {50 * at}\n",
        f"blkio/{FIRST}/blkio.throttle.io_service_bytes": f"259:0 Read {3_000_000 * at}\nTotal 9\n",
    }


def window(folder: Path, *, before: dict[str, str], after: dict[str, str], groups: Any = None) -> FeedResult:
    """Ten seconds of a machine whose files read so."""
    now = iter((100.0, 110.0))
    roots = Roots(procfs=folder / "proc", sysfs=folder / "sys", groups=folder / "cg" if groups else None)
    write(folder / "sys/class/block/nvme0n1p1", {"partition": "1\n"})
    moments = []
    for proc, group in ((before, groups and groups(100)), (after, groups and groups(110))):
        write(folder / "proc", proc)
        write(folder / "cg", group or {})
        moments.append(roots.moment(clock=lambda: next(now)))
    return build([FeedGpu(index=0)], moments, seconds=10)


def test_a_window_is_the_growth_of_the_machines_counters(tmp_path: Path) -> None:
    seen = window(tmp_path, before=machine(100), after=machine(110))
    host = seen.host
    assert (host.cpus, host.cpu_busy, host.cpu_iowait, host.busiest_cpus) == (2, 0.5, 0.5, 1)
    assert (host.runnable, host.blocked, host.cpu_steal) == (3, 1, 0)
    assert host.pressure == FeedPressure(cpu=0.25, io=0.9, io_full=0.5, memory=0, memory_full=0)
    assert (host.memory_mib, host.available_mib, host.cached_mib) == (1024, 512, 256)
    assert (host.swap_mbps, host.refaults, host.reclaimed) == (0, 100, 10)
    assert (host.network_mounts, host.network_read_mbps) == (1, 7)
    (disk,), (port,) = seen.disks, seen.ports
    assert (disk.name, disk.busy_share, disk.reads, disk.read_wait_ms) == ("nvme0n1", 0.95, 10, 5)
    assert (disk.read_mbps, disk.write_mbps) == (pytest.approx(200, rel=1e-3), 0)
    assert (port.name, port.rx_mbps, port.tx_mbps) == ("eth0", 5, 0)
    assert isinstance(port.rate_gbps, Unavailable)
    assert "controlGroups" in seen.groups_unread


@pytest.mark.parametrize("groups", [first, second], ids=["version 1", "version 2"])
def test_the_group_that_its_quota_stops_most_speaks_for_its_pod(tmp_path: Path, groups: Any) -> None:
    (pod,) = window(tmp_path, before=machine(100), after=machine(110), groups=groups).groups
    assert (pod.pod_uid, pod.cpu_cores, pod.cpu_quota, pod.cpuset) == (UID, 2, 2, 5)
    assert (pod.throttled_share, pod.throttled_cores, pod.pressure.cpu) == (0.6, 0.3, 0.6)
    assert (pod.memory_mib, pod.read_mbps, pod.refaults) == (1024, 3, 50)
    assert pod.memory_limit_mib == Unavailable("no limit")


def test_what_cannot_be_read_is_a_reason_and_no_zero(tmp_path: Path) -> None:
    """A kernel without pressure, counters that went back, a disk that came, text that is no number."""
    after = machine(90) | {"diskstats": " 8 0 sdb 1 0 1 1 0 0 0 0 0 1 0\n", "meminfo": "MemTotal: lots\n"}
    (tmp_path / "proc/pressure/io").mkdir(parents=True)
    before = {name: content for name, content in machine(100).items() if "pressure" not in name}
    after = {name: content for name, content in after.items() if "pressure" not in name}
    seen = window(tmp_path, before=before, after=after, groups=lambda at: {"cgroup.controllers": "cpu\n"})
    host = seen.host
    unread = (host.cpu_busy, host.refaults, host.network_read_mbps, host.memory_mib, host.pressure.cpu)
    assert all(isinstance(value, Unavailable) for value in (*unread, host.pressure.io))
    assert "reset" in str(host.refaults)
    assert (seen.disks, seen.groups) == ([], [])
    assert "no pod" in seen.groups_unread
    late = build([FeedGpu(index=0)], [], seconds=120)
    assert "not read in time" in str(late.host.cpu_busy)
    moments = [Moment(at=at, counters=Counters(), groups={}) for at in (0, 50)]
    half = build([], moments, seconds=120, failure="OSError: I/O error")
    assert half.groups_unread == str(half.host.pressure.io.unavailable) == "OSError: I/O error"


def test_the_largest_machine_fits_into_its_part() -> None:
    """64 GPUs, 24 pods, every number at its longest."""

    def full(kind: Any, **own: Any) -> Any:
        other = {"index", "name", "pod_uid", *own}
        types = {name: kind.__annotations__[name] for name in kind.__struct_fields__ if name not in other}
        return kind(**own, **{name: 0.1234 if what == "Num" else 1234567 for name, what in types.items()})

    pressure = full(FeedPressure)
    gpus = [full(FeedGpu, index=index, utilization=12.34 + index) for index in range(64)]
    groups = [full(FeedGroup, pod_uid=f"{UID[:-2]}{n}", pressure=pressure) for n in range(10, 34)]
    feed = FeedResult(
        gpus=gpus,
        host=full(FeedHost, pressure=pressure),
        disks=[full(FeedDisk, name=f"nvme{n}n1") for n in range(32)],
        ports=[full(FeedPort, name=f"mlx5_{n}/1") for n in range(32)],
        groups=groups,
    )
    document = text(Result(probe="feed", feed=feed))
    assert len(document) <= PART_BYTES["feed"]
    assert decode(document).feed == feed


class Feed(Probe):
    def command(self, *options: str) -> list[str]:
        return [*PROGRAM, "feed", "--seconds", "1", *options]


def test_a_run_reads_one_window_of_real_calls(probe: Any) -> None:
    made: Probe = probe("h100-sxm-8")
    made.hardware.load(100, gpu=0)
    made.hardware.load(30, gpu=1)
    runs = Feed(hardware=made.hardware, folder=made.folder)
    feed = runs.result().feed
    busy, partly, idle = feed.gpus[:3]
    assert (busy.utilization, partly.utilization, idle.utilization) == (100, 30, 0)
    assert (busy.full_share, idle.idle_share, idle.swings) == (1, 1, 0)
    assert busy.pcie_link_mbps == pytest.approx(16 * 3938.5, rel=1e-3)
    assert busy.pcie_rx_mbps == busy.pcie_rx_max_mbps == busy.pcie_tx_mbps == 1000
    assert (busy.slowed_share, busy.memory_utilization, busy.processes, busy.numa) == (0, 50, 0, 0)
    assert 650_000 < busy.power_mw <= busy.limit_mw == 700_000
    assert busy.sm_mhz > idle.sm_mhz > 0
    assert busy.memory_used_mib >= 0
    assert {str(busy.sm_active), str(busy.tensor_active)} == {str(dcgm.UNASKED)}
    page = runs.run("--format", "table").stdout
    assert re.search(r"^0 +100 % +0 % +100 %", page, re.M), page
    assert "Pods: the container does not see" in page


BUSY, IDLE, HALF = 95.0, 0.0, 55.0


def work(*utilization: float) -> list[FeedResult]:
    host = FeedHost(pressure=FeedPressure(cpu=0.05, io=0, memory=0))
    return [FeedResult(gpus=[FeedGpu(index=0, utilization=value)], host=host) for value in utilization]


def stalls(*shares: float) -> list[FeedResult]:
    hosts = (FeedHost(pressure=FeedPressure(io=io)) for io in shares)
    return [FeedResult(gpus=[FeedGpu(index=0)], host=host) for host in hosts]


@pytest.mark.parametrize(
    ("windows", "seconds", "reasons"),
    [
        (work(BUSY, BUSY, BUSY), 120, ["first", "", ""]),
        (work(BUSY, HALF, BUSY), 120, ["first", "", ""]),
        (work(BUSY, HALF, HALF, HALF), 120, ["first", "", "changed", ""]),
        (work(BUSY, BUSY, 72, 72), 120, ["first", "", "", ""]),
        (work(IDLE, *(IDLE,) * 30), 120, ["first", *[""] * 29, "due"]),
        (work(BUSY, *(HALF,) * 4), 30, ["first", "", "", "", "changed"]),
        (stalls(0.05, 0.15, 0.3, 0.3, 0.15, 0.15), 120, ["first", "", "", "changed", "", ""]),
    ],
    ids=["calm", "one pause", "starved from now on", "about a limit", "once an hour", "quick", "stalls"],
)
def test_a_window_is_told_if_two_in_a_row_differ(
    windows: list[FeedResult], seconds: float, reasons: list[str]
) -> None:
    """Two minutes after the last one at the earliest."""
    news = News(interval=3600)
    assert [news.reason(seen, now=seconds * n) for n, seen in enumerate(windows)] == reasons


@pytest.mark.parametrize(
    ("readings", "share"),
    [
        ([{(0, "sm_active"): 0.2}, {(0, "sm_active"): 0.4}], 0.3),
        ([Unavailable("dcgm-exporter: refused")], Unavailable("dcgm-exporter: refused")),
        ([{(1, "sm_active"): 0.2}], Unavailable("dcgm-exporter does not name this GPU")),
    ],
)
def test_profiling_fields_are_means_over_the_window(readings: Any, share: Any) -> None:
    (gpu,) = dcgm.added([FeedGpu(index=0)], readings)
    assert gpu.sm_active == (share if isinstance(share, Unavailable) else pytest.approx(share))


def test_an_exporter_is_read_with_bounds(tmp_path: Path) -> None:
    labels = 'gpu="{}",UUID="GPU-1",modelName="NVIDIA H100"'
    lines = [
        f"DCGM_FI_PROF_SM_ACTIVE{{{labels.format(0)}}} 0.25",
        f"DCGM_FI_PROF_SM_ACTIVE{{{labels.format(1)}}} NaN",
        f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{labels.format(0)}}} 1e9",
        f"DCGM_FI_DEV_GPU_UTIL{{{labels.format(0)}}} 100",
    ]
    write(tmp_path, {"metrics": "\n".join(lines), "others": "nothing of it"})
    assert dcgm.read((tmp_path / "metrics").as_uri()) == {(0, "sm_active"): 0.25}
    assert isinstance(dcgm.read((tmp_path / "others").as_uri()), Unavailable)
    assert isinstance(dcgm.read("http://127.0.0.1:1/metrics"), Unavailable)
    assert dcgm.read("") == dcgm.UNASKED


def test_a_swing_goes_from_above_half_to_below_a_fifth_or_back() -> None:
    assert swings([100, 40, 100, 0, 30, 100, 100]) == 2


def test_a_machine_without_gpus_that_answer_has_an_empty_window() -> None:
    assert GpuWindow().close(None, [], seconds=MOMENT_S, sysfs=Path("/none")) == []  # type: ignore[arg-type]
