"""Episodes that this machine cannot make, and their sound neighbours: windows drawn from what hardware does.

They are written from what kernels, file systems and GPUs are documented to do, not from the judge's limits:

- power of a GPU follows its utilisation between idle and limit (data sheets: T4 70 W, L40S 350 W, A100
  400 W, H100 700 W); kernels that fill it draw 60 to 100 % of the limit, tiny ones 15 to 35 % (NVML counts
  any kernel: nvml.h; stas00/ml-engineering, compute/accelerator/nvidia/debug.md);
- a task that waits for a page of any file system, NFS and Lustre too, waits in `io_schedule` and counts as
  I/O stall (Documentation/accounting/psi.rst); local disks are idle then;
- published rates: a PCIe link carries 75 to 90 % of its rate at best; NFS on 10 to 100 Gb/s; an HDD 150,
  SATA 550, NVMe 3,000 to 14,000 MB/s (MLPerf Storage v1.0 asks 2.8 GB/s for each H100 with U-Net3D);
- GPUs that wait for another one in NCCL spin in its kernel: full utilisation, little power, and hardly any
  memory traffic.

A cause is generated alone or with what comes with it: other pods that fill CPUs or disks, evidence that a
container does not see, jobs of several GPUs.
"""

import random
import uuid
from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from episodes import SOUND, WINDOW_S, Episode, Origin
from nodegauge_contract import (
    FeedDisk,
    FeedGpu,
    FeedGroup,
    FeedHost,
    FeedPort,
    FeedPressure,
    FeedResult,
    Num,
    Result,
    Unavailable,
)
from nodegauge_judge.feed.case import FeedPod

NO_PRESSURE = Unavailable("no pressure stall information: no cpu")
UNSEEN = Unavailable("not visible in this container")
MODELS = ((70, 10, 3, 8), (350, 35, 4, 16), (400, 55, 4, 16), (700, 70, 5, 16))
"""Limit and idle in W, PCIe generation and width: T4, L40S, A100, H100."""
LANE = {3: 984.6, 4: 1969.2, 5: 3938.5}
DISKS = (("sda", 150.0), ("sda", 550.0), ("nvme0n1", 3000.0), ("nvme1n1", 7000.0))


class Scene(Struct, kw_only=True):
    """A machine with one job, before something is wrong with it; recipes change it."""

    rng: random.Random
    gpus: list[FeedGpu] = []
    host: dict[str, Any] = {}
    pressure: dict[str, Num] = {}
    disks: list[FeedDisk] = []
    ports: list[FeedPort] = []
    group: dict[str, Any] = {}
    cpus: int = 64
    kind: str = ""

    def between(self, low: float, high: float) -> float:
        """A number of this episode."""
        return self.rng.uniform(low, high)


