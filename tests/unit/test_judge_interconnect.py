"""The interconnect class and nvlink-gbps, cliques of a fabric, and virtual GPUs."""

from __future__ import annotations

import random
from itertools import combinations, pairwise, permutations
from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Fabric, Pairs, Problem, ProblemKind, Result, Unavailable
from nodegauge_judge import (
    Interconnect,
    InterconnectClass,
    NodeFacts,
    Severity,
    Sharing,
    Thresholds,
    judge_health,
)
from nodegauge_judge.interconnect.classify import Ring, ring, snapped
from support.judge_results import codes, only

NVLINK, PAIRS, PCIE = InterconnectClass.NVLINK, InterconnectClass.NVLINK_PAIRS, InterconnectClass.PCIE


def joined(result: Result, **inputs: object) -> Interconnect:
    """The interconnect as judged."""
    return judge_health(result, **inputs).interconnect  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("result", "klass", "gbps"),
    [
        pytest.param(made.titan(), NVLINK, 50, id="titan-rtx-nv2"),
        pytest.param(made.rtx3090(), NVLINK, 56, id="rtx-3090-nv4"),
        pytest.param(made.dgx1(), NVLINK, 150, id="dgx1-v100"),
        pytest.param(made.a100(), NVLINK, 300, id="hgx-a100-nvswitch"),
        pytest.param(made.hgx_a100_4(), NVLINK, 300, id="hgx-a100-4-gpu-mesh"),
        pytest.param(made.h100(), NVLINK, 450, id="hgx-h100"),
        pytest.param(made.h800(), NVLINK, 200, id="h800-fewer-links-by-design"),
        pytest.param(made.dgx1([0, 1, 2, 3]), NVLINK, 100, id="dgx1-slice-sums-4455"),
        pytest.param(made.dgx1(range(7)), NVLINK, 100, id="dgx1-any-seven"),
        pytest.param(made.switched(8, name="B200", links=18, mbps=53_125), NVLINK, 900, id="b200"),
        pytest.param(made.mesh([[0, 4], [4, 0]], name="P100", mbps=20_000), NVLINK, 80, id="nvlink1-pair"),
        pytest.param(made.a100_bridged_pairs(), PAIRS, None, id="a100-pcie-bridged-pairs"),
        pytest.param(made.ncv4(), PAIRS, None, id="ncv4-self-links"),
        pytest.param(made.dgx1([0, 4, 5, 6, 7, 1]), NVLINK, 75, id="dgx1-six-sums-3-to-6"),
        pytest.param(made.phb(), PCIE, None, id="two-gpus-on-a-host-bridge"),
        pytest.param(made.h100(16), NVLINK, 450, id="the-largest-ring"),
        pytest.param(made.mesh([[0] * 17] * 17, name="made", mbps=0), PCIE, None, id="17-without-links"),
    ],
)
def test_machines_with_known_numbers_get_their_class(
    result: Result, klass: InterconnectClass, gbps: int | None
) -> None:
    """Class and GB/s one way equal what is published for the machine, and nothing is found on it."""
    judgement = judge_health(result)
    assert (judgement.interconnect.klass, judgement.interconnect.nvlink_gbps) == (klass, gbps)
    assert judgement.findings == []


def test_a_class_names_its_evidence_and_reason() -> None:
    """Evidence is `reported`, the reason is a word to grep for; without a class there is no evidence."""
    fine, refused = joined(made.titan()), joined(made.with_pair(made.titan(), 0, 1, nvlink=5))
    assert (fine.evidence, fine.reason) == ("reported", "NvlinkRing")
    assert (refused.evidence, refused.nvlink_gbps) == (None, None)
    assert joined(made.h100()).message.startswith("NVLink alone joins all 8 GPUs in a ring, 450 GB/s")
    assert joined(made.ncv4()).reason == "NvlinkSomePairs"
    assert joined(made.ncv4()).message.startswith("2 of 6 pairs have NVLink")
    assert joined(made.phb()).reason == "NoNvlink"


