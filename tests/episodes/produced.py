"""Episodes that really happen here: loaders feed a trainer through CPU, disk, memory or a quota.

The trainer's GPU is the one part that is not there: a batch occupies it for a set time, in which the trainer
sleeps as a process does that waits for a kernel, and its utilisation is the time in which it had a batch.
All else is read by the feed probe's own code from this kernel.  Rates and shares do not depend on a window's
length, so `WINDOW_S` seconds are played in `PLAYED_S`.

The truth is checked by what the producer itself counted: an episode whose trainer was fed all the same, whose
own quota did not stop it, or beside which other work took more than `NEIGHBOURS` of the CPUs, is discarded.
"""

import contextlib
import itertools
import mmap
import multiprocessing
import os
import random
import tempfile
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from episodes import SOUND, WINDOW_S, Episode, Origin
from nodegauge_contract import FeedGpu, FeedResult, Result
from nodegauge_judge.feed.case import FeedPod
from nodegauge_probes.feed.window import Roots, build

PLAYED_S, WARM_S = 4.0, 0.8
SAMPLES = 60
"""Of the GPU in one window, as the watch container takes them."""
NEIGHBOURS = 0.25
LIMIT_MW, IDLE_MW = 400_000, 55_000
"""An A100 SXM: its limit, and what it draws while nothing runs (NVIDIA's data sheet; nvidia-smi)."""
CGROUPS, CONTROLLERS = Path("/sys/fs/cgroup"), ("cpu", "cpuacct", "memory")
FILE_MB, CHUNK = 384, 1 << 20
PREFETCHED = 4
Batch = Callable[[random.Random], None]


class CannotProduce(Exception):
    """This machine lacks something; the message says what."""


class Recipe(Struct, frozen=True, kw_only=True):
    """How to make one episode.

    `supply`: batches that loaders bring, as a multiple of what the GPU could take (below 1 it starves);
    `quota` in cores and `memory_mb` limit the loaders' pod; `beside`: other work of the same job; `pause`:
    share of the window in which the trainer does something else.
    """

    truth: str
    kind: str
    batch: str
    workers: tuple[int, int] = (2, 4)
    supply: tuple[float, float] = (0.15, 0.6)
    quota: tuple[float, float] | None = None
    memory_mb: int = 0
    background: str = ""
    pause: float = 0.0


RECIPES = (
    *(Recipe(truth="cpu-cores", kind="decoding on all cores", batch="decode"),) * 19,
    *(Recipe(truth="cpu-cores", kind="decoding, many workers", batch="decode", workers=(5, 10)),) * 6,
    *(Recipe(truth="cpu-quota", kind="decoding under a quota", batch="decode", quota=(0.3, 0.9)),) * 25,
    *(Recipe(truth="storage", kind="reading past the cache", batch="direct", workers=(3, 8)),) * 15,
    *(Recipe(truth="host-memory", kind="a cache smaller than the data", batch="cached", memory_mb=48),) * 10,
    *(Recipe(truth=SOUND, kind="fed", batch="light", supply=(1.5, 4.0)),) * 6,
    *(Recipe(truth=SOUND, kind="fed, one evaluation", batch="light", supply=(1.5, 4.0), pause=0.25),) * 3,
    *(Recipe(truth=SOUND, kind="fed, checkpoint", batch="light", supply=(1.5, 4.0), background="write"),) * 3,
    *(Recipe(truth=SOUND, kind="fed under a quota", batch="decode", supply=(1.6, 3.0), quota=(0.6, 0.9)),)
    * 3,
)


class Group:
    """A pod's control group of version 1, in folders of our own that `remove` takes away."""

    def __init__(self, root: Path) -> None:
        self.uid = str(uuid.uuid4())
        self._tops = {each: CGROUPS / each / f"nodegauge-episodes-{os.getpid()}" for each in CONTROLLERS}
        for controller, top in self._tops.items():
            try:
                self.folder(controller).mkdir(parents=True)
            except OSError as error:
                raise CannotProduce(f"no control group in {top.parent}: {error.strerror}") from None
            (root / controller).symlink_to(top)

    def folder(self, controller: str) -> Path:
        return self._tops[controller] / "kubepods" / f"pod{self.uid}"

    def limit(self, *, cores: float = 0.0, memory_mb: int = 0) -> None:
        if cores:
            (self.folder("cpu") / "cpu.cfs_quota_us").write_text(f"{round(cores * 100_000)}")
        if memory_mb:
            (self.folder("memory") / "memory.limit_in_bytes").write_text(f"{memory_mb << 20}")

    def enter(self) -> None:
        for controller in CONTROLLERS:
            (self.folder(controller) / "cgroup.procs").write_text(f"{os.getpid()}")

    def remove(self) -> None:
        """The kernel takes a moment to let go of processes that have ended."""
        folders = [
            folder
            for controller, top in self._tops.items()
            for folder in (self.folder(controller), top / "kubepods", top)
        ]
        for folder in folders:
            for _ in range(100):
                with contextlib.suppress(OSError):
                    folder.rmdir()
                if not folder.exists():
                    break
                time.sleep(0.05)


