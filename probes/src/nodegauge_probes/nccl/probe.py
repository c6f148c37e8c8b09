"""The benchmark as a whole: is this node free, what to measure, one child per arm, what NCCL chose.

Whatever is known stands in the draft at every moment, because the run may end at any: a preempted pod has
seconds.  It judges nothing; a child that hangs is an arm that hung.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_contract import NOT_READ, ArmName, ArmOutcome, Skip, Text
from nodegauge_probes.nccl import debuglog, node, plan, precondition, supervisor
from nodegauge_probes.nccl.cgroup import Cgroup, growth, shm_bytes
from nodegauge_probes.nccl.clock import Limits
from nodegauge_probes.nccl.environment import child_environment
from nodegauge_probes.nccl.process_tree import Family
from nodegauge_probes.nccl.protocol import About, encode_order
from nodegauge_probes.nccl.receiver import words
from nodegauge_probes.result_builder import ArmDraft, Draft, NcclBuilder

NAME = "nccl"
MARGIN_S, MARGIN_SHARE = 8.0, 1 / 4
"""Of the deadline, kept for ending children and writing the result; of a short one a share."""
SLOW_INIT_S = 15.0

ENGINES = {
    "nccl4py": "nodegauge_probes.nccl.engine_nccl4py",
    "nccl-tests": "nodegauge_probes.nccl.engine_nccltests",
}
"""Name to module: each is a program that `speech` describes."""


class Watch(Protocol):
    """The runner's: told of calls into the driver, and of what to do before the process is left."""

    before_leaving: list[Callable[[], None]]

    def enter(self, call: str, subject: str) -> None: ...
    def leave(self) -> None: ...


class Settings(Struct, frozen=True, kw_only=True):
    """One run.  `child`: a program in the engine's place; `expected`: GPUs that the node should have, 0 where
    nobody said; `shared`: how the GPUs are shared, empty where they are not; `environment`: the policy's
    NCCL_* variables; `own`: the probe's environment; seconds for `deadline` and `budget`."""

    engine: str
    child: str
    expected: int
    shared: str
    environment: Mapping[str, str]
    own: Mapping[str, str]
    limits: Limits
    deadline: float
    budget: float
    sysfs: Path
    procfs: Path

    @property
    def time(self) -> float:
        """Seconds until the children have to be gone."""
        return self.deadline - min(MARGIN_S, self.deadline * MARGIN_SHARE)

    @property
    def program(self) -> tuple[str, ...]:
        return (self.child,) if self.child else (sys.executable, "-m", ENGINES[self.engine])


def measure(draft: Draft, *, watch: Watch, settings: Settings) -> None:
    """Measure into `draft`; raises `NvmlUnusable` where the driver cannot be asked at all."""
    until = time.monotonic() + settings.time
    nccl = draft.nccl = NcclBuilder()
    nccl.parts |= {"engine": settings.engine, "expected": settings.expected, "shm_bytes": shm_bytes()}
    found = node.read(draft, watch=watch, sysfs_root=settings.sysfs, procfs=settings.procfs)
    able = precondition.usable(found.gpus)
    nccl.parts |= {"ranks": len(able), "uuids": [str(gpu.uuid) for gpu in able]}
    skipped = precondition.skipped(
        found.gpus,
        found.uses,
        expected=settings.expected,
        shared=settings.shared,
        confidential=found.confidential,
    )
    if skipped is not None:
        nccl.parts |= {"ranks": 0, "skipped": skipped.why, "message": skipped.message}
        return
    nccl.parts["message"] = precondition.missing(found.gpus, expected=settings.expected)
    family = Family()
    watch.before_leaving.append(family.stop)
    Arms(nccl, settings=settings, machine=node.machine(found), family=family, until=until).run()


