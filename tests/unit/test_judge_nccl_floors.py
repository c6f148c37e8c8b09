"""Floors by rule: few GPUs, peer access over PCIe, and what goes through the host."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import Gpu, Result, Unavailable
from nodegauge_judge import Answer, Verdict
from nodegauge_judge.nccl.judge import judge_nccl
from support.nccl_results import codes, finding


@pytest.mark.parametrize(("ranks", "gbps"), [(2, 193), (3, 290), (4, 347), (5, 388), (6, 412), (7, 433)])
def test_nvls_on_fewer_gpus_makes_less_bus_bandwidth(ranks: int, gbps: float) -> None:
    """What a sound H100 makes of 462 GB/s on 8: the same traffic, 1 + 1/n of the size, by NVIDIA/nccl issue
    2140 and the curves of H200; NCCL makes NVLS channels from two GPUs on since 2.30."""
    assert judge_nccl(nccl.h100(gbps, count=ranks)).verdict is Verdict.PASS
    assert codes(judge_nccl(nccl.h100(gbps * 0.8, count=ranks))) == {"busbw-low/warn"}


@pytest.mark.parametrize(
    ("ranks", "gbps", "below"), [(2, 382, False), (2, 350, True), (3, 479, False), (4, 530, True)]
)
def test_two_blackwells_are_as_slow_as_nccl_makes_them(ranks: int, gbps: float, below: bool) -> None:
    """NVIDIA/nccl pull request 2343: 382 of 900 GB/s at 1 GiB on two sound B200, 479 on three."""
    machine = made.switched(ranks, name="NVIDIA B200", links=18, mbps=53_125)
    machine = made.every_gpu(machine, pcie=nccl.GEN5, compute_capability="10.0")
    first = nccl.default_arm(gbps, gather=600, ranks=ranks, algorithm="RING")
    assert ("busbw-low/warn" in codes(judge_nccl(nccl.node(machine, first)))) is below


def test_rows_that_wait_for_nvls_are_not_said_to_be_missing() -> None:
    """A log of nccl-tests without NCCL's own lines: there are rows for 8 H100, and a way to use them."""
    silent = nccl.arm("default", [nccl.cell(nccl.AR, nccl.GIB, 462, ranks=8)])
    said = judge_nccl(
        replace(nccl.node(nccl.h100(), silent), gpus=[Gpu(index=0, name="NVIDIA H100 80GB HBM3")])
    )
    message = finding(said, "not-gradable").message
    assert "No row is for" not in message
    assert "NCCL_DEBUG_SUBSYS=INIT,TUNING" in message


def between(result: Result, ancestor: int) -> Result:
    """The machine with all its GPUs so far from each other, as NVML has it."""
    places = range(len(result.gpus))
    grid: list[list[Any]] = [[-1 if i == j else ancestor for j in places] for i in places]
    return replace(result, pairs=replace(result.pairs, ancestor=grid))


@pytest.mark.parametrize(("gbps", "below"), [(16.0, False), (15.0, True)])
@pytest.mark.parametrize("ancestor", [10, 20])
def test_pcie_with_peer_access_has_half_of_the_slowest_link(gbps: float, below: bool, ancestor: int) -> None:
    """Generation 4 x16 carries 31.5 GB/s one way, below a switch."""
    said = judge_nccl(between(nccl.phb(gbps, transport=nccl.P2P), ancestor))
    assert ("busbw-low/warn" in codes(said)) is below


@pytest.mark.parametrize("ancestor", [30, 40, 50, Unavailable("NVML_ERROR_NOT_SUPPORTED")])
def test_peer_access_across_a_cpu_is_as_fast_as_the_cpu(ancestor: Any) -> None:
    """NCCL uses it between two GPUs of an AMD machine whatever is between them: 12.7 GB/s have been seen on
    generation 4 (tinygrad/open-gpu-kernel-modules, pull request 22), and no floor was missed."""
    said = judge_nccl(between(nccl.phb(12.7, transport=nccl.P2P), ancestor))
    assert (said.verdict, said.answers["busbw-low"]) == (Verdict.PASS, Answer.GOOD)
    assert "no floor" in said.summary
