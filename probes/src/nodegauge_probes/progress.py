"""What a run is doing, in a few words, for somebody who waits for it: `--progress`.

Must not ask the driver or the probe: the runner looks at what they have so far.
"""

from __future__ import annotations

from collections.abc import Callable

from nodegauge_contract.nccl import Phase
from nodegauge_probes.load.record import LoadRecord
from nodegauge_probes.result_builder import NcclBuilder, ResultBuilder
from nodegauge_probes.runner import CallWatch

SLOW_CALL_S = 1.0
"""Seconds after which a call into the driver is named.  Chosen by this project: most return within 0.01 s."""
DOING = {
    Phase.SPAWN: "starts Python and NCCL",
    Phase.INIT: "makes communicators",
    Phase.LOAD: "loads kernels",
    Phase.MEASURE: "measures",
    Phase.CHECK: "checks data",
    Phase.PAIRS: "copies between pairs of GPUs",
    Phase.TEARDOWN: "ends",
}
"""What the processes of an NCCL run do."""


class Progress:
    """Says what a run is doing, each time that this changes."""

    def __init__(self, result: ResultBuilder, *, say: Callable[[str], None]) -> None:
        self._result, self._say, self._said = result, say, ""

    def __call__(self, watch: CallWatch) -> None:
        """One look."""
        text = doing(self._result, watch)
        if text and text != self._said:
            self._said = text
            self._say(text)


def doing(result: ResultBuilder, watch: CallWatch) -> str:
    """What the run does now, or waits for; empty if that is not known."""
    call = watch.now
    if call is not None and watch.age(call) >= SLOW_CALL_S:
        return f"waits for the driver: {call.name}{f' of {call.subject}' if call.subject else ''}"
    if isinstance(result.load, LoadRecord) and result.load.gpus:
        return _loading(result.load)
    if result.nccl is not None and result.nccl.arms:
        return _measuring(result.nccl)
    number = len(result.gpus)
    return f"reads {number} GPU{'s' if number > 1 else ''}" if number else "opens the driver"


def _measuring(nccl: NcclBuilder) -> str:
    """Which arm of how many, what it does, and how many sizes it has."""
    begun = [(number, arm) for number, arm in enumerate(nccl.arms, 1) if arm.phase]
    if not begun:
        return ""
    number, arm = begun[-1]  # one that failed keeps its phase
    phase = next((text for phase, text in DOING.items() if phase == arm.phase), arm.phase)
    done = f", {len(arm.cells)} results" if arm.cells else ""
    return f"{arm.name} ({number} of {len(nccl.arms)}) {phase}{done}"


def _loading(load: LoadRecord) -> str:
    """What the GPUs do, and for how long they have computed."""
    seconds = max((gpu.loaded[-1].ms // 1000 for gpu in load.gpus if gpu.loaded), default=None)
    if all(gpu.over for gpu in load.gpus):
        return "reads the storage" if load.storage is not None else "reads the counters"
    if seconds is not None:
        return f"computes, {seconds} of {load.planned:g} s"
    copying = any(gpu.copying for gpu in load.gpus)
    return "sets up the GPUs and copies" if copying else "samples the idle GPUs"
