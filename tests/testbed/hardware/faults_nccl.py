"""Faults that only an NCCL run meets: NVML reads as ever, and NCCL hangs, fails, lies or is slow.

They concern the simulated NCCL (testbed.simulated_nccl), in the named arm: all, default, p2p-off
or nvls-off.  An arm that is under way goes on as it began; the next one meets the fault.
"""

from __future__ import annotations

from msgspec.structs import replace

from nodegauge_contract.nccl import ArmName, Phase
from testbed.hardware.fault import Parameter, choice, fault, needs, whole
from testbed.hardware.machine import HardwareError, Machine
from testbed.simulated_nccl import trouble
from testbed.simulated_nccl.machine import Trouble

ARMS = {"all": "", **{arm.value: arm.value for arm in ArmName}}
PHASES = {phase.value: phase.value for phase in Phase if phase is not Phase.SPAWN}


def _add(machine: Machine, kind: str, *, arm: str = "all", phase: str = "") -> None:
    """Let this go wrong; HardwareError where there is no NCCL run."""
    there = machine.profile.nccl is not None and len(machine.gpus) > 1
    needs(machine, there, "second GPU that NCCL could join to the first")
    if phase:
        choice("phase", phase, PHASES)
    machine.nccl.append(Trouble(kind=kind, arm=choice("arm", arm, ARMS), phase=phase))


def _change(machine: Machine, **changes: object) -> None:
    """The trouble that was added last, with more to it."""
    machine.nccl.append(replace(machine.nccl.pop(), **changes))


@fault("nccl-hang")
def nccl_hang(machine: Machine, *, phase: str = "measure", arm: str = "all") -> None:
    """NCCL hangs in a phase (init, load, measure, check, pairs, teardown) and ignores SIGTERM."""
    _add(machine, trouble.HANG, arm=arm, phase=phase)


@fault("nccl-crash")
def nccl_crash(machine: Machine, *, phase: str = "measure", arm: str = "all", kind: str = "fault") -> None:
    """The process dies in a phase (kind: fault is SIGSEGV, killed is SIGKILL as by the OOM killer)."""
    kinds = {"fault": trouble.CRASH, "killed": trouble.KILLED}
    _add(machine, choice("kind", kind, kinds), arm=arm, phase=phase)


@fault("nccl-error")
def nccl_error(machine: Machine, *, phase: str = "init", arm: str = "all") -> None:
    """NCCL returns an error in a phase."""
    _add(machine, trouble.FAILED, arm=arm, phase=phase)


@fault("nccl-out-of-memory")
def nccl_out_of_memory(machine: Machine, *, phase: str = "load", arm: str = "all") -> None:
    """A GPU has no memory left for buffers or kernels."""
    _add(machine, trouble.OUT_OF_MEMORY, arm=arm, phase=phase)


@fault("nccl-no-engine")
def nccl_no_engine(machine: Machine) -> None:
    """The image's engine cannot be loaded."""
    _add(machine, trouble.NO_ENGINE)


@fault("nccl-cold-init")
def nccl_cold_init(machine: Machine, *, seconds: Parameter = 50, arm: str = "all") -> None:
    """Communicators take long to set up, as with cold kernels (55 s on a B200, NVIDIA/nccl issue 1646)."""
    _add(machine, trouble.COLD_INIT, arm=arm)
    _change(machine, seconds=float(whole("seconds", seconds, least=0)))


@fault("nccl-nvls-broken")
def nccl_nvls_broken(machine: Machine, *, kind: str = "init") -> None:
    """NVLS cannot be set up (kind: init, out-of-memory), which fails every arm that would use it."""
    needs(machine, machine.profile.nccl is not None and machine.profile.nccl.nvls_from > 0, "NVLS")
    _add(machine, trouble.NVLS_BROKEN)
    phase = choice("kind", kind, {"init": "", trouble.OUT_OF_MEMORY: trouble.OUT_OF_MEMORY})
    _change(machine, phase=phase)


@fault("nccl-wrong-data")
def nccl_wrong_data(machine: Machine, *, arm: str = "all") -> None:
    """Received data differs from what was sent."""
    _add(machine, trouble.WRONG_DATA, arm=arm)


@fault("nccl-garbage")
def nccl_garbage(machine: Machine, *, arm: str = "all") -> None:
    """The engine prints garbage after its first result."""
    _add(machine, trouble.GARBAGE, arm=arm)


@fault("nccl-partial")
def nccl_partial(machine: Machine, *, arm: str = "all") -> None:
    """The engine exits with 0 after its first result, without reporting the end."""
    _add(machine, trouble.PARTIAL, arm=arm)


@fault("slow-link")
def slow_link(machine: Machine, *, gpu: Parameter = 0, peer: Parameter = 1, percent: Parameter = 30) -> None:
    """Transfers between two GPUs are slow: copies show which, a ring is only slow."""
    one, other = machine.gpu(gpu), machine.gpu(peer)
    if one == other:
        raise HardwareError(f"gpu and peer are both {one}: a link joins two")
    _add(machine, trouble.SLOW_LINK)
    _change(machine, gpus=(one, other), percent=float(whole("percent", percent, least=1, most=100)))


@fault("nvlink-down-in-fact")
def nvlink_down_in_fact(machine: Machine) -> None:
    """The driver reports NVLinks as up, but they carry no data: transfers go through host memory."""
    needs(machine, machine.profile.model.links is not None, "NVLinks")
    _add(machine, trouble.LINKS_DEAD)


@fault("nccl-slow")
def nccl_slow(machine: Machine, *, percent: Parameter = 70, arm: str = "all") -> None:
    """Collectives reach this share of their usual bandwidth, on all pairs alike."""
    _add(machine, trouble.SLOW, arm=arm)
    _change(machine, percent=float(whole("percent", percent, least=1, most=100)))


@fault("nccl-unsteady")
def nccl_unsteady(machine: Machine, *, percent: Parameter = 80) -> None:
    """Runs differ: about every second one reaches only this share."""
    _add(machine, trouble.UNSTEADY)
    _change(machine, percent=float(whole("percent", percent, least=1, most=100)))


@fault("nccl-in-real-time")
def nccl_in_real_time(machine: Machine, *, percent: Parameter = 100) -> None:
    """No fault: NCCL takes its real time (or this share of it) instead of a thousandth."""
    _add(machine, trouble.PACE)
    _change(machine, percent=float(whole("percent", percent, least=0)))


@fault("gpu-in-use")
def gpu_in_use(machine: Machine, *, gpu: Parameter = 0, pid: Parameter = 4242, mib: Parameter = 1024) -> None:
    """A process computes on a GPU."""
    number = machine.gpu(gpu)
    reported = f"{whole('pid', pid, least=1)}:{whole('mib', mib, least=0) << 20}"
    machine.values[number, "processes"] = " ".join(
        filter(None, (machine.values.get((number, "processes"), ""), reported))
    )


@fault("device-unhealthy")
def device_unhealthy(machine: Machine, *, gpu: Parameter = 0) -> None:
    """The device plugin withdraws a GPU: the node's capacity keeps it, and no pod gets it."""
    machine.withdrawn.add(machine.gpu(gpu))