@pytest.mark.parametrize("grid", ["read", "write", "nvlink"])
@pytest.mark.parametrize("status", [1, 2, 3, 4, 5])
def test_refused_p2p_removes_the_class(grid: str, status: int) -> None:
    """Any of READ, WRITE and NVLINK refused takes the class away, in either direction of the pair."""
    assert joined(made.with_pair(made.h100(4), 1, 2, **{grid: status})).reason == "P2pRefused"
    one_way = [list(row) for row in made.titan().pairs.read]
    one_way[1][0] = status
    result = made.titan()
    assert joined(replace(result, pairs=replace(result.pairs, **{grid: one_way}))).klass is None


@pytest.mark.parametrize("grid", ["read", "write", "nvlink"])
@pytest.mark.parametrize("status", [6, 99, Unavailable("Unknown")], ids=["U", "99", "unavailable"])
def test_unknown_p2p_removes_the_class(grid: str, status: int | Unavailable) -> None:
    """An unreadable status neither counts as OK nor turns NVLink into PCIe."""
    interconnect = joined(made.with_pair(made.titan(), 0, 1, **{grid: status}))
    assert (interconnect.klass, interconnect.reason) == (None, "P2pUnreadable")


@pytest.mark.parametrize(
    ("result", "inputs", "reason"),
    [
        pytest.param(replace(made.titan(), pairs=Pairs()), {}, "P2pUnreadable", id="no-p2p-grids"),
        pytest.param(
            made.with_pair(made.phb(), 0, 1, nvlink=0), {}, "LinksUnresolved", id="p2p-without-links"
        ),
        pytest.param(
            made.with_pair(made.ncv4(), 0, 2, nvlink=0), {}, "LinksUnresolved", id="self-links-unresolved"
        ),
        pytest.param(
            made.without_links(made.h100(), 3, count=1),
            {"thresholds": Thresholds(nvlink_sum_ratio=1.0)},
            "LinksDegraded",
            id="policy-wants-all-links",
        ),
        pytest.param(
            made.with_gpu(made.h100(), 0, error=Problem(kind=ProblemKind.GPU_LOST), links=[]),
            {},
            "GpuUnreadable",
            id="lost-gpu",
        ),
        pytest.param(
            replace(made.h100(), problem=Problem(kind="deadline")), {}, "ProbeIncomplete", id="cut-off"
        ),
        pytest.param(
            made.h100(4),
            {"node": NodeFacts(gpu_capacity=8, sharing=Sharing.EXCLUSIVE)},
            "GpusNotVisible",
            id="half-of-the-node",
        ),
        pytest.param(
            made.with_gpu(made.with_links(made.h100(), 3, state=0), 3, mig=1), {}, "MigEnabled", id="mig"
        ),
        pytest.param(made.mesh([[0]], name="Tesla T4", mbps=0), {}, "SingleGpu", id="nothing-to-join"),
        pytest.param(made.h100(17), {}, "TooManyGpus", id="more-than-a-ring-is-sought-over"),
    ],
)
def test_a_doubt_removes_the_class(result: Result, inputs: dict[str, object], reason: str) -> None:
    """A ring over ALL GPUs cannot be claimed, and a machine with doubtful links is not called PCIe."""
    interconnect = joined(result, **inputs)
    assert (interconnect.klass, interconnect.reason) == (None, reason)


def test_p2p_between_gpus_without_links_does_not_matter() -> None:
    """On a DGX-1 distant pairs refuse P2P by design."""
    result = made.with_pair(made.dgx1(), 0, 7, read=3, write=3, nvlink=3)
    assert joined(result).nvlink_gbps == 150


READY = [
    *(Fabric(), Fabric(state=0), Fabric(state=3, status=0)),
    *(Fabric(state=3, status=0, health_mask=0x5, health_summary=summary) for summary in (1, 3)),
    Fabric(state=3, status=0, health_mask=1 << 12 | 1 << 14 | 2 | 1 << 8),
]
NOT_READY = [
    *(Fabric(state=state) for state in (1, 2, 7)),
    *(Fabric(state=3, status=999), Fabric(state=3, status=0, health_summary=2)),
    *(Fabric(state=3, status=0, health_mask=0x5, health_summary=0),),
    *(Fabric(state=3, status=0, health_mask=mask) for mask in (1, 1 << 2, 1 << 6, 5 << 8, 2 << 12, 2 << 14)),
    Fabric(state=3, status=0, health_mask=1 << 4, health_summary=1),
]


