"""The load probe: is this node free and cool, then all its GPUs at work, watched and stopped.

All results so far are in the builder at every moment, because the run may end at any: a preempted pod has
seconds.  Nothing is judged.  The load ends by itself; before that by the probe's own temperature stop, by
another user of a GPU, by the deadline, by SIGTERM.  Whichever it is, the process that drives the GPUs is
killed with all that it started, which ends the work on the GPUs at once.
"""

from __future__ import annotations

import os
import selectors
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from nodegauge_contract import LoadEnd, LoadSkip, Sensor, Storage
from nodegauge_probes.collectors import counters, sampling, telemetry
from nodegauge_probes.host import hwmon
from nodegauge_probes.load import storage
from nodegauge_probes.load.protocol import Line, Order, Phase, encode_order
from nodegauge_probes.load.receiver import Lines
from nodegauge_probes.load.record import GpuRecord, LoadRecord
from nodegauge_probes.load.storage_options import Options
from nodegauge_probes.load.watcher import Ended, Watcher, stop_of
from nodegauge_probes.nccl import plan, precondition
from nodegauge_probes.nccl.process_tree import ProcessTree, ShutDown, Watch, how_it_ended, seconds_to_work
from nodegauge_probes.nccl.protocol import FD_VARIABLE
from nodegauge_probes.nccl.receiver import InvalidOutput, Tail, one_line, poll
from nodegauge_probes.nvml.library import Nvml
from nodegauge_probes.result_builder import GpuBuilder, ResultBuilder
from nodegauge_probes.session import Gpus, identity, locality, open_node, read

NAME = "load"
CHILD = "nodegauge_probes.load.child"
IDLE_S = 2.0
"""Samples before the load."""
TICK_S = 0.02
DYING_S = 5.0
SENSORS_EVERY_S = 1.0
MAX_MESSAGE = 120
CONDITION = (telemetry.temperature, telemetry.power, telemetry.clocks, sampling.supported_reasons)


class Settings(Struct, frozen=True, kw_only=True):
    """One run of the load probe."""

    seconds: float
    """Seconds of computing."""
    hz: float
    """Samples of NVML per second."""
    stop_below: int
    """°C below the vendor's slowdown at which the probe ends the load."""
    expected: int
    """GPUs that the node should have; 0 if unknown."""
    shared: str
    """How the GPUs are shared; empty if they are not."""
    environment: Mapping[str, str]
    """The probe's own."""
    deadline: float
    """Seconds of the whole run."""
    sysfs: Path
    """Root to use as /sys."""
    procfs: Path
    """Root to use as /proc."""
    storage: Options | None = None
    """What to read from storage after the load; None for nothing."""

    @property
    def child_environment(self) -> dict[str, str]:
        no_cache = {"CUDA_CACHE_DISABLE": "1"}  # compiled kernels stay in memory, not in ~/.nv
        return plan.kept(self.environment) | no_cache


def measure(result: ResultBuilder, *, watch: Watch, settings: Settings) -> None:
    """Load and measure into `result`; raises `NvmlUnusable` if NVML cannot be used at all."""
    until = time.monotonic() + seconds_to_work(settings.deadline)
    record = LoadRecord(planned=settings.seconds, expected=settings.expected)
    if settings.storage is not None:
        record.storage = Storage(path=settings.storage.path, problem="the run ended before it was read")
    result.load = record
    with open_node(result, watch=watch, sysfs=settings.sysfs, procfs=settings.procfs) as (nvml, gpus):
        for device, gpu in gpus:
            for collect in (identity, locality, *CONDITION):
                read(nvml, device, gpu, collect=collect)
        node = precondition.describe(nvml, gpus)
        loaded = [
            (device, gpu) for device, gpu in gpus if gpu.error is None and isinstance(gpu.identity.uuid, str)
        ]
        skipped = precondition.not_whole(node, shared=settings.shared) or precondition.busy(
            precondition.usable(node.gpus), node.uses
        )
        if skipped is not None or not loaded:
            record.skipped = LoadSkip.NO_GPU if skipped is None else LoadSkip(skipped.reason)
            record.message = "no GPU can be used" if skipped is None else skipped.message
            return
        record.message = precondition.missing(node.gpus, expected=settings.expected)
        processes = ProcessTree()
        watch.before_exit.append(processes.shutdown)
        record.gpus = [_gpu_record(gpu, settings) for _, gpu in loaded]
        Run(nvml, loaded, record, result=result, settings=settings, processes=processes, until=until).run()


