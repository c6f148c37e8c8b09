"""Faults that only an NCCL run or the load probe meets: NVML reads as ever."""

from typing import Any

from nodegauge_contract.nccl import ArmName, Phase
from testbed.hardware.fault import Parameter, choice, fault, needs, share, whole
from testbed.hardware.machine import HardwareError, Machine
from testbed.simulated_nccl import trouble
from testbed.simulated_nccl.machine import Trouble

ARMS = {"all": "", **{arm.value: arm.value for arm in ArmName}}
PHASES = {phase.value: phase.value for phase in Phase if phase is not Phase.SPAWN}
GFLOPS = 50_000
"""Of a healthy GPU; the simulated CUDA's number where nothing says another (driver/src/cuda.c)."""
WRONG = {"core": "cuda.flips", "memory": "cuda.memory_flips"}


def _add(machine: Machine, kind: str, *, arm: str = "all", **more: Any) -> None:
    there = machine.profile.nccl is not None and len(machine.gpus) > 1
    needs(machine, there, "second GPU that NCCL could join to the first")
    machine.nccl.append(Trouble(kind=kind, arm=choice("arm", arm, ARMS), **more))


def _in_a_phase(name: str, kind: str, phase: str, does: str) -> None:
    usual = phase

    @fault(name, does)
    def apply(machine: Machine, *, phase: str = usual, arm: str = "all") -> None:
        _add(machine, kind, arm=arm, phase=choice("phase", phase, PHASES))


_in_a_phase(
    "nccl-hang", trouble.HANG, "measure", f"NCCL hangs, deaf to SIGTERM (phase: {', '.join(PHASES)})."
)
_in_a_phase("nccl-error", trouble.FAILED, "init", "NCCL returns an error in a phase.")
_in_a_phase("nccl-out-of-memory", trouble.OUT_OF_MEMORY, "load", "A GPU has no memory left for NCCL.")


def _in_an_arm(name: str, kind: str, does: str) -> None:
    @fault(name, does)
    def apply(machine: Machine, *, arm: str = "all") -> None:
        _add(machine, kind, arm=arm)


_in_an_arm("nccl-no-engine", trouble.NO_ENGINE, "The image's engine cannot be loaded.")
_in_an_arm("nccl-wrong-data", trouble.WRONG_DATA, "Received data differs from what was sent.")
_in_an_arm("nccl-garbage", trouble.GARBAGE, "The engine prints garbage after its first result.")
_in_an_arm("nccl-partial", trouble.PARTIAL, "The engine exits with 0 after its first result.")


def _at_a_share(name: str, kind: str, percent: int, does: str) -> None:
    usual = percent

    @fault(name, does)
    def apply(machine: Machine, *, percent: Parameter = usual) -> None:
        _add(machine, kind, percent=float(share(percent)))


_at_a_share("nccl-slow", trouble.SLOW, 70, "Collectives reach this share of their usual bandwidth.")
_at_a_share("nccl-unsteady", trouble.UNSTEADY, 80, "About every second run reaches only this share.")
_at_a_share("nccl-in-real-time", trouble.PACE, 100, "No fault: NCCL takes this share of its real time.")


@fault("nccl-crash")
def nccl_crash(machine: Machine, *, phase: str = "measure", arm: str = "all", kind: str = "fault") -> None:
    """The process dies in a phase (kind: fault is SIGSEGV, killed is SIGKILL as by the OOM killer)."""
    kinds = {"fault": trouble.CRASH, "killed": trouble.KILLED}
    _add(machine, choice("kind", kind, kinds), arm=arm, phase=choice("phase", phase, PHASES))


@fault("nccl-cold-init")
def nccl_cold_init(machine: Machine, *, seconds: Parameter = 50, arm: str = "all") -> None:
    """Communicators take long to set up, as with cold kernels (55 s on a B200, NVIDIA/nccl issue 1646)."""
    _add(machine, trouble.COLD_INIT, arm=arm, seconds=float(whole("seconds", seconds, least=0)))


@fault("nccl-nvls-broken")
def nccl_nvls_broken(machine: Machine, *, kind: str = "init") -> None:
    """NVLS cannot be set up (kind: init, out-of-memory), which fails every arm that would use it."""
    needs(machine, machine.profile.nccl is not None and machine.profile.nccl.nvls_from > 0, "NVLS")
    kinds = {"init": "", trouble.OUT_OF_MEMORY: trouble.OUT_OF_MEMORY}
    _add(machine, trouble.NVLS_BROKEN, phase=choice("kind", kind, kinds))


@fault("slow-link")
def slow_link(machine: Machine, *, gpu: Parameter = 0, peer: Parameter = 1, percent: Parameter = 30) -> None:
    """Transfers between two GPUs are slow: copies show which, a ring is only slow."""
    one, other = machine.gpu(gpu), machine.gpu(peer)
    if one == other:
        raise HardwareError(f"gpu and peer are both {one}: a link joins two")
    _add(machine, trouble.SLOW_LINK, gpus=(one, other), percent=float(share(percent)))


@fault("nvlink-down-in-fact")
def nvlink_down_in_fact(machine: Machine) -> None:
    """The driver reports NVLinks as up, but they carry no data: transfers go through host memory."""
    needs(machine, machine.profile.model.links, "NVLinks")
    _add(machine, trouble.LINKS_DEAD)


@fault("gpu-in-use")
def gpu_in_use(machine: Machine, *, gpu: Parameter = 0) -> None:
    """A process computes on a GPU, and holds 1 GiB of it."""
    machine.values[machine.gpu(gpu), "processes"] = f"4242:{1 << 30}"


@fault("device-unhealthy")
def device_unhealthy(machine: Machine, *, gpu: Parameter = 0) -> None:
    """The device plugin withdraws a GPU: the node's capacity keeps it, and no pod gets it."""
    machine.withdrawn.add(machine.gpu(gpu))


@fault("bit-flips")
def bit_flips(machine: Machine, *, gpu: Parameter = 0, count: Parameter = 1, where: str = "core") -> None:
    """A GPU computes wrong bits in every launch (where: core or memory), and reports no error."""
    machine.values[machine.gpu(gpu), choice("where", where, WRONG)] = str(whole("count", count, least=1))


@fault("shared-uplink")
def shared_uplink(machine: Machine, *, mbps: Parameter = 12_000) -> None:
    """All GPUs share one uplink to the host: each copies fast alone, and all at once share `mbps`."""
    needs(machine, len(machine.gpus) > 1, "second GPU to share an uplink with")
    for number in range(len(machine.gpus)):
        machine.values[number, "cuda.uplink"] = "1"
        machine.values[number, "cuda.uplink_mbps"] = str(whole("mbps", mbps, least=1))


@fault("slow-gpu")
def slow_gpu(machine: Machine, *, gpu: Parameter = 0, percent: Parameter = 60) -> None:
    """A GPU computes at this share of what its clock promises, and reports no reason."""
    machine.values[machine.gpu(gpu), "cuda.gflops"] = str(GFLOPS * share(percent) // 100)
