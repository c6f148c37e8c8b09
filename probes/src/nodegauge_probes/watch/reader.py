"""The node while it is watched: an open NVML session, the last readings of every signal, Xids as they come.

The first look reads everything.  After it, slow signals are spread over the looks, and one that cannot be
read is asked for at the slowest pace.  The calls of a full reading that no signal needs come in rounds.  A
level changes to or from "cannot be read" only after three readings in a row, which then come look by look,
with all others of that GPU.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from nodegauge_contract import FeedResult, Unavailable
from nodegauge_probes.collectors import counters, telemetry, topology
from nodegauge_probes.feed.window import FeedWatch
from nodegauge_probes.nvml.library import NOTHING, Device, Nvml, Skip, Watch
from nodegauge_probes.nvml.results import ULL, NvmlUnusable
from nodegauge_probes.result_builder import GpuBuilder
from nodegauge_probes.session import identity
from nodegauge_probes.watch.host import Host
from nodegauge_probes.watch.levels import (
    COUNTER_WINDOW_S,
    UNREADABLE_AFTER,
    Level,
    Sample,
    Watched,
    is_unclear,
)
from nodegauge_probes.watch.rounds import Round
from nodegauge_probes.watch.signals import OFTEN, SELDOM, SIGNALS, Signal
from nodegauge_probes.watch_options import Options

REOPEN = OFTEN
"""Looks from one attempt to open NVML to the next: each of them opens the driver's device file."""


class Value(NamedTuple):
    """A signal's level, and its last reading for people."""

    level: Level
    shown: str


class Xid(NamedTuple):
    """One Xid as the driver reported it; `uuid`: of the GPU, empty if it could not be read."""

    gpu: int
    code: int
    uuid: str


