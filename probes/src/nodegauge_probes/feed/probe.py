"""The feed probe: one window of the node and out, for a person or a script; no privileges, no GPU.

The watch container does the same again and again (`window.FeedWatch`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from nodegauge_probes.feed.gpus import GpuWindow
from nodegauge_probes.feed.window import MOMENT_S, SAMPLE_S, Roots, build
from nodegauge_probes.nvml.library import Watch
from nodegauge_probes.result_builder import ResultBuilder
from nodegauge_probes.session import identity, open_node, read

NAME = "feed"


def measure(
    result: ResultBuilder,
    *,
    watch: Watch,
    roots: Roots,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Read one window of so many seconds into `result`; raises `NvmlUnusable` if NVML cannot be used."""
    with open_node(result, watch=watch, sysfs=roots.sysfs, procfs=roots.procfs) as (nvml, gpus):
        for device, gpu in gpus:
            read(nvml, device, gpu, collect=identity)
        devices, window = [device for device, _ in gpus], GpuWindow()
        pause = min(SAMPLE_S, seconds / 20)
        began = clock()
        moments = [roots.moment(clock=clock)]
        while (now := clock()) - began < seconds:
            window.look(nvml, devices)
            if now - moments[-1].at >= min(MOMENT_S, seconds / 5):
                moments.append(roots.moment(clock=clock))
            sleep(min(pause, max(0.0, began + seconds - clock())))
        moments.append(roots.moment(clock=clock))
        took = clock() - began
        measured = window.close(nvml, devices, seconds=took, sysfs=roots.sysfs)
        result.feed = build(measured, moments, seconds=took)