@pytest.mark.parametrize(
    ("fabric", "agrees"), [(each, True) for each in READY] + [(each, False) for each in NOT_READY]
)
def test_a_fabric_that_is_not_ready_removes_the_class(fabric: Fabric, agrees: bool) -> None:
    """One GPU whose fabric is not ready takes the node's class away."""
    interconnect = joined(made.with_gpu(made.h100(), 5, fabric=fabric))
    assert interconnect.reason == ("NvlinkRing" if agrees else "FabricDisagrees")


def test_a_fabric_that_is_not_ready_removes_the_class_without_active_links() -> None:
    """A fabric that has not started explains links that are down: this is not a PCIe machine."""
    result = made.h100(2)
    for gpu_index in range(2):
        result = made.with_gpu(result, gpu_index, links=[], switch_links=0, fabric=Fabric(state=1))
    assert joined(result).reason == "FabricDisagrees"


@pytest.mark.parametrize(
    ("machine", "down", "gbps"), [(made.h100(), 4, 350), (made.h100(), 5, None), (made.a100(), 3, 225)]
)
def test_below_three_quarters_of_the_expected_links_there_is_no_class(
    machine: Result, down: int, gbps: int | None
) -> None:
    """14 of 18 links are 78 %, 13 are 72 %; 9 of 12 are exactly 75 %, which is enough."""
    interconnect = joined(made.without_links(machine, 3, count=down))
    assert interconnect.klass is (NVLINK if gbps else None)
    assert interconnect.nvlink_gbps == gbps


def test_lost_links_of_a_pair_are_found_through_its_history() -> None:
    """NV2 that became NV1, and NV2 that became nothing, are no healthy NV1 and no PCIe machine."""
    history = judge_health(made.titan()).history
    assert joined(made.without_links(made.titan(), 0, count=1)).klass is NVLINK
    assert joined(made.without_links(made.titan(), 0, count=1), history=history).reason == "LinksDegraded"
    gone = made.with_links(made.with_links(made.titan(), 0, state=0), 1, state=0)
    assert (
        joined(replace(gone, pairs=made.pairs([[0, 0], [0, 0]])), history=history).reason == "LinksDegraded"
    )


def test_without_a_link_rate_the_class_has_no_number() -> None:
    """A rate that is not readable or like none that is sold is not invented."""
    for mbps in (0, 35_000):
        result = made.titan()
        for gpu_index in range(2):
            result = made.with_links(result, gpu_index, mbps=mbps)
        interconnect = joined(result)
        assert (interconnect.klass, interconnect.nvlink_gbps) == (NVLINK, None)
        assert interconnect.message == "both GPUs are joined by NVLink, link rate not readable"


@pytest.mark.parametrize(
    ("mbps", "rate"),
    [
        (14_062, 14.0625),
        *((mbps, 20.0) for mbps in (20_000, 20_625)),
        *((mbps, 25.0) for mbps in (25_000, 25_781, 26_562, 27_000)),
        *((mbps, 50.0) for mbps in (50_000, 53_125)),
        *((mbps, None) for mbps in (0, 17_000, 27_001, 100_000)),
    ],
)
def test_raw_rates_snap_to_advertised_rates(mbps: int, rate: float | None) -> None:
    """Within 8 % of 14.0625, 20, 25 or 50 GB/s; else unknown."""
    assert snapped(mbps) == rate


def test_known_graphs_have_a_ring_or_none() -> None:
    """Sixteen GPUs in a cycle have one, without one of its edges none; of more nobody knows."""

    def graph(size: int, edges: list[tuple[int, int]]) -> list[list[bool]]:
        return [[(i, j) in edges or (j, i) in edges for j in range(size)] for i in range(size)]

    cycle = [(i, (i + 5) % 16) for i in range(16)]
    assert ring(graph(16, cycle)) is Ring.YES
    assert ring(graph(16, cycle[1:])) is Ring.NO
    assert ring(graph(17, cycle)) is Ring.UNKNOWN
    assert ring(graph(1, [])) is Ring.NO