class Arms:
    """The arms of one run, one after the other, on one budget."""

    def __init__(
        self,
        nccl: NcclBuilder,
        *,
        settings: Settings,
        machine: plan.Machine,
        family: Family,
        until: float,
    ) -> None:
        self._nccl, self._settings, self._machine = nccl, settings, machine
        self._family, self._until = family, until
        self._cgroup = Cgroup(sysfs=settings.sysfs, procfs=settings.procfs)
        self._spent: list[plan.Spent] = []

    def run(self) -> None:
        """Measure every arm; one that the run did not come to is there, and cut."""
        before = self._cgroup.throttled_periods()
        names = plan.arms(self._machine)
        self._nccl.arms = [ArmDraft(name) for name in names]
        for place, name in enumerate(names):
            self._arm(name, self._nccl.arms[place], later=names[place + 1 :])
            self._nccl.parts["throttled_periods"] = growth(before, self._cgroup.throttled_periods())
            if "skipped" in self._nccl.parts:
                return

    def _arm(self, name: ArmName, arm: ArmDraft, *, later: Sequence[ArmName]) -> None:
        arm.parts["message"] = "the run ended before it began"
        if self._family.stopped or time.monotonic() > self._until:
            return
        seconds = plan.allowance(self._settings.budget, spent=self._spent, later=later)
        uuids = self._nccl.parts["uuids"]
        order, cut = plan.order(name, self._machine, uuids=uuids, seconds=seconds)
        self._nccl.cut.extend(cut)
        scratch = Path(tempfile.mkdtemp(prefix="nodegauge-"))
        try:
            failed = supervisor.run(self._child(name, encode_order(order), scratch), arm, self._family)
            self._explain(arm, debuglog.read(scratch))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        self._spent.append(_spent(arm))
        if failed is not None and failed.what == supervisor.NO_ENGINE:
            self._nccl.arms = []
            skipped = {"ranks": 0, "skipped": Skip.NO_ENGINE, "message": words(failed.message)}
            self._nccl.parts |= skipped

    def _child(self, name: ArmName, order: str, scratch: Path) -> supervisor.Child:
        environment = child_environment(
            self._settings.own,
            arm=name,
            uuids=self._nccl.parts["uuids"],
            policy=self._settings.environment,
            scratch=scratch,
        )
        return supervisor.Child(
            program=supervisor.program(self._settings.program, order),
            environment=environment,
            ranks=self._machine.ranks,
            limits=self._settings.limits,
            until=self._until,
            kills=self._cgroup.kills,
            at_about=lambda told: about(self._nccl, told),
            at_cut=lambda what: self._nccl.cut.append(plan.in_arm(name, what)[:128]),
        )

    def _explain(self, arm: ArmDraft, choices: debuglog.Choices) -> None:
        """What NCCL's log adds to what the child said."""
        ranks = self._machine.ranks
        arm.parts |= {
            "transport": choices.transport,
            "nvls": choices.nvls,
            "channels": choices.channels,
            "host_buffers": choices.host_buffers,
        }
        for place, cell in enumerate(arm.cells):
            if cell.algorithm == NOT_READ:
                algorithm, protocol = choices.chosen(cell.collective, cell.bytes, ranks=ranks)
                arm.cells[place] = replace(cell, algorithm=algorithm, protocol=protocol)
        _note(self._nccl, nccl=choices.version, cuda=choices.cuda)
        remarks = [str(arm.parts.get("message", ""))]
        if arm.parts["outcome"] not in (ArmOutcome.DONE, ArmOutcome.CUT) and choices.warning:
            remarks.append(f"NCCL: {choices.warning}")
        if choices.init_s > SLOW_INIT_S:
            remarks.append(f"init {choices.init_s:.0f} s, of it kernels {choices.kernels_s:.0f} s")
        arm.parts["message"] = words("; ".join(remark for remark in remarks if remark))


def about(nccl: NcclBuilder, told: About) -> None:
    """Who measures, from the first child that says so."""
    nccl.parts["engine"] = told.engine
    _note(nccl, engine_version=told.engine_version, nccl=told.nccl, cuda=told.cuda)


def _note(draft: NcclBuilder, **versions: Text) -> None:
    """Versions that nobody has said yet."""
    for name, version in versions.items():
        if draft.parts.get(name, NOT_READ) == NOT_READ:
            draft.parts[name] = version


def _spent(arm: ArmDraft) -> plan.Spent:
    def seconds(*names: str) -> float:
        return sum(int(arm.parts.get(name, 0)) for name in names) / 1000

    return plan.Spent(
        startup=seconds("spawn_ms", "init_ms", "load_ms"),
        measure=seconds("measure_ms"),
        teardown=seconds("teardown_ms"),
    )