def _scene(rng: random.Random) -> Scene:
    """A quiet machine whose loaders use a few cores and read a little."""
    cpus, count = rng.choice((16, 32, 64, 96, 128, 192)), rng.choice((1, 2, 4, 8))
    limit, idle, generation, width = rng.choice(MODELS)
    used = rng.uniform(0.05, 0.45)
    memory, clock = cpus * 4096, rng.uniform(1300, 1900)
    name, _ = rng.choice(DISKS)
    blocked = rng.uniform(0, 0.3)
    scene = Scene(rng=rng, cpus=cpus)
    scene.gpus = [
        FeedGpu(
            index=index,
            samples=60,
            limit_mw=limit * 1000,
            power_mw=float(idle * 1000),
            sm_mhz=clock * rng.uniform(0.985, 1.0),
            slowed_share=0.0,
            memory_used_mib=rng.randrange(8_000, 38_000) if limit > 70 else rng.randrange(4_000, 14_000),
            pcie_rx_mbps=rng.uniform(20, 900),
            pcie_tx_mbps=rng.uniform(5, 300),
            pcie_rx_max_mbps=rng.uniform(900, 4000),
            pcie_link_mbps=LANE[generation] * width,
            processes=1,
            numa=index * 2 // count if count > 1 else 0,
            sm_active=UNSEEN,
            tensor_active=UNSEEN,
        )
        for index in range(count)
    ]
    scene.host = {
        "cpus": cpus,
        "cpu_busy": used,
        "cpu_iowait": blocked / cpus * rng.uniform(0.3, 0.9),
        "cpu_steal": rng.choice((0.0, rng.uniform(0, 0.02))),
        "busiest_cpus": rng.randrange(0, 2),
        "runnable": cpus * used * rng.uniform(0.8, 1.1),
        "blocked": blocked,
        "memory_mib": memory,
        "available_mib": int(memory * rng.uniform(0.3, 0.8)),
        "cached_mib": int(memory * rng.uniform(0.1, 0.3)),
        "swap_mbps": 0.0,
        "refaults": rng.uniform(0, 300),
        "reclaimed": rng.uniform(0, 50),
        "network_mounts": 0,
        "network_read_mbps": Unavailable("no NFS mount in this container"),
    }
    scene.pressure = {
        "cpu": rng.uniform(0.0, 0.08),
        "io": rng.uniform(0.0, 0.06),
        "io_full": rng.uniform(0.0, 0.02),
        "memory": rng.uniform(0.0, 0.005),
        "memory_full": 0.0,
    }
    scene.disks = [
        _disk(name, read=rng.uniform(1, 80), busy=rng.uniform(0.0, 0.15), wait=rng.uniform(0.1, 2))
    ]
    rate = rng.choice((10.0, 25.0, 100.0))
    scene.ports = [
        FeedPort(name="eth0", rx_mbps=rng.uniform(1, 60), tx_mbps=rng.uniform(1, 30), rate_gbps=rate)
    ]
    scene.group = {
        "cpu_cores": cpus * used * rng.uniform(0.5, 0.95),
        "cpu_quota": Unavailable("no limit"),
        "throttled_share": Unavailable("no limit"),
        "throttled_cores": Unavailable("no limit"),
        "cpuset": cpus,
        "pressure": FeedPressure(cpu=rng.uniform(0.0, 0.08), io=rng.uniform(0, 0.05), memory=0.0),
        "memory_mib": 20_000,
        "memory_limit_mib": Unavailable("no limit"),
        "read_mbps": rng.uniform(1, 60),
        "refaults": rng.uniform(0, 100),
    }
    return scene


def _disk(name: str, *, read: float, busy: float, wait: float, write: float = 1.0) -> FeedDisk:
    reads = read / 0.128
    return FeedDisk(
        name=name, read_mbps=read, write_mbps=write, reads=reads, busy_share=busy, read_wait_ms=wait
    )


def _power(gpu: FeedGpu, share: float) -> float:
    """mW at this share of the way from idle to limit."""
    return _known(gpu.power_mw) + (_known(gpu.limit_mw) - _known(gpu.power_mw)) * share


def _starved(scene: Scene, low: float = 0.1, high: float = 0.6) -> None:
    """Every GPU has a batch for a part of the time; its kernels fill it then."""
    part, fill = scene.between(low, high), scene.between(0.6, 0.95)
    period = scene.between(0.2, 6.0)
    for n, gpu in enumerate(scene.gpus):
        own = min(0.95, part * scene.between(0.95, 1.05))
        # a sample covers up to a second: with batches of minutes it is empty or full, with quick ones partial
        split = min(1.0, period / 2)
        scene.gpus[n] = replace(
            gpu,
            utilization=100 * own,
            idle_share=(1 - own) * split * scene.between(0.6, 1.0),
            full_share=own * split * scene.between(0.4, 0.9),
            swings=int(60 * min(own, 1 - own) * split * scene.between(0.5, 1.4)),
            memory_utilization=100 * own * scene.between(0.3, 0.6),
            power_mw=_power(gpu, own * fill),
        )