def test_a_replaced_gpu_has_no_history_but_its_neighbour_has() -> None:
    """A new UUID starts without a past; a bridge that was not put back shows on the card that stayed."""
    history = judge_health(made.titan()).history
    down = made.with_links(made.with_links(made.titan(), 0, state=0), 1, state=0, remote="")
    down = replace(made.with_gpu(down, 1, uuid="GPU-new"), pairs=made.pairs([[0, 0], [0, 0]]))
    judgement = judge_health(down, history=history)
    assert judgement.interconnect.reason == "LinksDegraded"
    assert judgement.findings[0].subject == "GPU 0 (0000:0f:00.0)"


def by_trying(joined: list[list[bool]]) -> bool:
    """Whether any order of the vertices is a cycle."""
    return any(
        all(joined[a][b] for a, b in pairwise((0, *order, 0)))
        for order in permutations(range(1, len(joined)))
    )


@pytest.mark.parametrize("size", range(3, 8))
def test_the_ring_search_agrees_with_brute_force(size: int) -> None:
    """Sparse and dense graphs, those where every vertex has half of the others among them."""
    chance, seen = random.Random(size), set()
    for _ in range(60):
        joined = [[False] * size for _ in range(size)]
        share = chance.random()
        for a, b in combinations(range(size), 2):
            joined[a][b] = joined[b][a] = chance.random() < share
        exists = by_trying(joined)
        seen.add(exists)
        assert ring(joined) is (Ring.YES if exists else Ring.NO), joined
    assert seen == {True, False}


RACK = "c1a570f0-0000-4000-8000-0000000000aa"
OTHER = "c1a570f0-0000-4000-8000-0000000000bb"
NONE = "0" * 32


def tray(*fabrics: Fabric) -> Result:
    """A GB200 tray whose GPUs report these."""
    result = made.switched(len(fabrics), name="NVIDIA GB200", links=18, mbps=53_125)
    for gpu_index, each in enumerate(fabrics):
        result = made.with_gpu(result, gpu_index, fabric=each)
    return result


def of_fabric(uuid: str | Unavailable, clique: int | Unavailable, **more: Any) -> Fabric:
    """A completed registration."""
    return Fabric(**({"state": 3, "status": 0, "cluster_uuid": uuid, "clique": clique} | more))


@pytest.mark.parametrize(
    ("fabrics", "members"),
    [
        pytest.param(
            [of_fabric(RACK, 1), of_fabric(RACK, 1), of_fabric(RACK, 2), of_fabric(RACK, 2)],
            ["GPU 0, GPU 1 in c1a570f0", "00aa.1; GPU 2, GPU 3 in c1a570f0"],
            id="two-halves-of-a-tray",
        ),
        pytest.param(
            [of_fabric(RACK, 32766), of_fabric(RACK, 32766), of_fabric(RACK, 32766), of_fabric(RACK, 7)],
            ["GPU 3 in c1a570f00000400080000000000000aa.7"],
            id="one-gpu-left-the-default-partition",
        ),
        pytest.param([of_fabric(RACK, 1), of_fabric(OTHER, 1)], ["00aa.1", "00bb.1"], id="two-clusters"),
        pytest.param([of_fabric(RACK, 1), of_fabric(NONE, 0)], ["GPU 1 in 0000"], id="one-without-a-cluster"),
        pytest.param([of_fabric(NONE, 0), of_fabric(NONE, 3)], [".0;", ".3"], id="cliques-without-a-cluster"),
    ],
)
def test_gpus_in_different_cliques_warn_and_have_no_class(fabrics: list[Fabric], members: list[str]) -> None:
    """NVLink does not join them, whatever their links say; the finding names who is where, as GFD does."""
    judgement = judge_health(tray(*fabrics))
    finding = only(judgement)
    assert (finding.code, finding.severity, finding.subject) == ("fabric-cliques", Severity.WARN, "node")
    assert all(text in finding.message for text in members), finding.message
    assert (judgement.interconnect.klass, judgement.interconnect.reason) == (None, "CliquesDiffer")


