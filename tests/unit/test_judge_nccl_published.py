"""Which floors from link rates set a taint: those that a published machine of the same kind reaches."""

from __future__ import annotations

import pytest

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import Result
from nodegauge_judge import Answer
from nodegauge_judge.nccl.expectations import Expectation, Expectations
from nodegauge_judge.nccl.judge import judge_nccl
from support.nccl_results import GIB, codes, finding


def pair(gpu: str, gbps: float, links: int, sm: str = "9.0", *, mbps: int = 25_000) -> Result:
    """Two such cards with bridges, and what all three collectives reach."""
    machine = made.mesh([[0, links], [links, 0]], name=gpu, mbps=mbps)
    machine = made.every_gpu(machine, pcie=nccl.GEN4, compute_capability=sm)
    arm = nccl.default_arm(gbps, gather=gbps, ranks=2, algorithm="RING")
    return nccl.node(machine, arm, nccl.p2p_off_arm(gbps / 8, ranks=2))


def switched(gpu: str, gbps: float, ranks: int, links: int, sm: str, *, mbps: int = 25_781) -> Result:
    """So many GPUs with NVSwitches, and what rings reach."""
    machine = made.switched(ranks, name=gpu, links=links, mbps=mbps)
    machine = made.every_gpu(machine, pcie=nccl.GEN5, compute_capability=sm)
    arm = nccl.default_arm(gbps, gather=gbps, ranks=ranks, algorithm="RING")
    return nccl.node(machine, arm, nccl.p2p_off_arm(gbps / 20, ranks=ranks))


PUBLISHED_AND_NOT: dict[str, tuple[Result, float, bool]] = {
    "2x H100 PCIe as published": (pair("NVIDIA H100 PCIe", 115.4, 12), 0, False),
    "2x H100 PCIe, half of it": (pair("NVIDIA H100 PCIe", 58.0, 12), 104.7, True),
    "2x H100 NVL, half of what is accepted": (pair("NVIDIA H100 NVL", 104.0, 12), 180.0, True),
    "2x A100 PCIe as published": (pair("NVIDIA A100 80GB PCIe", 208.0, 12, "8.0"), 0, False),
    "2x A100 PCIe, half of it": (pair("NVIDIA A100 80GB PCIe", 104.0, 12, "8.0"), 180.0, True),
    "2x 2080 Ti as published": (pair("NVIDIA GeForce RTX 2080 Ti", 21.5, 2, "7.5"), 0, False),
    "2x RTX 3090, unpublished": (pair("NVIDIA GeForce RTX 3090", 30.0, 4, mbps=14_062), 33.6, False),
    "2x RTX A6000, unpublished": (pair("NVIDIA RTX A6000", 20.0, 4, mbps=14_062), 33.6, False),
    "2x A30, unpublished": (pair("NVIDIA A30", 40.0, 4, "8.0"), 60.0, False),
    "2x Quadro GV100, unpublished": (pair("Quadro GV100", 40.0, 4, "7.0"), 60.0, False),
    "16x V100 (DGX-2), unpublished": (switched("Tesla V100-SXM3-32GB", 80.0, 16, 6, "7.0"), 90.0, False),
    "4x A100 SXM, unpublished": (switched("NVIDIA A100-SXM4-80GB", 120.0, 4, 12, "8.0"), 180.0, False),
    "8x A800": (switched("NVIDIA A800-SXM4-80GB", 100.0, 8, 8, "8.0"), 120.0, True),
    "8x H20 on rings": (switched("NVIDIA H20", 200.0, 8, 18, "9.0"), 270.0, True),
    "3x H100 on rings, unpublished": (switched("NVIDIA H100 80GB HBM3", 250.0, 3, 18, "9.0"), 270.0, False),
    "8x B300, unpublished": (switched("NVIDIA B300", 500.0, 8, 18, "10.3", mbps=53_125), 540.0, False),
    "8x of the next generation": (switched("NVIDIA Rubin", 700.0, 8, 36, "13.0", mbps=53_125), 1080.0, False),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED_AND_NOT)
def test_only_a_floor_that_a_published_machine_reaches_sets_a_taint(name: str) -> None:
    """All others warn, in every run.  H100 PCIe: NVIDIA/nccl issue 1161; A100 PCIe: nccl-tests issue 178;
    RTX 2080 Ti: nccl-tests issue 44; H100 NVL: azurehpc-health-checks, NC80adis."""
    result, floor, gates = PUBLISHED_AND_NOT[name]
    first = judge_nccl(result)
    second = judge_nccl(result, previous=first.record)
    if not floor:
        assert (codes(first), first.answers["busbw-low"]) == (set(), Answer.GOOD)
        return
    low = finding(second, "busbw-low")
    assert low.evidence["floor_gbps"] == pytest.approx(floor, rel=1e-3)
    assert second.answers["busbw-low"] is (Answer.BAD if gates else Answer.UNSURE)
    assert low.severity.value == ("fail" if gates else "warn")
    assert ("only warns" in low.message) is not gates


def test_a_floor_of_the_policy_sets_a_taint_for_any_machine() -> None:
    """Whoever owns the machine may have measured it."""
    own = Expectation(gpu="*3090*", count=2, collective="all_reduce", bytes=GIB, busbw=45)
    slow = pair("NVIDIA GeForce RTX 3090", 30.0, 4, mbps=14_062)
    judgement = judge_nccl(slow, expectations=Expectations.default().with_policy([own]))
    assert judgement.answers["busbw-low"] is Answer.BAD
