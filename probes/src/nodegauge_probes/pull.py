"""The pull probe: brings the bench image onto the node, and says whether its engine can be loaded there.

Runs in a pod that asks for no GPU, so that no GPU waits for an image of most of a gigabyte.  It opens no
NVML and gives the engine no GPU: the child is asked who would measure, with an order that has none.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from nodegauge_contract import ArmName, Problem, ProblemKind
from nodegauge_probes import host
from nodegauge_probes.draft import ArmDraft, BenchDraft, Draft
from nodegauge_probes.nccl import measure, supervise
from nodegauge_probes.nccl.environment import child_environment
from nodegauge_probes.nccl.processes import Family
from nodegauge_probes.nccl.speech import About, Order, encode_order
from nodegauge_probes.nccl.surroundings import Cgroup, shm_bytes

NAME = "pull"


def run(draft: Draft, *, watch: measure.Watch, settings: measure.Settings) -> None:
    """Load the engine in a child of its own; `draft.problem` says where that cannot be done."""
    draft.host["boot_id"] = host.boot_id(settings.procfs)
    draft.host["boottime_ms"] = host.boottime_ms()
    bench = draft.bench = BenchDraft()
    bench.parts |= {"engine": settings.engine, "expected": settings.expected, "shm_bytes": shm_bytes()}
    arm, family, told = ArmDraft(ArmName.DEFAULT), Family(), list[About]()
    watch.before_leaving.append(family.stop)
    with tempfile.TemporaryDirectory(prefix="nodegauge-") as scratch:
        supervise.run(_child(settings, Path(scratch), told), arm, family)
    for who in told:
        measure.about(bench, who)
    if not told:
        message = str(arm.parts.get("message", "")) or "it does not say who it is"
        outcome = arm.parts["outcome"]
        draft.problem = Problem(
            kind=ProblemKind.NO_ENGINE, call=settings.engine, message=f"{outcome}: {message}"
        )


def _child(settings: measure.Settings, scratch: Path, told: list[About]) -> supervise.Child:
    order = Order(arm=ArmName.DEFAULT, uuids=(), cells=())
    return supervise.Child(
        program=supervise.program(settings.program, encode_order(order)),
        environment=child_environment(
            settings.own,
            arm=ArmName.DEFAULT,
            uuids=(),
            policy=settings.environment,
            scratch=scratch,
        ),
        ranks=0,
        limits=settings.limits,
        until=time.monotonic() + settings.time,
        kills=Cgroup(sysfs=settings.sysfs, procfs=settings.procfs).kills,
        at_about=told.append,
        at_cut=lambda _: None,
    )