@pytest.mark.parametrize(
    "fabrics",
    [
        pytest.param([of_fabric(NONE, 0)] * 8, id="hgx-h100"),
        pytest.param([of_fabric(RACK, 5)] * 4, id="one-clique"),
        pytest.param(
            [of_fabric(RACK.upper(), 5), of_fabric(RACK.replace("-", ""), 5)], id="one-cluster-in-two-forms"
        ),
        pytest.param([of_fabric(RACK, 5), Fabric(state=0), Fabric()], id="gpus-without-a-fabric"),
        pytest.param([of_fabric(RACK, 5), of_fabric(Unavailable("Unknown"), 9)], id="unreadable-cluster"),
        pytest.param([of_fabric(RACK, 5), of_fabric(OTHER, Unavailable("Unknown"))], id="unreadable-clique"),
    ],
)
def test_gpus_of_one_clique_or_of_none_are_healthy(fabrics: list[Fabric]) -> None:
    """A single-node machine reports clique 0 of an all-zero cluster; missing data accuses nobody."""
    judgement = judge_health(tray(*fabrics))
    assert (codes(judgement), judgement.interconnect.klass) == ([], "nvlink")


@pytest.mark.parametrize(
    ("result", "mode"),
    [
        pytest.param(made.phb(), 2, id="vgpu-without-links"),
        pytest.param(made.h100(), 2, id="vgpus-with-links"),
        pytest.param(made.a100_bridged_pairs(), 3, id="vgpu-host"),
        pytest.param(made.rtx3090(), 4, id="vsga-host"),
    ],
)
def test_virtual_gpus_have_no_class_and_an_info(result: Result, mode: int) -> None:
    """What the hypervisor shows of them is not how they are joined."""
    judgement = judge_health(made.every_gpu(result, virtualization=mode))
    assert (codes(judgement), judgement.verdict) == (["virtual-gpu/info"], "pass")
    assert (judgement.interconnect.klass, judgement.interconnect.reason) == (None, "VirtualGpu")
    assert "NVML" in only(judgement).message


@pytest.mark.parametrize(
    "result",
    [
        pytest.param(made.with_pair(made.h100(2), 0, 1, read=5, nvlink=5), id="p2p-refused-by-the-profile"),
        pytest.param(made.without_links(made.h100(4), 2, count=9), id="fewer-links"),
        pytest.param(made.with_pair(made.ncv4(), 0, 2, nvlink=0), id="far-ends-hidden"),
        pytest.param(made.with_gpu(made.h100(2), 1, fabric=Fabric(state=2)), id="fabric-in-progress"),
        pytest.param(tray(of_fabric(RACK, 1), of_fabric(RACK, 2)), id="two-cliques"),
    ],
)
@pytest.mark.parametrize("mode", [2, 3])
def test_what_a_hypervisor_shows_of_links_accuses_no_node(result: Result, mode: int) -> None:
    """A vGPU may refuse P2P and hide links by design; nothing of it is remembered either."""
    history = judge_health(made.h100(len(result.gpus))).history
    judgement = judge_health(made.every_gpu(result, virtualization=mode), history=history)
    assert codes(judgement) == ["virtual-gpu/info"]
    assert {gpu.links.sum for gpu in judgement.history.gpus.values()} == {18}


@pytest.mark.parametrize("mode", [0, 1, 99, Unavailable("NVML_ERROR_NOT_SUPPORTED")])
@pytest.mark.parametrize(
    ("result", "klass"),
    [(made.phb(), "pcie"), (made.h100(), "nvlink"), (made.ncv4(), "nvlink-pairs"), (made.titan(), "nvlink")],
)
def test_whole_gpus_keep_what_links_and_p2p_show(result: Result, klass: str, mode: int | Unavailable) -> None:
    """On bare metal, passed through to a virtual machine, and where the mode is not known."""
    judgement = judge_health(made.every_gpu(result, virtualization=mode))
    assert (codes(judgement), judgement.interconnect.klass) == ([], klass)
