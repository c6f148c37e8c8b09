"""The watch probe on simulated hardware, one life of its container after the other."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nodegauge_contract import Result, decode
from nodegauge_judge import judge_health
from support.probing import Probe
from testbed import forkserver
from testbed.wait import DEADLINE_SECONDS, wait_for

QUICK = ("--window", "0.2", "--hz", "10", "--poll", "0.02", "--confirm", "")
COUNTING = """
import sys
from nodegauge_probes import watch_options
from nodegauge_probes.watch.reader import Reader

def quicker(name, usual, least, *more):
    return (name, usual, 0.01 if name == "poll" else least, *more)

def counted(self):
    look(self)
    with open(path, "ab") as looks:
        looks.write(b".")

look, Reader.look, path = Reader.look, counted, sys.argv.pop(1)
watch_options.NUMBERS = tuple(quicker(*number) for number in watch_options.NUMBERS)
from nodegauge_probes.__main__ import main
sys.exit(main())
"""
"""The probe, which may look more often and leaves a byte in a file for each of its looks."""


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

    @property
    def xids(self) -> list[list[int]]:
        """The Xids of each GPU."""
        assert self.result is not None
        return [gpu.xids.seen for gpu in self.result.gpus]

    @property
    def codes(self) -> set[str]:
        """What the judge finds."""
        assert self.result is not None
        return {finding.code for finding in judge_health(self.result).findings}


class Watch:
    """A watch probe; its state lasts from life to life."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.hardware = probe.hardware
        self.state = probe.folder / "watch.json"
        self._looks = probe.folder / "looks"

    @property
    def looks(self) -> int:
        """How many this life has had."""
        return self._looks.stat().st_size

    @contextmanager
    def started(
        self, *options: str, start: Callable[..., Any] = forkserver.popen
    ) -> Iterator[subprocess.Popen[str]]:
        """It, running; killed in the end."""
        counting = [sys.executable, "-c", COUNTING, str(self._looks)]
        command = [*counting, "watch", "--state", str(self.state), *QUICK, *options]
        self.probe.termination_log.unlink(missing_ok=True)
        self._looks.write_bytes(b"")
        process = start(
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

    def after(self, change: Callable[[], object], *options: str, looks: int = 10) -> Ended:
        """A life that is calm for so many looks, until something is done to its machine."""
        with self.started(*options) as process:
            self.calm(process, looks=looks)
            change()
            return self.ended(process)

    def calm(self, process: subprocess.Popen[str], *, looks: int = 10) -> None:
        """It stays for so many looks; the slowest signals are read at every thirtieth."""
        wanted = self.looks + looks
        wait_for(lambda: process.poll() is not None or self.looks >= wanted, what=f"{wanted} looks")
        assert process.poll() is None, process.communicate()[1]

    def reports(self, *, looks: int = 45) -> list[str]:
        """Why it reports, life after life, until it stays for so many looks."""
        reasons: list[str] = []
        while True:
            with self.started() as process:
                wait_for(lambda: process.poll() is not None or self.looks >= looks, what=f"{looks} looks")
                if process.poll() is None:
                    return reasons
                reasons.append(self.ended(process).why)

    def stored(self) -> Any:
        """Its state file."""
        return json.loads(self.state.read_text())

    def pass_time(self, seconds: float) -> None:
        """Its last report was so much earlier."""
        stored = self.stored()
        self.state.write_text(json.dumps(stored | {"reported": stored["reported"] - seconds}))
