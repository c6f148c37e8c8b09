"""The pull probe: brings the nccl image onto the node, and says whether its engine can be loaded there.

Runs in a pod that asks for no GPU, so that no GPU waits for an image of most of a gigabyte.  It opens no
NVML and gives the engine no GPU: the child is asked who would measure, with an order that has none.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from nodegauge_contract import ArmName, Problem, ProblemKind
from nodegauge_probes.host import boot
from nodegauge_probes.nccl import probe, supervisor
from nodegauge_probes.nccl.cgroup import Cgroup, shm_bytes
from nodegauge_probes.nccl.environment import child_environment
from nodegauge_probes.nccl.process_tree import Family
from nodegauge_probes.nccl.protocol import About, Order, encode_order
from nodegauge_probes.result_builder import ArmDraft, Draft, NcclBuilder

NAME = "pull"


def run(draft: Draft, *, watch: probe.Watch, settings: probe.Settings) -> None:
    """Load the engine in a child of its own; `draft.problem` says where that cannot be done."""
    draft.host["boot_id"] = boot.boot_id(settings.procfs)
    draft.host["boottime_ms"] = boot.boottime_ms()
    nccl = draft.nccl = NcclBuilder()
    nccl.parts |= {"engine": settings.engine, "expected": settings.expected, "shm_bytes": shm_bytes()}
    arm, family, told = ArmDraft(ArmName.DEFAULT), Family(), list[About]()
    watch.before_leaving.append(family.stop)
    with tempfile.TemporaryDirectory(prefix="nodegauge-") as scratch:
        supervisor.run(_child(settings, Path(scratch), told), arm, family)
    for who in told:
        probe.about(nccl, who)
    if not told:
        message = str(arm.parts.get("message", "")) or "it does not say who it is"
        outcome = arm.parts["outcome"]
        draft.problem = Problem(
            kind=ProblemKind.NO_ENGINE, call=settings.engine, message=f"{outcome}: {message}"
        )


def _child(settings: probe.Settings, scratch: Path, told: list[About]) -> supervisor.Child:
    order = Order(arm=ArmName.DEFAULT, uuids=(), cells=())
    return supervisor.Child(
        program=supervisor.program(settings.program, encode_order(order)),
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