def _fed(scene: Scene) -> None:
    """Every GPU works all the time."""
    fill = scene.between(0.55, 0.97)
    for n, gpu in enumerate(scene.gpus):
        scene.gpus[n] = replace(
            gpu,
            utilization=scene.between(93, 100),
            idle_share=scene.between(0.0, 0.02),
            full_share=scene.between(0.7, 1.0),
            swings=scene.rng.randrange(0, 3),
            memory_utilization=scene.between(25, 75),
            power_mw=_power(gpu, fill * scene.between(0.97, 1.03)),
        )


def _stalls(scene: Scene, **pressure: float) -> None:
    """The machine's pressure, and that of the job's group, which has most of it."""
    scene.pressure |= pressure
    own = {name: value for name, value in pressure.items() if name != "io_full"}
    group = scene.group["pressure"]
    scene.group["pressure"] = replace(
        group, **{k: min(1.0, v * scene.between(0.9, 1.05)) for k, v in own.items()}
    )


def _cores(scene: Scene) -> None:
    _starved(scene)
    kind = scene.rng.choice(("all cores", "a cpuset", "busy neighbours"))
    scene.kind = f"too few cores: {kind}"
    if kind == "a cpuset":
        few = max(2, scene.cpus // scene.rng.choice((4, 8)))
        cores = few * scene.between(0.92, 1.0)
        scene.group |= {"cpuset": few, "cpu_cores": cores}
        scene.host |= {"cpu_busy": cores / scene.cpus + scene.between(0, 0.1), "busiest_cpus": few}
        _stalls(scene, cpu=scene.between(0.35, 0.9))
        return
    busy = scene.between(0.93, 1.0)
    own = 0.9 if kind == "all cores" else scene.between(0.08, 0.35)
    scene.group["cpu_cores"] = scene.cpus * busy * own
    most = int(scene.cpus * scene.between(0.7, 1.0))
    scene.host |= {"cpu_busy": busy, "busiest_cpus": most, "runnable": scene.cpus * scene.between(1.2, 3.5)}
    _stalls(scene, cpu=scene.between(0.4, 0.95))


def _quota(scene: Scene) -> None:
    """Threads that a quota stops stay runnable: pressure rises while CPUs are free."""
    _starved(scene)
    scene.kind = "a quota"
    cores = scene.rng.choice((1.0, 2.0, 4.0, 8.0))
    cores = min(cores, scene.cpus / 4)
    scene.group |= {
        "cpu_quota": cores,
        "cpu_cores": cores * scene.between(0.85, 1.0),
        "throttled_share": scene.between(0.4, 0.98),
        "throttled_cores": cores * scene.between(0.5, 4.0),
    }
    others = scene.between(0.0, 0.4)
    scene.host["cpu_busy"] = min(0.7, cores / scene.cpus + others)
    scene.host["runnable"] = scene.cpus * scene.host["cpu_busy"] * scene.between(0.9, 1.1)
    _stalls(scene, cpu=scene.between(0.35, 0.95))


def _storage(scene: Scene) -> None:
    _starved(scene)
    name, rate = scene.rng.choice(DISKS)
    small = scene.rng.random() < 0.4
    scene.kind = "a slow local disk" + (", small files" if small else "")
    read = rate * (scene.between(0.03, 0.2) if small else scene.between(0.75, 0.98))
    scene.disks = [
        _disk(
            name, read=read, busy=scene.between(0.85, 1.0), wait=scene.between(0.5, 4) if rate > 550 else 20.0
        )
    ]
    waiting = scene.between(2, 20)
    scene.host |= {"blocked": waiting, "cpu_iowait": min(0.6, waiting / scene.cpus * scene.between(0.5, 0.9))}
    scene.group["read_mbps"] = read * scene.between(0.8, 1.0)
    _stalls(scene, io=scene.between(0.45, 0.98), io_full=scene.between(0.2, 0.8))


def _network(scene: Scene) -> None:
    _starved(scene)
    full = scene.rng.random() < 0.5
    scene.kind = "a network file system" + (", its port full" if full else ", slow answers")
    gbps = scene.rng.choice((10.0, 25.0, 100.0))
    rx = gbps * 125 * (scene.between(0.8, 0.96) if full else scene.between(0.01, 0.3))
    name = scene.rng.choice(("eth0", "mlx5_0/1"))
    scene.ports = [FeedPort(name=name, rx_mbps=rx, tx_mbps=rx * scene.between(0.01, 0.08), rate_gbps=gbps)]
    if scene.rng.random() < 0.3:  # a container with a network of its own does not see it
        scene.ports = []
    if scene.rng.random() < 0.3:
        scene.host |= {"network_mounts": 1, "network_read_mbps": rx}
    waiting = scene.between(2, 30)
    scene.host |= {"blocked": waiting, "cpu_iowait": min(0.6, waiting / scene.cpus * scene.between(0.4, 0.9))}
    scene.group["read_mbps"] = scene.between(0, 2)
    _stalls(scene, io=scene.between(0.4, 0.98), io_full=scene.between(0.15, 0.8))


def _memory(scene: Scene) -> None:
    """The data does not fit into the page cache, or the machine swaps."""
    _starved(scene)
    name, rate = scene.rng.choice(DISKS)
    swaps = scene.rng.random() < 0.25
    scene.kind = "memory is short: " + ("swapping" if swaps else "the cache drops what is read again")
    read = rate * scene.between(0.3, 0.9)
    scene.disks = [_disk(name, read=read, busy=scene.between(0.5, 1.0), wait=scene.between(0.3, 15))]
    pages = read * 1e6 / 4096
    scene.host |= {
        "available_mib": int(scene.host["memory_mib"] * scene.between(0.01, 0.08)),
        "cached_mib": int(scene.host["memory_mib"] * scene.between(0.01, 0.06)),
        "refaults": pages * scene.between(0.1, 0.4) if swaps else pages * scene.between(0.75, 1.0),
        "reclaimed": pages * scene.between(0.2, 1.0),
        "swap_mbps": read * scene.between(0.4, 0.9) if swaps else 0.0,
        "blocked": scene.between(1, 12),
        "cpu_iowait": scene.between(0.02, 0.3),
    }
    scene.group["refaults"] = scene.host["refaults"] * scene.between(0.8, 1.0)
    _stalls(
        scene,
        memory=scene.between(0.15, 0.7),
        memory_full=scene.between(0.05, 0.3),
        io=scene.between(0.3, 0.9),
        io_full=scene.between(0.1, 0.6),
    )


def _pcie(scene: Scene) -> None:
    """Copies fill the link: a slot of few lanes, a riser that fell back, or batches that are all copy."""
    _starved(scene, 0.25, 0.65)
    scene.kind = "a full PCIe link"
    for n, gpu in enumerate(scene.gpus):
        link = _known(gpu.pcie_link_mbps) / scene.rng.choice((1, 2, 4, 8))
        scene.gpus[n] = replace(
            gpu,
            pcie_link_mbps=link,
            pcie_rx_mbps=link * scene.between(0.6, 0.85),
            pcie_rx_max_mbps=link * scene.between(0.85, 0.92),
            pcie_tx_mbps=link * scene.between(0.01, 0.2),
        )


def _one_slow(scene: Scene) -> None:
    """One GPU computes slowly, and the others spin in NCCL until it comes."""
    while len(scene.gpus) < 2:
        scene.gpus.append(replace(scene.gpus[0], index=1))
    hot = scene.rng.random() < 0.6
    scene.kind = "one GPU slowed down, by heat or brake" if hot else "one GPU at lower clocks"
    slow, ratio = scene.rng.randrange(len(scene.gpus)), scene.between(0.35, 0.75)
    clock = scene.between(1500, 1950)
    for n, gpu in enumerate(scene.gpus):
        is_slow = n == slow
        works = 1.0 if is_slow else ratio
        scene.gpus[n] = replace(
            gpu,
            utilization=scene.between(96, 100),
            idle_share=0.0,
            full_share=scene.between(0.85, 1.0),
            swings=0,
            memory_utilization=scene.between(35, 60) * works,
            power_mw=_power(
                gpu, scene.between(0.45, 0.6) if is_slow else 0.15 + 0.35 * ratio * scene.between(0.8, 1)
            ),
            sm_mhz=clock * (ratio if is_slow else scene.between(0.98, 1.0)),
            slowed_share=scene.between(0.5, 1.0) if is_slow and hot else 0.0,
        )
    scene.host["busiest_cpus"] = min(scene.cpus, len(scene.gpus))


def _small(scene: Scene) -> None:
    """Kernels of microseconds: a process launches them as fast as one core can."""
    scene.kind = "tiny kernels"
    level = scene.between(55, 100)
    known = scene.rng.random() < 0.3
    for n, gpu in enumerate(scene.gpus):
        scene.gpus[n] = replace(
            gpu,
            utilization=min(100.0, level * scene.between(0.96, 1.04)),
            idle_share=scene.between(0.0, 0.04),
            full_share=scene.between(0.1, 0.9) if level > 85 else scene.between(0.0, 0.2),
            swings=scene.rng.randrange(0, 4),
            memory_utilization=scene.between(2, 18),
            power_mw=_power(gpu, scene.between(0.08, 0.24)),
            sm_active=scene.between(0.04, 0.3) if known else UNSEEN,
        )
    scene.host["busiest_cpus"] = min(scene.cpus, len(scene.gpus))


def _sound(scene: Scene) -> None:
    """A job that is fed, beside what often looks like a fault; or nobody who wants to be fed."""
    _fed(scene)
    scene.kind = scene.rng.choice(tuple(SOUND_KINDS))
    SOUND_KINDS[scene.kind](scene)


def _busy_neighbours(scene: Scene) -> None:
    scene.host |= {"cpu_busy": scene.between(0.85, 0.99), "runnable": scene.cpus * scene.between(1.0, 2.0)}
    scene.pressure["cpu"] = scene.between(0.2, 0.8)


def _checkpoint(scene: Scene) -> None:
    scene.disks = [
        _disk("nvme0n1", read=5, busy=scene.between(0.3, 0.7), wait=2, write=scene.between(800, 3000))
    ]
    _stalls(scene, io=scene.between(0.1, 0.35), io_full=scene.between(0.02, 0.15))


def _evaluation(scene: Scene) -> None:
    part = scene.between(0.12, 0.3)
    for n, gpu in enumerate(scene.gpus):
        scene.gpus[n] = replace(
            gpu,
            utilization=97 * (1 - part),
            idle_share=part,
            full_share=(1 - part) * scene.between(0.95, 1.0),
            swings=2,
            power_mw=_power(gpu, 0) * part + (1 - part) * _known(gpu.power_mw),
        )


def _serving(scene: Scene) -> None:
    """An inference server that waits for requests."""
    level = scene.between(0.0, 12.0)
    for n, gpu in enumerate(scene.gpus):
        idle = replace(gpu, power_mw=_known(gpu.limit_mw) * 0.13)
        scene.gpus[n] = replace(
            idle,
            utilization=level,
            idle_share=1 - level / 30,
            full_share=0.0,
            swings=0,
            memory_utilization=level / 3,
            power_mw=_power(idle, level / 150),
        )


def _decoding(scene: Scene) -> None:
    """Generation of text is bound by memory: full, with moderate power."""
    for n, gpu in enumerate(scene.gpus):
        share = scene.between(0.35, 0.55)
        scene.gpus[n] = replace(
            gpu, memory_utilization=scene.between(55, 90), power_mw=_known(gpu.limit_mw) * share
        )


def _loose_quota(scene: Scene) -> None:
    cores = max(2.0, scene.cpus / 8)
    scene.group |= {
        "cpu_quota": cores,
        "cpu_cores": cores * scene.between(0.5, 0.8),
        "throttled_share": scene.between(0.02, 0.3),
        "throttled_cores": scene.between(0.01, 0.3),
    }


def _free(scene: Scene) -> None:
    """Nobody holds the GPUs; the machine does other work."""
    _busy_neighbours(scene)
    for n, gpu in enumerate(scene.gpus):
        scene.gpus[n] = replace(
            gpu,
            utilization=0.0,
            idle_share=1.0,
            full_share=0.0,
            swings=0,
            memory_utilization=0.0,
            power_mw=_known(gpu.limit_mw) * 0.11,
            processes=0,
            memory_used_mib=4,
        )


def _known(value: Num) -> float:
    assert isinstance(value, int | float)
    return value


SOUND_KINDS: dict[str, Callable[[Scene], None]] = {
    "fed": lambda scene: None,
    "fed, neighbours fill the CPUs": _busy_neighbours,
    "fed, a checkpoint is written": _checkpoint,
    "fed, one evaluation": _evaluation,
    "serving at low load": _serving,
    "generating text": _decoding,
    "fed, a quota that suffices": _loose_quota,
    "nobody holds a GPU": _free,
}
MAKERS: dict[str, Callable[[Scene], None]] = {
    "cpu-cores": _cores,
    "cpu-quota": _quota,
    "storage": _storage,
    "network-storage": _network,
    "host-memory": _memory,
    "pcie-or-numa": _pcie,
    "one-slow-gpu-holds-all": _one_slow,
    "small-batches": _small,
    SOUND: _sound,
}


def _disturb(scene: Scene, *, seen: bool) -> None:
    """What comes with any episode: other pods, logs, and kernels without pressure files."""
    rng = scene.rng
    if rng.random() < 0.25:
        more = rng.uniform(0.0, 0.2)
        scene.host["cpu_busy"] = max(scene.host["cpu_busy"], min(0.85, scene.host["cpu_busy"] + more))
        scene.pressure["cpu"] = max(_known(scene.pressure["cpu"]), more)
    if rng.random() < 0.25:
        scene.disks.append(_disk("sdb", read=1, busy=rng.uniform(0.1, 0.4), wait=5, write=60))
        scene.pressure["io"] = max(_known(scene.pressure["io"]), rng.uniform(0.02, 0.2))
    if seen and rng.random() < 0.15:
        scene.pressure = dict.fromkeys(scene.pressure, NO_PRESSURE)
        none = FeedPressure(**dict.fromkeys(("cpu", "io", "memory"), NO_PRESSURE))
        scene.group["pressure"] = none


def generate(truth: str, *, rng: random.Random) -> Episode:
    """One episode of this cause, or a sound one."""
    scene = _scene(rng)
    MAKERS[truth](scene)
    uid = str(uuid.UUID(int=rng.getrandbits(128)))
    # without the group a cpuset and busy neighbours look like any other lack of cores
    seen = rng.random() < 0.6 or "cpuset" in scene.kind
    _disturb(scene, seen=seen)
    host = FeedHost(**scene.host, pressure=FeedPressure(**scene.pressure))
    feed = FeedResult(
        seconds=WINDOW_S,
        gpus=scene.gpus,
        host=host,
        disks=scene.disks,
        ports=scene.ports,
        groups=[FeedGroup(pod_uid=uid, **scene.group)] if seen else [],
        groups_unread="" if seen else "the container does not see the host's control groups",
    )
    allocated = scene.kind != "nobody holds a GPU"
    pods = (FeedPod(uid=uid, name="jobs/train", gpus=len(scene.gpus)),) if allocated else ()
    kind = scene.kind + ("" if seen else ", groups unseen")
    result = Result(probe="feed", feed=feed)
    return Episode(truth=truth, kind=kind, origin=Origin.GENERATED, result=result, pods=pods)
