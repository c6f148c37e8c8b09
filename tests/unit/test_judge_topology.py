"""What follows from a machine's wiring is computed once for each wiring, and never for another one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from nodegauge_contract import Gpu, Problem, ProblemKind, Result, Unavailable
from nodegauge_contract.matrix import render
from nodegauge_contract.model import Nics, System
from nodegauge_contract.nvlink import lanes
from nodegauge_judge import topology
from nodegauge_judge.interconnect.p2p import examine
from support.results import dgx1, every_gpu, h100

CARDS = Nics(names=["mlx5_0", "mlx5_1"], to_gpu=[["PIX"] * 8] * 2, to_nic=[["X", "SYS"], ["SYS", "X"]])
BOARDS = dgx1().gpus
MACHINE = replace(dgx1(), nics=CARDS, gpus=[*BOARDS[:-1], replace(BOARDS[-1], links=[])])
LOST = Problem(kind=ProblemKind.GPU_LOST, call="nvmlDeviceGetHandleByIndex", message="lost")


def first(**changes: object) -> Callable[[Result], Result]:
    """The machine with another first GPU."""
    return lambda result: replace(result, gpus=[replace(result.gpus[0], **changes), *result.gpus[1:]])


def down(gpu: Gpu) -> Gpu:
    return replace(gpu, links=[replace(group, state=0) for group in gpu.links])


CHANGES: dict[str, Callable[[Result], Result]] = {
    "index": first(index=9),
    "pci": first(pci="0000:ff:00.0"),
    "compute capability": first(compute_capability="5.2"),
    "MIG": first(mig=1),
    "error": first(error=LOST),
    "CPUs": first(cpus="7-9"),
    "memory nodes": first(memory_nodes="3"),
    "NUMA node of the GPU": first(gpu_numa_id=4),
    "links": lambda result: replace(result, gpus=[down(result.gpus[0]), *result.gpus[1:]]),
    "links to switches": lambda result: every_gpu(result, switch_links=6),
    "driver": lambda result: replace(result, system=System(driver="418.87.01")),
    "ancestors": lambda result: replace(result, pairs=replace(result.pairs, ancestor=[])),
    "P2P read": lambda result: replace(result, pairs=replace(result.pairs, read=[[5] * 8] * 8)),
    "P2P write": lambda result: replace(result, pairs=replace(result.pairs, write=[[5] * 8] * 8)),
    "P2P over NVLink": lambda result: replace(
        result, pairs=replace(result.pairs, nvlink=[[Unavailable("timeout")] * 8] * 8)
    ),
    "cards": lambda result: replace(result, nics=replace(result.nics, names=[])),
    "distances to cards": lambda result: replace(result, nics=replace(result.nics, to_gpu=[])),
    "distances among cards": lambda result: replace(result, nics=replace(result.nics, to_nic=[])),
}


@pytest.mark.parametrize("what", CHANGES)
def test_another_wiring_is_computed_anew(what: str) -> None:
    """One changed reading that NVLinks, P2P or the matrix depend on gives what they say of it alone."""
    known, other = topology.of(MACHINE), CHANGES[what](MACHINE)
    joined = lanes(other)
    seen = topology.of(other)
    assert seen != known
    assert seen.lanes == joined
    assert seen.p2p == tuple(examine(other, joined))
    assert seen.matrix == render(other, joined=joined)


def test_the_same_wiring_is_computed_once() -> None:
    """Other boards in the same machine are wired alike."""
    same = every_gpu(MACHINE, uuid="GPU-1", serial="7")
    assert topology.of(same) is topology.of(MACHINE)


def test_few_wirings_are_remembered() -> None:
    """A fleet of odd machines does not fill the memory."""
    machine = h100()
    for n in range(2 * topology.MOST):
        topology.of(first(cpus=str(n))(machine))
    assert len(topology._known) <= topology.MOST
