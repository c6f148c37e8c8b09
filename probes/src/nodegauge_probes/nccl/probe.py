"""The NCCL probe: is this node free, what to measure, one child per arm, NCCL's choices.

All results so far are in the builder at every moment, because the run may end at any: a preempted pod has
seconds.  Nothing is judged; a child that hangs is an arm that hung.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_contract import NOT_READ, ArmName, ArmOutcome, Int, Skip
from nodegauge_contract.nccl_tests.choices import Choices
from nodegauge_probes.host.kernel import Cgroup, growth, shm_bytes
from nodegauge_probes.nccl import debuglog, plan, precondition, supervisor
from nodegauge_probes.nccl.plan import Processes
from nodegauge_probes.nccl.process_tree import ProcessTree, Watch, seconds_to_work
from nodegauge_probes.nccl.protocol import EngineInfo, Order, encode_order
from nodegauge_probes.nccl.receiver import one_line
from nodegauge_probes.nccl.supervisor import Limits
from nodegauge_probes.result_builder import ArmBuilder, NcclBuilder, ResultBuilder

NAME = "nccl"
SLOW_INIT_S = 15.0

RANKS = "nodegauge_probes.nccl.ranks"
ONE_START_PER_COLLECTIVE = frozenset({"nccl-tests"})
"""Engines that start NCCL anew for each collective."""


class Settings(Struct, frozen=True, kw_only=True):
    """One run of the NCCL probe."""

    engine: str
    """Name of the engine, a key of `plan.ENGINES`."""
    child: str
    """A program to use instead of the engine, by default one for all GPUs; or empty."""
    processes: Processes
    """How many processes drive the GPUs."""
    expected: int
    """GPUs that the node should have; 0 if unknown."""
    shared: str
    """How the GPUs are shared; empty if they are not."""
    nccl_variables: Mapping[str, str]
    """The policy's NCCL_* variables."""
    environment: Mapping[str, str]
    """The probe's own."""
    limits: Limits
    """Seconds that a child may take."""
    deadline: float
    """Seconds of the whole run."""
    budget: float
    """Seconds for all arms together."""
    sysfs: Path
    """Root to use as /sys."""
    procfs: Path
    """Root to use as /proc."""

    @property
    def program(self) -> tuple[str, ...]:
        return (self.child,) if self.child else (sys.executable, "-m", plan.ENGINES[self.engine])

    @property
    def per_gpu(self) -> bool:
        """Whether every GPU gets a process of its own."""
        if self.processes is Processes.AUTO:
            return self.engine in plan.ENGINES_PER_GPU and not self.child
        return self.processes is Processes.PER_GPU

    def new_builder(self) -> NcclBuilder:
        return NcclBuilder(engine=self.engine, expected=self.expected, shm_bytes=shm_bytes())


def measure(result: ResultBuilder, *, watch: Watch, settings: Settings) -> None:
    """Measure into `result`; raises `NvmlUnusable` if NVML cannot be used at all."""
    until = time.monotonic() + seconds_to_work(settings.deadline)
    nccl = result.nccl = settings.new_builder()
    node = precondition.read_node(result, watch=watch, sysfs=settings.sysfs, procfs=settings.procfs)
    skipped = precondition.skip_reason(node, expected=settings.expected, shared=settings.shared)
    gpus = precondition.usable(node.gpus)
    nccl.uuids = [str(gpu.uuid) for gpu in gpus]
    if skipped is not None:
        nccl.skipped, nccl.message = skipped.reason, skipped.message
        return
    nccl.ranks = len(gpus)
    nccl.message = precondition.missing(node.gpus, expected=settings.expected)
    processes = ProcessTree()
    watch.before_exit.append(processes.shutdown)
    Arms(nccl, settings=settings, machine=precondition.machine(node), processes=processes, until=until).run()


