"""The watch probe on simulated hardware: what it prints, reading by reading, and on standard error why."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodegauge_contract import Result, decode
from nodegauge_judge import judge_health
from nodegauge_probes.watch.schedule import SHORTEST_S
from support.probing import Probe
from testbed import forkserver
from testbed.wait import DEADLINE_SECONDS, wait_for

QUICK = ("--window", "0.2", "--hz", "10", "--poll", "0.02", "--confirm", "")
CONTROLLED = """
import sys
from pathlib import Path
from nodegauge_probes import watch_options
from nodegauge_probes.watch.reader import Reader

def quicker(name, usual, least, *more):
    return (name, usual, 0.01 if name == "poll" else least, *more)

def counted(self):
    look(self)
    with open(folder / "looks", "ab") as looks:
        looks.write(b".")

folder = Path(sys.argv.pop(1))
look, Reader.look = Reader.look, counted
watch_options.NUMBERS = tuple(quicker(*number) for number in watch_options.NUMBERS)
from nodegauge_probes.__main__ import main
sys.exit(main())
"""
REASON = re.compile(r"(first|due|changed|confirmed|hung|late|crashed)\b")


@dataclass
class Taken:
    result: Result
    why: str

    @property
    def xids(self) -> list[list[int]]:
        return [gpu.xids.seen for gpu in self.result.gpus]

    @property
    def codes(self) -> set[str]:
        return {finding.code for finding in judge_health(self.result).findings}


class Life:
    def __init__(self, process: subprocess.Popen[Any], folder: Path) -> None:
        self.process = process
        self._folder = folder
        self._heard = 0

    @property
    def readings(self) -> list[Taken]:
        lines = (self._folder / "out").read_text().splitlines(keepends=True)
        documents = [decode(line) for line in lines if line.endswith("\n")]
        return [Taken(document, why) for document, why in zip(documents, self.reasons, strict=False)]

    @property
    def errors(self) -> list[str]:
        return (self._folder / "err").read_text().splitlines()

    @property
    def reasons(self) -> list[str]:
        return [line for line in self.errors if REASON.match(line)]

    @property
    def looks(self) -> int:
        return (self._folder / "looks").stat().st_size

    def next_reading(self) -> Taken:
        wanted = self._heard + 1
        wait_for(
            lambda: self._has_ended or len(self.readings) >= wanted, what=f"reading {wanted} of the probe"
        )
        readings = self.readings
        assert len(readings) >= wanted, f"it ended: {self.errors}"
        self._heard = wanted
        return readings[wanted - 1]

    def until(self, holds: Callable[[Taken], bool], *, what: str) -> Taken:
        while not holds(next_reading := self.next_reading()):
            assert self._heard < 100, f"100 readings without {what}: {self.reasons}"
        return next_reading

    def calm(self, *, looks: int = 10) -> None:
        """No reading for so many looks, though it might; the slowest signals are read at every thirtieth."""
        self.rest(looks)
        assert self._has_ended is False, self.errors
        assert self.reasons[self._heard :] == []

    def looks_once(self) -> None:
        """It has had its first look, and might take a reading."""
        wait_for(lambda: self._has_ended or (self.looks and self._may_read), what="the first look")

    def rest(self, looks: int) -> None:
        wait_for(lambda: self._has_ended or self._may_read, what="the pause after its last reading")
        wanted = self.looks + looks
        wait_for(lambda: self._has_ended or self.looks >= wanted, what=f"{wanted} looks")

    @property
    def _may_read(self) -> bool:
        stored = json.loads((self._folder / "watch.json").read_text())
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        return bool(now - stored["reported"] > SHORTEST_S) and len(self.readings) == len(self.reasons)

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(timeout=DEADLINE_SECONDS)

    @property
    def _has_ended(self) -> bool:
        return self.process.poll() is not None


class Watch:
    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.hardware = probe.hardware
        self.state = probe.folder / "watch.json"

    @contextmanager
    def started(self, *options: str, start: Callable[..., Any] = forkserver.popen) -> Iterator[Life]:
        folder = self.probe.folder
        command = [
            sys.executable,
            "-c",
            CONTROLLED,
            str(folder),
            "watch",
            "--state",
            str(self.state),
            *QUICK,
            *options,
        ]
        (folder / "looks").write_bytes(b"")
        with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
            process = start(command, env=self.probe.env(), stdout=out, stderr=err)
        try:
            yield Life(process, folder)
        finally:
            process.kill()
            process.wait()

    def life(self, *options: str) -> Taken:
        with self.started(*options) as life:
            next_reading = life.next_reading()
            assert life.end() == 0
            return next_reading

    def after(self, change: Callable[[], object], *options: str, looks: int = 10) -> Taken:
        with self.started(*options) as life:
            life.calm(looks=looks)
            change()
            next_reading = life.next_reading()
            assert life.end() == 0
            return next_reading

    def reports(self, *, looks: int = 45) -> list[str]:
        with self.started() as life:
            while True:
                before = len(life.reasons)
                life.rest(looks)
                if len(life.reasons) == before:
                    return life.reasons

    def stored(self) -> Any:
        return json.loads(self.state.read_text())