class Reader:
    """`values` by name (`temperature GPU-3`); `xids` that came since the last `take_xids`."""

    def __init__(
        self,
        *,
        watch: Watch,
        options: Options,
        host: Host,
        values: dict[str, Value],
        clock: Callable[[], float] = time.monotonic,
        skip: Skip = NOTHING,
    ) -> None:
        self._clock = clock
        self.values = dict(values)
        self._options = options
        self._host = host
        self._nvml = Nvml(watch=watch, pause=time.sleep, skip=skip)
        self._round = Round(watch=watch, skip=skip)
        self._gpus: list[Watched] = []
        self._looks = 0
        self._opened_at: int | None = None
        self._samples: dict[str, deque[Sample | None]] = {}
        self._xids: list[Xid] = []

    def look(self) -> None:
        """Read what is due."""
        try:
            if self._opened_at is None and self._looks % REOPEN == 0:
                self._open()
            if self._opened_at is not None:
                count = len(self._nvml.devices()) if self._is_nth(SELDOM) else self._nvml.count()
                self._put("NVML", "")
                self._put("GPUs", count)
                self._read_gpus()
                self._round.step(self._nvml, self._gpus)
        except NvmlUnusable as error:
            self._put("NVML", error.problem.kind)
            self.close()
        for name, raw in self._host.latest.items():
            self._put(name, raw)
        self._looks += 1

    def feed(self, watch: FeedWatch) -> tuple[str, FeedResult] | None:
        """What `FeedWatch.look` answers of the GPUs that answer."""
        answering = [gpu.device for gpu in self._gpus if gpu.device.lost is None]
        return watch.look(self._nvml, answering)

    def _open(self) -> None:
        self._nvml.open()
        self._opened_at = self._looks
        devices = self._nvml.devices()
        driver = self._nvml.text(None, "nvmlSystemGetDriverVersion")
        self._gpus = [self._watched(device, devices, driver=driver) for device in devices]
        self._register()

    def close(self) -> None:
        """Close the session, if there is one."""
        self._opened_at = None
        self._gpus = []
        self._nvml.close()

    def _watched(self, device: Device, devices: list[Device], *, driver: str | Unavailable) -> Watched:
        nvml, limits = self._nvml, GpuBuilder(device.index)
        identity(nvml, device, limits)
        telemetry.temperature(nvml, device, limits)
        topology.links(nvml, device, limits)
        old, new = (nvml.fields(device, *t, only=ULL) for t in (counters.OLD_TRIO, counters.NEW_TRIO))
        trio, _ = counters.choose(driver, old=old, new=new)
        trios = {"251-253": counters.OLD_TRIO, "269-271": counters.NEW_TRIO}
        return Watched(
            nvml=nvml,
            device=device,
            peers=[other for other in devices if other is not device],
            limits=limits,
            links=[link for group in limits.links for link in group.links],
            link_fields=topology.has_state_field(limits),
            trio=trios.get(trio, ()) if isinstance(trio, str) else (),
        )

    def _is_nth(self, every: int, offset: int = 0) -> bool:
        assert self._opened_at is not None
        return self._looks == self._opened_at or (self._looks + offset) % every == 0

    def _read_gpus(self) -> None:
        for number, gpu in enumerate(self._gpus):
            renewed = gpu.device.lost is not None and self._is_nth(SELDOM, number)
            if renewed:
                self._nvml.renew(gpu.device)
                self._register()
            everything = renewed or self._is_unclear(gpu)
            due = [
                signal
                for position, signal in enumerate(SIGNALS)
                if everything or self._is_nth(self._pace(signal, gpu), position + number)
            ]
            self._read_fields(gpu, due)
            for signal in due:
                if signal.read is not None:
                    self.add(signal, gpu, signal.read(gpu))

    def _is_unclear(self, gpu: Watched) -> bool:
        """Whether a quantity of this GPU begins or ceases to answer.  Then all are asked at every look until
        that is clear, or the changes of one GPU would come, and be told, one after the other."""
        for signal in SIGNALS:
            name = _name(signal, gpu)
            value, samples = self.values.get(name), self._samples.get(name)
            if value is not None and samples and is_unclear(value.level, _raw(samples[-1])):
                return True
        return False

    def _pace(self, signal: Signal, gpu: Watched) -> int:
        """Looks from one reading of it to the next."""
        samples = self._samples.get(_name(signal, gpu))
        return SELDOM if samples and samples[-1] is None else signal.every

    def _read_fields(self, gpu: Watched, due: list[Signal]) -> None:
        wanted = [(signal, number) for signal in due if (number := signal.fields(gpu)) is not None]
        if not wanted:
            return
        answers = self._nvml.fields(gpu.device, *(number for _, number in wanted))
        for (signal, _), answer in zip(wanted, answers, strict=True):
            whole = Unavailable("not a whole number") if isinstance(answer, float) else answer
            self.add(signal, gpu, whole)

    def add(self, signal: Signal, gpu: Watched, raw: int | str | Unavailable) -> None:
        """One reading; a lost GPU's other readings are skipped, for its error says it all."""
        if gpu.device.lost is not None and signal is not SIGNALS[-1]:
            return
        name, now = _name(signal, gpu), self._clock()
        samples = self._samples.setdefault(name, deque())
        samples.append(None if isinstance(raw, Unavailable) else Sample(now, raw))
        keep = COUNTER_WINDOW_S * (1 if signal.every == 1 else 10)
        while len(samples) > UNREADABLE_AFTER and ((second := samples[1]) is None or now - second.at > keep):
            samples.popleft()
        shown = raw.unavailable if isinstance(raw, Unavailable) else signal.show(raw)
        self.values[name] = Value(self._level(signal, gpu, samples), shown)

    def _level(self, signal: Signal, gpu: Watched, samples: deque[Sample | None]) -> Level:
        name = _name(signal, gpu)
        is_new = name not in self.values
        before = None if is_new else self.values[name].level
        last = list(samples)[-UNREADABLE_AFTER:]
        if last[-1] is None:
            return None if len(last) == UNREADABLE_AFTER and not any(last) else before
        if before is None and not is_new and (None in last or len(last) < UNREADABLE_AFTER):
            return None
        return signal.level([*filter(None, samples)], before, gpu, self._options)

    def _put(self, name: str, raw: int | str) -> None:
        self.values[name] = Value(raw, str(raw) or "-")

    def see(self, name: str, *, level: Level, shown: str) -> None:
        """A value that somebody else has read."""
        self.values[name] = Value(level, shown)

    def _register(self) -> None:
        self._nvml.free_events()
        for gpu in self._gpus:
            self._nvml.register_events(gpu.device, counters.XID_CRITICAL_ERROR)

    def wait(self, seconds: float) -> None:
        """Until an Xid comes, or so many seconds have passed."""
        until = time.monotonic() + seconds
        self._take_events(wait_ms=round(seconds * 1000))
        if not self._xids:  # a driver without events does not wait
            time.sleep(max(0.0, until - time.monotonic()))

    def _take_events(self, *, wait_ms: int) -> None:
        """Those that are queued, and the first one that comes within so many ms."""
        for number in range(counters.MAX_EVENTS):
            event = self._nvml.next_event(wait_ms=0 if number else wait_ms)
            if event is None:
                return
            if isinstance(event, Unavailable):
                # One lost GPU makes a set answer this for all its GPUs: the others get a new set.
                self._register()
                return
            device, kind, code = event
            if device is not None and kind & counters.XID_CRITICAL_ERROR:
                self._xids.append(Xid(device.index, code, self._uuid(device)))

    def _uuid(self, device: Device) -> str:
        uuids = [gpu.limits.identity.uuid for gpu in self._gpus if gpu.device is device]
        return next((uuid for uuid in uuids if isinstance(uuid, str)), "")

    def identified(self) -> list[GpuBuilder]:
        """The GPUs of the open session: who each is, and nothing else."""
        builders = []
        for gpu in self._gpus:
            builders.append(GpuBuilder(gpu.device.index))
            builders[-1].identity = gpu.limits.identity
        return builders

    def take_xids(self) -> list[Xid]:
        """The Xids since the last time."""
        taken, self._xids = self._xids, []
        return taken


def _raw(sample: Sample | None) -> int | str | None:
    return sample.raw if sample is not None else None


def _name(signal: Signal, gpu: Watched) -> str:
    return f"{signal.name} GPU-{gpu.device.index}"
