"""The watch probe on simulated hardware, one life of its container after the other."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodegauge_contract import Result, decode
from support.probing import PROGRAM, Probe
from testbed import forkserver
from testbed.wait import DEADLINE_SECONDS, wait_for

DRIVER = "libnvidia-ml.so"
QUICK = ("--window", "0.2", "--hz", "10", "--poll", "0.1", "--confirm", "")


@dataclass
class Ended:
    """What one life left."""

    result: Result | None
    stderr: str
    code: int

    @property
    def why(self) -> str:
        """The reason of its report."""
        return self.stderr.strip().splitlines()[-1] if self.stderr.strip() else ""


class Watch:
    """A watch probe; its state lasts from life to life."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.state = probe.folder / "watch.json"

    @contextmanager
    def started(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        """It, running; killed in the end."""
        command = [*PROGRAM, "watch", "--state", str(self.state), *QUICK, *options]
        self.probe.termination_log.unlink(missing_ok=True)
        process = forkserver.popen(
            command, env=self.probe.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def ended(self, process: subprocess.Popen[str], *, within: float = DEADLINE_SECONDS) -> Ended:
        """Its end by itself."""
        out, err = process.communicate(timeout=within)
        result = decode(out) if out else None
        if result is not None:
            assert decode(self.probe.termination_log.read_text()) == result
        return Ended(result, err, process.returncode)

    def life(self, *options: str) -> Ended:
        """One life, from start to report."""
        with self.started(*options) as process:
            return self.ended(process)

    def after(self, change: Callable[[], object], *options: str) -> Ended:
        """A life that is calm until something is done to its machine."""
        with self.started(*options) as process:
            self.calm(process)
            change()
            return self.ended(process)

    def calm(self, process: subprocess.Popen[str], *, seconds: float = 1) -> None:
        """From its first call of the driver on it stays for so long."""
        maps = Path(f"/proc/{process.pid}/maps")
        wait_for(lambda: process.poll() is not None or DRIVER in maps.read_text(), what="the driver")
        time.sleep(seconds)
        assert process.poll() is None, process.communicate()[1]

    def stored(self) -> Any:
        """Its state file."""
        return json.loads(self.state.read_text())


def terminated(process: subprocess.Popen[str]) -> float:
    """Seconds from SIGTERM to the end."""
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=DEADLINE_SECONDS)
    return time.monotonic() - began
