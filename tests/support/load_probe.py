"""Runs of the load probe on simulated machines that feel their load."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from nodegauge_contract import LoadResult, Result
from support.nccl_probe import NcclRun
from testbed.hardware.loads import following
from testbed.hardware.plugged import LOADS
from testbed.wait import wait_for

QUICK = ("--seconds", "2")


def load(run: NcclRun, *options: str) -> LoadResult:
    with following(run.hardware):
        result = run.result(*(options or QUICK), probe="load")
    assert result.problem is None
    assert result.load is not None
    return result.load


@dataclass
class Burning:
    run: NcclRun
    process: subprocess.Popen[bytes]

    def __call__(self) -> Result:
        return self.run.finish(self.process)

    @property
    def children(self) -> list[int]:
        return [pid for pid in self.run.left_behind() if pid != self.process.pid]


@contextmanager
def burning(run: NcclRun, *options: str) -> Iterator[Burning]:
    loads = run.hardware.directory / LOADS
    loads.unlink(missing_ok=True)  # what a run before has announced
    with following(run.hardware):
        process = run.start(*(options or ("--seconds", "30")), probe="load")

        def computes() -> bool:
            """Set-up computes, then copies, then the load: what each GPU announced last, and how often."""
            lines = [line.split() for line in loads.read_text().splitlines()] if loads.exists() else []
            each = ([percent for _, own, _, percent in lines if own == u] for u in run.hardware.uuids)
            return all(len(percents) > 2 and percents[-1] == "100" for percents in each)

        try:
            wait_for(computes, what="all GPUs compute")
            yield Burning(run, process)
        finally:
            process.kill()
            process.communicate()