class Trainer(threading.Thread):
    """Takes batches and occupies its GPU for `step` seconds with each."""

    def __init__(self, ready: Any, free_slots: Any) -> None:
        super().__init__(daemon=True)
        self.step, self.paused = 0.0, False
        self.busy: list[tuple[float, float]] = []
        self.taken, self.ended = 0, False
        self._ready, self._free_slots = ready, free_slots

    def run(self) -> None:
        while not self.ended:
            if self.paused or not self._ready.acquire(timeout=0.05):
                time.sleep(0.01 if self.paused else 0)
                continue
            self._free_slots.release()
            began = time.monotonic()
            time.sleep(self.step)
            self.busy.append((began, time.monotonic()))
            self.taken += 1


def _load(batch: str, path: Path, group: Group, seed: int, ready: Any, free_slots: Any) -> None:
    """One loader."""
    group.enter()
    rng, work = random.Random(seed), BATCHES[batch](path)
    while True:
        free_slots.acquire()
        work(rng)
        ready.release()


def _decode(_path: Path) -> Batch:
    data = zlib.compress(os.urandom(1 << 12) * 400, 1)

    def work(rng: random.Random) -> None:
        for _ in range(rng.randrange(6, 18)):
            zlib.decompress(data)

    return work


def _light(_path: Path) -> Batch:
    return lambda rng: time.sleep(rng.uniform(0.004, 0.006))


def _direct(path: Path) -> Batch:
    file, buffer = os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, CHUNK)

    def work(rng: random.Random) -> None:
        for _ in range(8):
            os.preadv(file, [buffer], rng.randrange(FILE_MB) * CHUNK)

    return work


def _cached(path: Path) -> Batch:
    file, buffer = os.open(path, os.O_RDONLY), bytearray(CHUNK)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)  # the cache of whoever wrote it has no limit
    location = itertools.count()

    def work(rng: random.Random) -> None:
        for _ in range(4):
            os.preadv(file, [buffer], next(location) % FILE_MB * CHUNK)

    return work


def _write(path: Path) -> Batch:
    file = os.open(path.with_name("checkpoint"), os.O_WRONLY | os.O_CREAT, 0o600)

    def work(rng: random.Random) -> None:
        os.pwrite(file, os.urandom(CHUNK) * 16, rng.randrange(4) * 16 * CHUNK)
        os.fdatasync(file)

    return work


BATCHES: dict[str, Callable[[Path], Batch]] = {
    "decode": _decode,
    "light": _light,
    "direct": _direct,
    "cached": _cached,
    "write": _write,
}


