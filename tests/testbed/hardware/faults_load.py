"""Faults that show only while the load probe works: wrong results, a shared uplink, a slow GPU."""

from __future__ import annotations

from testbed.hardware.fault import Parameter, choice, fault, needs, whole
from testbed.hardware.machine import Machine

GFLOPS = 50_000
"""Of a healthy GPU; the simulated CUDA's number where nothing says another (driver/src/cuda.c)."""
WRONG = {"core": "cuda.flips", "memory": "cuda.memory_flips"}


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
    share = whole("percent", percent, least=1, most=100)
    machine.values[machine.gpu(gpu), "cuda.gflops"] = str(GFLOPS * share // 100)
