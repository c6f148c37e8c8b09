"""The calls of a full reading that no signal needs, a few at each look: one that hangs is noticed within
minutes, and not with the next reading, which may be two hours away.

A step asks one GPU for one part of the reading and drops the answers: what they say is for the reading.  On
eight H100 a round takes 129 looks, with 21 calls a look beside the 68 of the signals (counted on the
simulated driver): 1,300 calls a minute more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import copy

from nodegauge_contract import Unavailable
from nodegauge_probes import health, session
from nodegauge_probes.collectors import counters, sampling, topology
from nodegauge_probes.nvml.library import Device, Nvml, Skip, Watch
from nodegauge_probes.result_builder import GpuBuilder, ResultBuilder
from nodegauge_probes.watch.levels import Watched

Part = Callable[[Nvml, Device, GpuBuilder], None]
NO_DRIVER = Unavailable("of no interest: only the calls are")


def _sample(nvml: Nvml, device: Device, gpu: GpuBuilder) -> None:
    sampling.sample(nvml, device)


def _counters(nvml: Nvml, device: Device, gpu: GpuBuilder) -> None:
    counters.snapshot(nvml, device, gpu, driver=NO_DRIVER)


PARTS: tuple[Part, ...] = (
    session.identity,
    topology.links,
    topology.fabric,
    session.locality,
    *health.CONDITION,
    _sample,
    _counters,
)
"""What a reading asks of each GPU alone."""


class Round:
    """Where the round is: `step` goes on by one."""

    def __init__(self, *, watch: Watch, skip: Skip) -> None:
        self._watch, self._skip = watch, skip
        self._steps = 0

    def step(self, nvml: Nvml, gpus: list[Watched]) -> None:
        """The next part of the next GPU; at the end of a round a session of its own, as a reading opens one.

        Raises `NvmlUnusable`, as the reading would.
        """
        if not gpus:
            return
        number = self._steps % ((len(PARTS) + 1) * len(gpus) + 1)
        self._steps += 1
        if number == (len(PARTS) + 1) * len(gpus):
            self._session()
            return
        part, gpu = divmod(number, len(gpus))
        watched = gpus[gpu]
        if part == len(PARTS):
            for peer in watched.peers:
                nvml.pair(watched.device, peer, "nvmlDeviceGetTopologyCommonAncestor")
            return
        session.read(nvml, watched.device, _known(watched), collect=PARTS[part])

    def _session(self) -> None:
        """Open, versions, handles and events, in a session beside the watcher's, which stays as it is."""
        nvml = Nvml(watch=self._watch, pause=time.sleep, skip=self._skip)
        nvml.open()
        try:
            session.versions(nvml, ResultBuilder(probe=health.NAME, run="", node=""))
            for device in nvml.devices():
                nvml.register_events(device, counters.XID_CRITICAL_ERROR)
        finally:
            nvml.close()


def _known(gpu: Watched) -> GpuBuilder:
    """A builder to throw away: some parts need who the GPU is, and its links."""
    builder = GpuBuilder(gpu.device.index)
    builder.identity = copy(gpu.limits.identity)
    builder.links = list(gpu.limits.links)
    return builder
