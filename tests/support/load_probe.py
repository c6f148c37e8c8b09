"""Runs of the load probe on simulated machines that feel their load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nodegauge_contract import LoadResult, Result
from support.nccl_probe import NcclRun, wait_for
from testbed.hardware.loads import following
from testbed.hardware.plugged import LOADS

QUICK = ("--seconds", "2")


def load(run: NcclRun, *options: str) -> LoadResult:
    """What a run without a problem loaded."""
    with following(run.hardware):
        result = run.result(*(options or QUICK), probe="load")
    assert result.problem is None
    assert result.load is not None
    return result.load


@contextmanager
def burning(run: NcclRun, *options: str) -> Iterator[Callable[[], Result]]:
    """A run whose GPUs compute; the result once it is asked for."""
    loads = run.hardware.directory / LOADS
    loads.unlink(missing_ok=True)  # what a run before has announced
    with following(run.hardware):
        process = run.start(*(options or ("--seconds", "30")), probe="load")

        def computes() -> bool:
            """Set-up computes, then copies, then the load: what each GPU announced last, and how often."""
            lines = [line.split() for line in loads.read_text().splitlines()] if loads.exists() else []
            changes = {
                uuid: [percent for _, own, _, percent in lines if own == uuid] for uuid in run.hardware.uuids
            }
            return all(len(each) > 2 and each[-1] == "100" for each in changes.values())

        try:
            assert wait_for(computes)
            yield lambda: run.finish(process)
        finally:
            process.kill()
            process.communicate()
