"""The pull probe: pulls the nccl image onto the node, and checks that its engine can be loaded there.

Its pod requests no GPU, so that no GPU waits for an image of most of a gigabyte.  It opens no NVML: it starts
a child with an order without GPUs, which only reports the engine.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from nodegauge_contract import ArmName, Problem, ProblemKind
from nodegauge_probes.host import kernel
from nodegauge_probes.nccl import plan, probe, supervisor
from nodegauge_probes.nccl.process_tree import ProcessTree, Watch, seconds_to_work
from nodegauge_probes.nccl.protocol import EngineInfo, Order, encode_order
from nodegauge_probes.result_builder import ArmBuilder, ResultBuilder

NAME = "pull"


def run(result: ResultBuilder, *, watch: Watch, settings: probe.Settings) -> None:
    """Load the engine in a child; `result.problem` says why that failed."""
    result.host.set(boot_id=kernel.boot_id(settings.procfs))
    result.host.set(boottime_ms=kernel.boottime_ms())
    nccl = result.nccl = settings.new_builder()
    arm, processes, engines = ArmBuilder(ArmName.DEFAULT), ProcessTree(), list[EngineInfo]()
    watch.before_exit.append(processes.shutdown)
    with tempfile.TemporaryDirectory(prefix="nodegauge-") as scratch:
        supervisor.run(_child(settings, Path(scratch), engines), arm, processes)
    for engine in engines:
        probe.add_engine(nccl, engine)
    if not engines:
        message = f"{arm.outcome}: {arm.message or 'it does not name its engine'}"
        result.problem = Problem(kind=ProblemKind.NO_ENGINE, call=settings.engine, message=message)


def _child(settings: probe.Settings, scratch: Path, engines: list[EngineInfo]) -> supervisor.Child:
    order, seconds = Order(arm=ArmName.DEFAULT, uuids=(), cells=()), seconds_to_work(settings.deadline)
    return supervisor.Child(
        program=supervisor.program(settings.program, encode_order(order)),
        environment=plan.child_environment(
            settings.environment,
            arm=ArmName.DEFAULT,
            uuids=(),
            policy=settings.nccl_variables,
            scratch=scratch,
        ),
        ranks=0,
        limits=settings.limits,
        startup=seconds,
        until=time.monotonic() + seconds,
        oom_kills=kernel.Cgroup(sysfs=settings.sysfs, procfs=settings.procfs).oom_kills,
        on_engine=engines.append,
        on_cut=lambda _: None,
    )