def produce(*, seed: int, say: Callable[[str], None]) -> Iterator[Episode]:
    """Every recipe once; says what was discarded.  Raises `CannotProduce`."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="nodegauge-episodes-", dir="/var/tmp") as folder:
        path = Path(folder, "data")
        with path.open("wb") as file:
            for _ in range(FILE_MB):
                file.write(os.urandom(CHUNK))
            os.fsync(file.fileno())
        for number, recipe in enumerate(RECIPES):
            for _ in range(3):
                episode, why = _play(recipe, path, rng)
                if episode is not None:
                    yield episode
                    break
                say(f"discarded, {number + 1} of {len(RECIPES)}, {recipe.kind}: {why}")


def _play(recipe: Recipe, path: Path, rng: random.Random) -> tuple[Episode | None, str]:
    """The episode, or why it did not come about."""
    with tempfile.TemporaryDirectory() as folder:
        group = Group(Path(folder))
        context, processes = multiprocessing.get_context("fork"), []
        ready, free_slots = context.Semaphore(0), context.Semaphore(PREFETCHED)
        try:
            group.limit(cores=rng.uniform(*recipe.quota) if recipe.quota else 0.0, memory_mb=recipe.memory_mb)
            works = [recipe.batch] * rng.randint(*recipe.workers)
            for work in works:
                own = (work, path, group, rng.randrange(1 << 30), ready, free_slots)
                processes.append(context.Process(target=_load, args=own, daemon=True))
            if recipe.background:
                free = (context.Semaphore(0), context.Semaphore(1 << 20))
                own = (recipe.background, path, group, 1, *free)
                processes.append(context.Process(target=_load, args=own, daemon=True))
            for process in processes:
                process.start()
            return _watch(recipe, group, Path(folder), Trainer(ready, free_slots), rng)
        finally:
            for process in processes:
                process.kill()
                process.join()
            group.remove()


def _watch(
    recipe: Recipe, group: Group, root: Path, trainer: Trainer, rng: random.Random
) -> tuple[Episode | None, str]:
    trainer.start()
    time.sleep(WARM_S)
    before, taken = time.monotonic(), trainer.taken
    time.sleep(WARM_S)
    supply = (trainer.taken - taken) / (time.monotonic() - before)
    if not supply:
        return None, "the loaders brought nothing"
    trainer.step = rng.uniform(*recipe.supply) / supply
    time.sleep(WARM_S)
    roots = Roots(procfs=Path("/proc"), sysfs=Path("/sys"), groups=root)
    cpu = time.process_time()
    moments = [roots.moment()]
    pause = rng.uniform(0.2, 0.6)
    for tick in range(12):
        trainer.paused = pause <= tick / 12 < pause + recipe.pause
        time.sleep(PLAYED_S / 12)
        moments.append(roots.moment())
    trainer.ended = True
    began, ended = moments[0].at, moments[-1].at
    feed = build([_gpu(trainer, began, ended)], moments, seconds=ended - began)
    why = _truth(recipe, feed, own_cores=(time.process_time() - cpu) / (ended - began))
    if why:
        return None, why
    unreadable = rng.random() < 0.5
    gap = (
        {"groups": [], "groups_unread": "the container does not see the host's control groups"}
        if unreadable
        else {}
    )
    kind = recipe.kind + (", quota unseen" if unreadable and recipe.quota else "")
    return Episode(
        truth=recipe.truth,
        kind=kind,
        origin=Origin.PRODUCED,
        result=Result(probe="feed", feed=replace(feed, seconds=WINDOW_S, **gap)),
        pods=(FeedPod(uid=group.uid, name="jobs/train", gpus=1),),
    ), ""


def _truth(recipe: Recipe, feed: FeedResult, *, own_cores: float) -> str:
    """Why the episode is not what its recipe says; empty if it is.  What was not read proves nothing."""
    if not feed.groups:
        return "its control group was not seen"
    (gpu,), host, group = feed.gpus, feed.host, feed.groups[0]
    busy, fed = number(gpu.utilization), 90 * (1 - recipe.pause)
    others = number(host.cpu_busy) - (number(group.cpu_cores) + own_cores) / number(host.cpus)
    holds = {
        f"its GPU was busy for {busy:.0f} %": busy >= fed if recipe.truth == SOUND else busy <= 65,
        f"other work took {100 * others:.0f} % of the CPUs": others <= NEIGHBOURS,
    }
    if recipe.truth == "cpu-quota":
        holds["its quota did not stop it"] = number(group.throttled_share) >= 0.3
    elif recipe.truth == "host-memory":
        holds["the cache held its data"] = number(host.refaults) >= 1000
    elif recipe.truth == "storage":
        holds["its disk was free"] = number(feed.disks[0].busy_share if feed.disks else None) >= 0.5
    elif recipe.truth == "cpu-cores":
        holds["CPUs were free"] = number(group.cpu_cores) >= 0.8 * number(host.cpus)
    return next((why for why, is_so in holds.items() if not is_so), "")


def _gpu(trainer: Trainer, began: float, ended: float) -> FeedGpu:
    """Its utilisation as NVML would sample it, and the power that follows from it."""
    length = (ended - began) / SAMPLES
    samples = []
    for number_ in range(SAMPLES):
        start = began + number_ * length
        inside = sum(max(0.0, min(b, start + length) - max(a, start)) for a, b in trainer.busy)
        samples.append(min(100.0, 100 * inside / length))
    sides = [value > 50 for value in samples if not 20 <= value <= 50]
    mean = sum(samples) / SAMPLES
    return FeedGpu(
        index=0,
        samples=SAMPLES,
        utilization=round(mean, 1),
        idle_share=round(sum(value <= 1 for value in samples) / SAMPLES, 3),
        full_share=round(sum(value >= 95 for value in samples) / SAMPLES, 3),
        swings=sum(a != b for a, b in itertools.pairwise(sides)),
        memory_utilization=round(mean * 0.45, 1),
        memory_used_mib=30_000,
        power_mw=round(IDLE_MW + (LIMIT_MW - IDLE_MW) * 0.85 * mean / 100),
        limit_mw=LIMIT_MW,
        sm_mhz=1380,
        slowed_share=0.0,
        pcie_rx_mbps=150.0,
        pcie_tx_mbps=20.0,
        pcie_rx_max_mbps=900,
        pcie_link_mbps=31_510.0,
        processes=1,
        numa=0,
    )


def number(value: Any) -> float:
    """A value that was read, or nan."""
    return float(value) if isinstance(value, int | float) else float("nan")