class Arms:
    """The arms of one run, one after the other, within one budget."""

    def __init__(
        self,
        nccl: NcclBuilder,
        *,
        settings: Settings,
        machine: plan.Machine,
        processes: ProcessTree,
        until: float,
    ) -> None:
        self._nccl, self._settings, self._machine = nccl, settings, machine
        self._processes, self._until = processes, until
        self._cgroup = Cgroup(sysfs=settings.sysfs, procfs=settings.procfs)
        self._spent: list[plan.Spent] = []

    def run(self) -> None:
        """Measure every arm; one that the run does not reach stays in the result as cut."""
        before = self._cgroup.throttled_periods()
        names = plan.arms(self._machine)
        self._nccl.arms = [ArmBuilder(name) for name in names]
        for index, name in enumerate(names):
            self._run_arm(name, self._nccl.arms[index], later=names[index + 1 :])
            self._nccl.throttled_periods = growth(before, self._cgroup.throttled_periods())
            if self._nccl.skipped:
                return
        self._start_again()

    def _start_again(self) -> None:
        """Start the arms again that did not start in time, if others did.

        The first arm meets a cold disk and cold drivers, so it alone proves nothing.  Only a start that is
        slow again shows that this configuration makes the difference.
        """
        arms = self._nccl.arms
        if all(arm.outcome == ArmOutcome.START_SLOW for arm in arms):
            return
        for index, arm in enumerate(arms):
            if arm.outcome == ArmOutcome.START_SLOW:
                arms[index] = ArmBuilder(arm.name, starts=2)
                self._run_arm(ArmName(arm.name), arms[index], later=())

    def _run_arm(self, name: ArmName, arm: ArmBuilder, *, later: Sequence[ArmName]) -> None:
        arm.message = "the run ended before this arm began"
        if self._processes.shut_down or time.monotonic() > self._until:
            return
        seconds = plan.allowance(self._settings.budget, spent=self._spent, later=later)
        order, cut = plan.order_for(name, self._machine, uuids=self._nccl.uuids, seconds=seconds)
        self._nccl.cut.extend(each for each in cut if each not in self._nccl.cut)
        arm.processes = self._machine.ranks if self._settings.per_gpu else 1
        scratch = Path(tempfile.mkdtemp(prefix="nodegauge-"))
        try:
            failed = supervisor.run(self._child(name, order, scratch), arm, self._processes)
            self._add_choices(arm, debuglog.read(scratch))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        self._spent.append(_spent(arm))
        if failed is not None and failed.kind == supervisor.NO_ENGINE:
            self._nccl.arms, self._nccl.ranks = [], 0
            self._nccl.skipped, self._nccl.message = Skip.NO_ENGINE, one_line(failed.message)

    def _child(self, name: ArmName, order: Order, scratch: Path) -> supervisor.Child:
        collectives = len({cell.collective for cell in order.cells})
        starts = collectives if self._settings.engine in ONE_START_PER_COLLECTIVE else 1
        command = self._settings.program
        if self._settings.per_gpu:
            command = (sys.executable, "-m", RANKS, *command)
            order = replace(order, meeting=str(scratch / "unique-id"))
        environment = plan.child_environment(
            self._settings.environment,
            arm=name,
            uuids=self._nccl.uuids,
            policy=self._settings.nccl_variables,
            scratch=scratch,
        )
        return supervisor.Child(
            program=supervisor.program(command, encode_order(order)),
            environment=environment,
            ranks=self._machine.ranks,
            limits=self._settings.limits,
            startup=plan.startup_seconds(name, ranks=self._machine.ranks, starts=starts),
            until=self._until,
            oom_kills=self._cgroup.oom_kills,
            on_engine=lambda engine: add_engine(self._nccl, engine),
            on_cut=lambda what: self._nccl.cut.append(plan.in_arm(name, what)[:128]),
        )

    def _add_choices(self, arm: ArmBuilder, choices: Choices) -> None:
        """Add what only NCCL's log contains."""
        arm.transport, arm.nvls = choices.transport, choices.nvls
        arm.channels, arm.host_buffers = choices.channels, choices.host_buffers
        arm.multicast = choices.multicast
        for index, cell in enumerate(arm.cells):
            if cell.algorithm == NOT_READ:
                algorithm, protocol = choices.chosen(cell.collective, cell.bytes, ranks=self._machine.ranks)
                arm.cells[index] = replace(cell, algorithm=algorithm, protocol=protocol)
        self._nccl.add_versions(nccl=choices.version, cuda=choices.cuda)
        remarks = [arm.message]
        if arm.outcome not in (ArmOutcome.DONE, ArmOutcome.CUT) and choices.warning:
            remarks.append(f"NCCL: {choices.warning}")
        if choices.init_s > SLOW_INIT_S:
            remarks.append(f"init {choices.init_s:.0f} s, of which kernels {choices.kernels_s:.0f} s")
        arm.message = one_line("; ".join(remark for remark in remarks if remark))


def add_engine(nccl: NcclBuilder, engine: EngineInfo) -> None:
    """The engine, with versions from the first child that reports them."""
    nccl.engine = engine.name
    nccl.add_versions(engine_version=engine.version, nccl=engine.nccl, cuda=engine.cuda)


def _spent(arm: ArmBuilder) -> plan.Spent:
    def seconds(*milliseconds: Int) -> float:
        return sum(each for each in milliseconds if isinstance(each, int)) / 1000

    return plan.Spent(
        startup=seconds(arm.spawn_ms, arm.init_ms, arm.load_ms),
        measure=seconds(arm.measure_ms),
        teardown=seconds(arm.teardown_ms),
    )
