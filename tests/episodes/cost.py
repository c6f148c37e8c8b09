"""What the samples of the feed probe cost, as a share of a core: on eight simulated H100."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nodegauge_probes.feed.gpus import GpuWindow
from nodegauge_probes.feed.window import MOMENT_S, SAMPLE_S, Roots
from nodegauge_probes.nvml.library import Nvml
from nodegauge_probes.runner import CallWatch
from testbed.hardware import plug

TIMES, WINDOW_S = 100, 120.0


def measure() -> str:
    """One line; in a process of its own, whose driver library is the simulated one."""
    with tempfile.TemporaryDirectory() as folder:
        hardware = plug("h100-sxm-8", Path(folder, "machine"), seed="cost")
        hardware.load(60)
        command = [sys.executable, "-P", "-m", "episodes.cost"]
        run = subprocess.run(
            command, env={**os.environ, **hardware.env()}, capture_output=True, text=True, check=True
        )
        return run.stdout.strip()


def _seconds(work: object, times: int) -> float:
    assert callable(work)
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) / times


def main() -> None:
    """Measure here."""
    nvml = Nvml(watch=CallWatch(deadline=3600), pause=time.sleep)
    nvml.open()
    devices, window, sysfs = nvml.devices(), GpuWindow(), Path(os.environ["NODEGAUGE_SYSFS"])
    roots = Roots(procfs=Path("/proc"), sysfs=Path("/sys"))
    window.look(nvml, devices)
    look = _seconds(lambda: window.look(nvml, devices), TIMES)
    close = _seconds(lambda: window.close(nvml, devices, seconds=WINDOW_S, sysfs=sysfs), 1)
    moment = _seconds(roots.moment, TIMES)
    share = look / SAMPLE_S + moment / MOMENT_S + close / WINDOW_S
    print(
        f"Sampling of {len(devices)} GPUs: {1000 * look:.2f} ms every {SAMPLE_S:g} s, the machine's counters "
        f"{1000 * moment:.2f} ms every {MOMENT_S:g} s, the end of a window {1000 * close:.1f} ms: "
        f"{100 * share:.3f} % of a core."
    )


if __name__ == "__main__":
    main()
