"""What the watch probe costs on a calm node: CPU, memory, and what of it is spent inside the driver.

`python -m fleet.load.watch_probe --seconds 3600` (in tests/) runs the probe with its defaults on a simulated
machine under load, and prints averages on standard error after every tenth of the time.  CPU is the
process's, of all threads, in thousandths of a core.  CPU within NVML calls is the simulated library's, which
looks for Xids in a file every 20 ms while the probe waits for them; a real driver sleeps there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from nodegauge_probes import cli, runner
from nodegauge_probes.nvml.library import EVENT_WAIT
from nodegauge_probes.watch import probe as watching
from support.machines import busy
from support.probing import probe_environment

START_S = 10.0
"""Left out, or as long as is measured if that is less: a container starts, and reads, once."""


class Meter(runner.CallWatch):
    """Adds up wall-clock and CPU seconds between `enter` and `leave`."""

    calls = 0
    waits_cpu = calls_cpu = calls_wall = 0.0

    def enter(self, call: str, subject: str) -> None:
        super().enter(call, subject)
        self._at = time.perf_counter(), time.thread_time()

    def leave(self) -> None:
        wall, cpu = self._at
        spent = time.thread_time() - cpu
        if self.last == EVENT_WAIT:
            Meter.waits_cpu += spent
        else:
            Meter.calls += 1
            Meter.calls_cpu += spent
            Meter.calls_wall += time.perf_counter() - wall
        super().leave()


def measured(seconds: float, options: Sequence[str]) -> int:
    """The probe in this process, with a thread that prints what it costs."""
    watching.CallWatch = Meter  # type: ignore[attr-defined]
    threading.Thread(target=_report, args=(seconds,), daemon=True).start()
    sys.argv = ["nodegauge_probes", "watch", *options]
    return cli.main()


def _report(seconds: float) -> None:
    time.sleep(min(START_S, seconds))
    began, cpu = time.monotonic(), time.process_time()
    before = Meter.calls, Meter.calls_cpu, Meter.calls_wall, Meter.waits_cpu
    for part in range(1, 11):
        time.sleep(max(0.0, began + seconds * part / 10 - time.monotonic()))
        passed = time.monotonic() - began
        now = Meter.calls, Meter.calls_cpu, Meter.calls_wall, Meter.waits_cpu
        calls, calls_cpu, calls_wall, waits = ((b - a) / passed for a, b in zip(before, now, strict=True))
        each = 1e6 * calls_wall / (calls or 1)
        whole = (time.process_time() - cpu) / passed
        own = whole - calls_cpu - waits
        print(
            f"{passed:6.0f} s: {1000 * whole:.2f} m CPU, of it {1000 * own:.2f} m the probe's own,"
            f" {1000 * calls_cpu:.2f} m in {calls:.0f} NVML calls a second ({each:.0f} us each"
            f" by the clock), {1000 * waits:.2f} m waiting for Xids; RSS {_rss_mib():.1f} MiB",
            file=sys.stderr,
            flush=True,
        )
    os._exit(0)


def _rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main(arguments: Sequence[str] | None = None) -> int:
    """0 after the time, or the probe's exit code if it ended before."""
    parser = argparse.ArgumentParser(prog="python -m fleet.load.watch_probe", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, metavar="N", help="default: 120")
    parser.add_argument("--profile", default="h100-sxm-8", metavar="NAME", help="default: h100-sxm-8")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options, rest = parser.parse_known_args(arguments)
    if options.inside:
        return measured(options.seconds, rest)
    with tempfile.TemporaryDirectory() as folder:
        hardware = busy(options.profile, Path(folder) / "machine")
        environment = probe_environment(hardware, Path(folder) / "termination-log", {})
        calm = ["--state", f"{folder}/watch.json", "--confirm", ""]
        calm += ["--interval", str(2 * options.seconds + 600)]
        command = [sys.executable, "-m", "fleet.load.watch_probe", "--inside"]
        command += ["--seconds", str(options.seconds), *calm, *rest]
        return subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
