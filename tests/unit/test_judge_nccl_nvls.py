"""NVLS that NCCL leaves unused on machines that have it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import ArmName, Result
from nodegauge_judge.nccl.judge import judge_nccl, regrade
from nodegauge_judge.nccl.measurement import Agreement
from support.nccl_results import codes, finding

OFF = {"NCCL_NVLS_ENABLE": "0"}


def ring(
    name: str = "NVIDIA H200",
    *,
    gbps: float = 355.0,
    count: int = 8,
    capability: str = "9.0",
    driver: str = "570.86.15",
    algorithm: str = "RING",
    virtualization: int = 0,
    **arm: Any,
) -> Result:
    """A machine behind NVSwitches whose default arm ran all_reduce with this algorithm."""
    links, mbps = (18, 53_125) if capability.startswith("10") else (18, 26_562)
    machine = made.switched(count, name=name, links=links, mbps=mbps, virtualization=virtualization)
    machine = made.every_gpu(machine, pcie=nccl.GEN5, compute_capability=capability)
    machine = replace(machine, system=replace(machine.system, driver=driver))
    arms = [nccl.default_arm(gbps, gather=gbps, ranks=count, algorithm=algorithm, **arm)]
    return nccl.node(machine, *arms, nccl.p2p_off_arm(28.0, ranks=count))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        pytest.param(ring(multicast=False), "NVLS multicast support is not available", id="nccl-892"),
        pytest.param(ring(gbps=367), "did not log multicast support, and made no NVLS channels", id="silent"),
        pytest.param(ring(multicast=True), "available, and made no NVLS channels", id="no-channels"),
        pytest.param(
            ring("NVIDIA B200", gbps=655, capability="10.0", nvls=True, multicast=True),
            "NCCL chose RING",
            id="b200-with-channels",
        ),
        pytest.param(
            ring("NVIDIA H100 80GB HBM3", algorithm="TREE", nvls=True), "NCCL chose TREE", id="h100-tree"
        ),
        pytest.param(
            ring(algorithm="", nvls=None, multicast=False), "not available", id="algorithm-not-logged"
        ),
        pytest.param(ring(virtualization=1, multicast=True), "made no NVLS channels", id="multicast-in-a-vm"),
        pytest.param(
            ring("NVIDIA B300 SXM6 AC", gbps=640, capability="10.3", multicast=False),
            "not available",
            id="b300",
        ),
    ],
)
def test_a_ring_where_nvls_is_possible_warns_with_what_nccl_said(result: Result, message: str) -> None:
    """Nothing fails, and the ring confirms NVLink; the finding says why NVLS is missing."""
    judgement = judge_nccl(result)
    assert codes(judgement) == {"nvls-unused/warn"}
    assert message in finding(judgement, "nvls-unused").message
    assert judgement.agreement is Agreement.CONFIRMED
    assert codes(regrade(judgement.record)) == {"nvls-unused/warn"}


@pytest.mark.parametrize(
    ("result", "environment", "message"),
    [
        pytest.param(ring(), OFF, "policy's environment", id="nvls-enable-0"),
        pytest.param(
            ring(), {"NCCL_ALGO": "Ring,Tree"}, "policy's environment", id="algorithms-without-nvls"
        ),
        pytest.param(
            ring(), {"NCCL_ALGO": "^NVLS,NVLSTree"}, "policy's environment", id="algorithms-avoided"
        ),
        pytest.param(ring(driver="525.105.17", multicast=False), {}, "driver 525", id="old-driver"),
        pytest.param(ring(virtualization=1, multicast=False), {}, "hypervisor", id="virtual-machine"),
    ],
)
def test_a_choice_and_a_platform_without_multicast_are_an_info(
    result: Result, environment: dict[str, str], message: str
) -> None:
    """Somebody decided it, or the node cannot have it: the node is healthy."""
    judgement = judge_nccl(result, environment=environment)
    assert (codes(judgement), judgement.verdict) == ({"nvls-unused/info"}, "pass")
    assert message in finding(judgement, "nvls-unused").message


@pytest.mark.parametrize(
    ("result", "environment"),
    [
        pytest.param(nccl.h100(), {}, id="nvls-ran"),
        pytest.param(ring(algorithm="NVLS_TREE", gbps=460), {"NCCL_ALGO": "NVLSTree"}, id="nvls-tree-ran"),
        pytest.param(ring(algorithm="", nvls=None), {}, id="nothing-logged"),
        pytest.param(ring(count=4), {}, id="four-gpus"),
        pytest.param(ring(count=5, multicast=False), {}, id="five-gpus"),
        pytest.param(ring("NVIDIA A100-SXM4-80GB", gbps=229, capability="8.0"), {}, id="before-hopper"),
        pytest.param(nccl.titan(), {}, id="no-switch"),
        pytest.param(ring(), {"NCCL_P2P_DISABLE": "1"}, id="p2p-disabled-by-the-policy"),
    ],
)
def test_nothing_is_said_where_nvls_ran_or_cannot_be_expected(
    result: Result, environment: dict[str, str]
) -> None:
    """Few GPUs, older GPUs, no switch, and no word from NCCL prove nothing."""
    listed = codes(judge_nccl(result, environment=environment))
    assert not [code for code in listed if code.startswith("nvls-unused")]


def test_nvls_that_is_broken_is_named_once() -> None:
    """A default arm that failed at its start has its own finding."""
    broken = nccl.swapped(nccl.h100(), ArmName.DEFAULT, outcome="failed", phase="init", cells=[], nvls=True)
    assert codes(judge_nccl(broken)) == {"nvls-broken/warn"}