def _gpu_record(gpu: GpuBuilder, settings: Settings) -> GpuRecord:
    return GpuRecord(
        index=gpu.index,
        uuid=str(gpu.identity.uuid),
        stop=stop_of(gpu.temperature.value, below=settings.stop_below),
        limit_mw=gpu.power.value.enforced_limit_mw,
    )


class Run:
    """One load, from the idle samples to the last counter."""

    def __init__(
        self,
        nvml: Nvml,
        gpus: Gpus,
        record: LoadRecord,
        *,
        result: ResultBuilder,
        settings: Settings,
        processes: ProcessTree,
        until: float,
    ) -> None:
        self._nvml, self._gpus, self._record, self._result = nvml, gpus, record, result
        self._settings, self._processes, self._until = settings, processes, until
        self._watcher = Watcher(nvml, list(zip([device for device, _ in gpus], record.gpus, strict=True)))
        self._lines, self._tail = Lines(self._take), Tail()
        self._done, self._no_cuda = False, ""
        self._sample_due = 0.0
        self._over = threading.Event()

    def run(self) -> None:
        """Everything; one that the run does not reach stays in the record as cut."""
        if self._idle():
            return
        threading.Thread(target=self._read_sensors, daemon=True, name="sensors").start()
        driver = self._result.system.value.driver
        before = {
            gpu.index: counters.snapshot(self._nvml, device, gpu, driver=driver) for device, gpu in self._gpus
        }
        try:
            ended = self._load()
        finally:
            self._over.set()
        for device, gpu in self._gpus:
            if device.lost is None:
                after = counters.snapshot(self._nvml, device, gpu, driver=driver)
                self._record_of(gpu).growth = counters.growth(before[gpu.index], after)
            gpu.error = device.fault
        self._finish(ended)
        self._read_storage()

    def _record_of(self, gpu: GpuBuilder) -> GpuRecord:
        return next(record for record in self._record.gpus if record.index == gpu.index)

    def _idle(self) -> bool:
        """Samples before the load; whether a GPU is too hot already."""
        self._record.add_sensors(self._sensors(), loaded=False)
        until = time.monotonic() + IDLE_S
        while True:
            ended = self._watcher.sample()
            if ended is not None:
                self._record.skipped, self._record.message = LoadSkip.HOT, ended.message
                return True
            if time.monotonic() >= until:
                return False
            time.sleep(1 / self._settings.hz)

    def _sensors(self) -> list[Sensor]:
        sensors: list[Sensor] = []
        hwmon.sensors(self._settings.sysfs, sensors.append)
        return sensors

    def _read_sensors(self) -> None:
        """In a thread: a slow supply must not delay NVML's samples."""
        while not self._over.wait(SENSORS_EVERY_S):
            loaded = self._watcher.burning_since is not None
            self._record.add_sensors(self._sensors(), loaded=loaded)

    def _read_storage(self) -> None:
        """After the load, while the GPUs are idle: a run that was ended early is not kept for it."""
        options, settings = self._settings.storage, self._settings
        if options is not None and self._record.ended not in (LoadEnd.CUT, LoadEnd.GAVE_WAY):
            left = self._until - time.monotonic()
            self._record.storage = storage.measure(
                options, sysfs=settings.sysfs, procfs=settings.procfs, most=left
            )

    def _load(self) -> Ended | None:
        """Run the process until it ends, or something ends it; returns what did."""
        order = Order(
            uuids=tuple(record.uuid for record in self._record.gpus),
            cpus=tuple(
                gpu.identity.cpus if isinstance(gpu.identity.cpus, str) else "" for _, gpu in self._gpus
            ),
            seconds=self._settings.seconds,
        )
        program = (sys.executable, "-m", CHILD, "--order", encode_order(order))
        lines, lines_in = os.pipe()
        output, output_in = os.pipe()
        try:
            environment = {**self._settings.child_environment, FD_VARIABLE: str(lines_in)}
            try:
                self._processes.start(program, environment=environment, lines=lines_in, output=output_in)
            except (ShutDown, OSError) as error:
                how = LoadEnd.CUT if isinstance(error, ShutDown) else LoadEnd.FAILED
                return Ended(how=how, message=one_line(f"no process: {error}"))
            finally:
                os.close(lines_in)
                os.close(output_in)
            self._watcher.phase = Phase.SETUP
            ended = self._follow(lines, output)
            return self._kill(ended)
        finally:
            os.close(lines)
            os.close(output)

    def _follow(self, lines: int, output: int) -> Ended | None:
        """Take its lines and sample; returns why the load has to end, None if the process ended by itself."""
        with selectors.DefaultSelector() as selector:
            for pipe, feed in ((lines, self._lines.feed), (output, self._tail.feed)):
                os.set_blocking(pipe, False)
                selector.register(pipe, selectors.EVENT_READ, feed)
            while True:
                exited = self._processes.exited()
                try:
                    received = poll(selector, wait=0 if exited else TICK_S)
                except InvalidOutput as error:
                    return Ended(how=LoadEnd.FAILED, message=str(error))
                if (exited and not received) or self._done:
                    return None
                if (ended := self._watched()) is not None:
                    return ended

    def _watched(self) -> Ended | None:
        """What NVML and the clock say."""
        now = time.monotonic()
        if self._processes.shut_down:
            return Ended(how=LoadEnd.CUT, message="the run was ended")
        if now > self._until:
            return Ended(how=LoadEnd.CUT, message="the run's time was up")
        if now < self._sample_due:
            return None
        self._sample_due = max(self._sample_due + 1 / self._settings.hz, now)
        return self._watcher.sample() or self._watcher.others()

    def _kill(self, ended: Ended | None) -> Ended | None:
        """End the process with all that it started; returns how the load ended."""
        if self._watcher.burning_since is not None:
            self._record.loaded_seconds = round(time.monotonic() - self._watcher.burning_since, 3)
        code, _, unkillable = self._processes.end(wait=DYING_S)
        if self._processes.shut_down:
            ended = Ended(how=LoadEnd.CUT, message="the run was ended")
        if ended is None and not self._done and not self._no_cuda:
            printed = self._tail.text(most=MAX_MESSAGE)
            died = f"the process that drives the GPUs ended: {how_it_ended(code)} {printed}"
            message = one_line(died, most=240)
            ended = Ended(how=LoadEnd.FAILED, message=message)
        if unkillable:
            more = f"{unkillable} processes survived SIGKILL: they are stuck in the driver"
            how = LoadEnd.HUNG if ended is None else ended.how
            ended = Ended(how=how, message="; ".join(filter(None, (ended.message if ended else "", more))))
        return ended

    def _finish(self, ended: Ended | None) -> None:
        record = self._record
        if self._no_cuda:
            record.gpus, record.skipped, record.message = [], LoadSkip.NO_CUDA, one_line(self._no_cuda)
            return
        for gpu in record.gpus:
            if ended is None:
                gpu.end(LoadEnd.FAILED, "it did not finish")
            else:
                gpu.end(ended.how, seconds=self._burned())
        record.ended = LoadEnd.DONE if ended is None else ended.how
        if ended is None and all(gpu.ended is not LoadEnd.DONE for gpu in record.gpus):
            record.ended = record.gpus[0].ended
        if ended is not None:
            record.message = one_line("; ".join(filter(None, (ended.message, record.message))))

    def _burned(self) -> float | None:
        since = self._watcher.burning_since
        return None if since is None else time.monotonic() - since

    def _take(self, line: Line) -> None:
        """One line of the process."""
        if line.phase is not None:
            self._watcher.phase = line.phase
            if line.phase is Phase.BURN:
                self._watcher.burning_since = time.monotonic()
        self._done = self._done or line.done
        self._no_cuda = self._no_cuda or line.no_cuda
        if line.finished is not None:
            self._gpu(line.finished).end(LoadEnd.DONE, seconds=self._burned())
        if line.failed is not None:
            how = LoadEnd.HUNG if line.failed.hung else LoadEnd.FAILED
            message = one_line(line.failed.message, most=MAX_MESSAGE)
            self._gpu(line.failed.gpu).end(how, message, seconds=self._burned())
        if line.ready is not None:
            self._gpu(line.ready.gpu).ready = line.ready
        if line.memory is not None:
            self._gpu(line.memory.gpu).memory = line.memory
        if line.interval is not None:
            self._gpu(line.interval.gpu).intervals.append(line.interval)
        if line.copies is not None:
            gpu = self._gpu(line.copies.gpu)
            gpu.alone, gpu.together = (
                (line.copies, gpu.together) if line.copies.alone else (gpu.alone, line.copies)
            )

    def _gpu(self, number: int) -> GpuRecord:
        if number >= len(self._record.gpus):
            raise InvalidOutput(f"a line about GPU {number} of {len(self._record.gpus)}")
        return self._record.gpus[number]
