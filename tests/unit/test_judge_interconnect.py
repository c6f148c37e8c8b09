"""The interconnect class and nvlink-gbps, cliques of a fabric, and virtual GPUs."""

import random
from itertools import combinations, pairwise, permutations
from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Fabric, Pairs, Problem, ProblemKind, Result, Unavailable
from nodegauge_judge import NodeFacts, Severity, Sharing, Thresholds, Verdict
from nodegauge_judge.interconnect.classify import Ring, ring, snapped
from support.judge_results import Row, Table, check, judge, judge_all, rows


def tray(*fabrics: Fabric) -> Result:
    result = made.switched(len(fabrics), name="NVIDIA GB200", links=18, mbps=53_125)
    for gpu_index, each in enumerate(fabrics):
        result = made.with_gpu(result, gpu_index, fabric=each)
    return result


def one_way(grid: str, status: int) -> Result:
    result = made.titan()
    rows = [list(row) for row in result.pairs.read]
    rows[1][0] = status
    return replace(result, pairs=replace(result.pairs, **{grid: rows}))


def fabric(**of_one: Any) -> Result:
    return made.with_gpu(made.h100(), 5, fabric=Fabric(**of_one))


def alone(result: Result) -> Result:
    return replace(result, pairs=made.pairs([[0, 0], [0, 0]]))


RACK = "c1a570f0-0000-4000-8000-0000000000aa"
OTHER = "c1a570f0-0000-4000-8000-0000000000bb"
NONE = "0" * 32


def of_fabric(uuid: str | Unavailable, clique: int | Unavailable, **more: Any) -> Fabric:
    return Fabric(**({"state": 3, "status": 0, "cluster_uuid": uuid, "clique": clique} | more))


RACK_1 = of_fabric(RACK, 1)
UNREAD = Unavailable("Unknown")


def virtual(result: Result, mode: int | Unavailable) -> Result:
    return made.every_gpu(result, virtualization=mode)


GRIDS = ("read", "write", "nvlink")
REPLACED = alone(made.with_gpu(made.every_link(made.titan(), state=0, remote=""), 1, uuid="GPU-new"))
UNREADABLE = made.with_gpu(made.h100(2), 0, links=[], switch_links=0, fabric=Fabric(state=1))
COMPLETED = {"state": 3, "status": 0}
RATELESS = ("NvlinkRing", None, "both GPUs are joined by NVLink, link rate not readable")
CLASSES: Table = {
    # what: the runs, the reason of the class, GB/s one way, and a part of the message
    "a ring of NVLinks has the published GB/s of the machine": [
        (made.titan(), "NvlinkRing", 50),
        (made.rtx3090(), "NvlinkRing", 56),
        (made.h100(), "NvlinkRing", 450, "NVLink alone joins all 8 GPUs in a ring, 450 GB/s"),
        (made.switched(8, name="B200", links=18, mbps=53_125), "NvlinkRing", 900),
    ],
    "H800 has fewer links by design": [(made.h800(), "NvlinkRing", 200)],
    "a slice of DGX-1 has the sum of its weakest GPU": [
        (made.dgx1([0, 1, 2, 3]), "NvlinkRing", 100),
        (made.dgx1([0, 4, 5, 6, 7, 1]), "NvlinkRing", 75),
    ],
    "the largest ring has 16 GPUs": [(made.h100(16), "NvlinkRing", 450), (made.h100(17), "TooManyGpus")],
    "bridged pairs, also where links name their own GPU": [
        (made.a100_bridged_pairs(), "NvlinkSomePairs"),
        (made.ncv4(), "NvlinkSomePairs", None, "2 of 6 pairs have NVLink"),
    ],
    "no NVLink": [(made.phb(), "NoNvlink"), (made.mesh([[0] * 17] * 17, name="made", mbps=0), "NoNvlink")],
    "refused P2P in any grid": [
        (made.with_pair(made.h100(4), 1, 2, **{grid: status}), "P2pRefused")
        for grid in GRIDS
        for status in (1, 2, 3, 4, 5)
    ],
    "P2P refused in one direction": [(one_way(grid, 5), "P2pRefused") for grid in GRIDS],
    "P2P that cannot be read is neither OK nor PCIe": [
        *(
            (made.with_pair(made.titan(), 0, 1, **{grid: status}), "P2pUnreadable")
            for grid in GRIDS
            for status in (6, 99, Unavailable("Unknown"))
        ),
        (replace(made.titan(), pairs=Pairs()), "P2pUnreadable"),
    ],
    "distant pairs of DGX-1 refuse P2P by design": [
        (made.with_pair(made.dgx1(), 0, 7, read=3, write=3, nvlink=3), "NvlinkRing", 150)
    ],
    "P2P over NVLink without links, and self-links with two possible peers": [
        (made.with_pair(made.phb(), 0, 1, nvlink=0), "LinksUnresolved"),
        (made.with_pair(made.ncv4(), 0, 2, nvlink=0), "LinksUnresolved"),
    ],
    "half a reading": [
        (made.with_gpu(made.h100(), 0, error=Problem(kind=ProblemKind.GPU_LOST), links=[]), "GpuUnreadable"),
        (replace(made.h100(), problem=Problem(kind="deadline")), "ProbeIncomplete"),
        (judge(made.h100(4), node=NodeFacts(gpu_capacity=8, sharing=Sharing.EXCLUSIVE)), "GpusNotVisible"),
    ],
    "MIG": [(made.with_gpu(made.with_links(made.h100(), 3, state=0), 3, mig=1), "MigEnabled")],
    "one GPU has nothing to join": [(made.mesh([[0]], name="Tesla T4", mbps=0), "SingleGpu")],
    "a fabric that is ready, or not there": [
        (fabric(**each), "NvlinkRing", 450)
        for each in (
            *({}, {"state": 0}, COMPLETED),
            COMPLETED | {"health_mask": 0x6, "health_summary": 1},
            COMPLETED | {"health_mask": 1 << 12 | 1 << 14 | 2 | 1 << 8},
        )
    ],
    "a fabric of one clique, of no cluster, or that nobody can read": [
        (tray(*fabrics), "NvlinkRing", 900)
        for fabrics in (
            [of_fabric(NONE, 0)] * 8,  # as a single node reports
            [of_fabric(RACK, 5)] * 4,
            [of_fabric(RACK.upper(), 5), of_fabric(RACK.replace("-", ""), 5)],  # the same one
            [of_fabric(RACK, 5), Fabric(state=0), Fabric()],
            [of_fabric(RACK, 5), of_fabric(UNREAD, 9)],
            [of_fabric(RACK, 5), of_fabric(OTHER, UNREAD)],
        )
    ],
    "whole GPUs on bare metal, in a virtual machine, and of an unknown mode": [
        (virtual(result, mode), reason)
        for mode in (0, 1, 99, Unavailable("NVML_ERROR_NOT_SUPPORTED"))
        for result, reason in ((made.phb(), "NoNvlink"), (made.ncv4(), "NvlinkSomePairs"))
    ],
    "a fabric that is not ready on one GPU": [
        (fabric(**each), "FabricDisagrees")
        for each in (
            *({"state": state} for state in (1, 2, 7)),
            *({"state": 3, "status": 999}, COMPLETED | {"health_summary": 2}),
            COMPLETED | {"health_mask": 0x5, "health_summary": 0},
            *(COMPLETED | {"health_mask": mask} for mask in (1, 1 << 2, 1 << 6, 5 << 8, 2 << 12, 2 << 14)),
            COMPLETED | {"health_mask": 1 << 4, "health_summary": 1},
        )
    ],
    "a fabric that has not started explains links that are down": [
        (made.with_gpu(UNREADABLE, 1, links=[], switch_links=0, fabric=Fabric(state=1)), "FabricDisagrees")
    ],
    "13 of 18 links are too few": [(made.without_links(made.h100(), 3, count=5), "LinksDegraded")],
    "the policy wants all links": (
        judge(made.without_links(made.h100(), 3, count=1), thresholds=Thresholds(nvlink_sum_ratio=1.0)),
        "LinksDegraded",
    ),
    "a fabric that works with less than its bandwidth": [
        (fabric(**COMPLETED | each), "LinksDegraded", None, "GPU 5: the fabric works, but ")
        for each in (
            *({"health_mask": mask, "health_summary": 3} for mask in (0, 0x2, 0x4, 0x5)),
            *({"health_mask": mask, "health_summary": 1} for mask in (0x1, 0x5)),
            {"health_summary": 3},
        )
    ],
    "lost links of a pair are found through its history, and without": [
        (made.without_links(made.titan(), 0, count=1), "LinksDegraded"),
        ((made.titan(), made.without_links(made.titan(), 0, count=1)), "LinksDegraded"),
        ((made.titan(), alone(made.every_link(made.titan(), state=0))), "LinksDegraded"),
    ],
    "a replaced GPU has no history, but its neighbour has": [((made.titan(), REPLACED), "LinksDegraded")],
    "one GPU without a link rate leaves the class without a number": [
        (made.with_links(made.titan(), 1, mbps=35_000), "NvlinkRing")
    ],
    "a rate that is not readable or like none that is sold is not invented": [
        (made.every_link(made.titan(), mbps=mbps), *RATELESS) for mbps in (0, 35_000)
    ],
}
KLASSES = {"NvlinkRing": "nvlink", "NvlinkSomePairs": "nvlink-pairs", "NoNvlink": "pcie"}


@pytest.mark.parametrize("row", rows(CLASSES))
def test_a_class_has_its_reason_and_number(row: Row) -> None:
    """In doubt neither a ring nor PCIe is claimed; without a class there is no evidence."""
    runs, reason, gbps, part = (*row, None, "")[:4] if len(row) < 3 else (*row, "")[:4]
    judgement = judge_all(runs)
    seen = judgement.interconnect
    klass = KLASSES.get(reason)
    assert (seen.reason, seen.klass, seen.evidence) == (reason, klass, "reported" if klass else None)
    assert (seen.nvlink_gbps, part in seen.message) == (gbps, True)
    assert not klass or (judgement.verdict, judgement.findings) == (Verdict.PASS, [])


@pytest.mark.parametrize(("machine", "down", "gbps"), [(made.h100(), 4, 350), (made.a100(), 3, 225)])
def test_three_quarters_of_the_expected_links_keep_the_class(machine: Result, down: int, gbps: int) -> None:
    interconnect = judge(made.without_links(machine, 3, count=down)).interconnect
    assert (interconnect.klass, interconnect.nvlink_gbps) == ("nvlink", gbps)


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
    assert snapped(mbps) == rate


def by_trying(joined: list[list[bool]]) -> bool:
    orders = permutations(range(1, len(joined)))
    return any(all(joined[a][b] for a, b in pairwise((0, *order, 0))) for order in orders)


@pytest.mark.parametrize("size", range(3, 8))
def test_the_ring_search_agrees_with_brute_force(size: int) -> None:
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


MEMBERS: Table = {
    "two halves of a tray": (
        (RACK_1, RACK_1, of_fabric(RACK, 2), of_fabric(RACK, 2)),
        "GPU 0, GPU 1 in c1a570f0",
        "00aa.1; GPU 2, GPU 3 in c1a570f0",
    ),
    "one GPU left the default partition": [
        ((*[of_fabric(RACK, 32766)] * 3, of_fabric(RACK, 7)), "GPU 3 in c1a570f00000400080000000000000aa.7")
    ],
    "two clusters": [((RACK_1, of_fabric(OTHER, 1)), "00aa.1", "00bb.1")],
    "one without a cluster": [((RACK_1, of_fabric(NONE, 0)), "GPU 1 in 0000")],
    "cliques without a cluster": [((of_fabric(NONE, 0), of_fabric(NONE, 3)), ".0;", ".3")],
}


@pytest.mark.parametrize("row", rows(MEMBERS))
def test_gpus_in_different_cliques_warn_and_have_no_class(row: Row) -> None:
    fabrics, *members = row
    judgement = judge(tray(*fabrics))
    check(judgement, "fabric-cliques/warn", "node: ", *members)
    assert (judgement.interconnect.klass, judgement.interconnect.reason) == (None, "CliquesDiffer")


HIDDEN = {
    "P2P refused by the profile": made.with_pair(made.h100(2), 0, 1, read=5, nvlink=5),
    "fewer links": made.without_links(made.h100(4), 2, count=9),
    "far ends hidden": made.with_pair(made.ncv4(), 0, 2, nvlink=0),
    "fabric in progress": made.with_gpu(made.h100(2), 1, fabric=Fabric(state=2)),
    "two cliques": tray(RACK_1, of_fabric(RACK, 2)),
}


@pytest.mark.parametrize("result", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize("mode", [2, 3, 4])
def test_what_a_hypervisor_shows_of_links_accuses_no_node(result: Result, mode: int) -> None:
    """A vGPU may refuse P2P and hide links by design; nothing of it is remembered either."""
    judgement = judge(made.h100(len(result.gpus)), virtual(result, mode))
    check(judgement, "virtual-gpu/info", "NVML", Verdict.PASS)
    assert (judgement.interconnect.klass, judgement.interconnect.reason) == (None, "VirtualGpu")
    assert {gpu.links.sum for gpu in judgement.history.gpus.values()} == {18}


LOST = Problem(kind=ProblemKind.CALL_HUNG, call="nvmlDeviceGetHandleByIndex", message="GPU is lost")
GFD, TOPOGRAPH = "nvidia.com/gpu.clique", "accelerator.topograph.run/domain"
IN_RACK = tray(*[of_fabric(RACK, 5)] * 4)
DOMAINS: Table = {
    "no NVLink at all": [
        (made.phb(), {GFD: f"{RACK}.5"}, "no GPU has an active NVLink"),
        (made.phb(), {TOPOGRAPH: "block-7"}, TOPOGRAPH, "block-7"),
    ],
    "a fabric that is not complete": [
        (fabric(state=2), {GFD: f"{RACK}.5"}, "1 of 8 GPUs are not registered with the fabric"),
    ],
    "another clique": [(IN_RACK, {GFD: f"{RACK}.6"}, "the driver says", ".5")],
    "the same clique, with and without dashes": [(IN_RACK, {GFD: f"{RACK.replace('-', '')}.5"})],
    "a domain of another form": [(IN_RACK, {TOPOGRAPH: "block-7"})],
    "no label": [(made.phb(), {})],
    "a fabric that is not told": [(made.h100(), {GFD: f"{RACK}.5"})],
    "a node that was not read": [(made.with_gpu(made.phb(), 0, error=LOST), {GFD: f"{RACK}.5"})],
}


@pytest.mark.parametrize("row", rows(DOMAINS))
def test_a_domain_that_the_driver_does_not_show_warns_and_one_that_may_be_right_does_not(row: Row) -> None:
    result, labels, *texts = row
    judgement = judge(result, node=NodeFacts.from_node(labels=labels, capacity={}))
    findings = [one for one in judgement.findings if one.code == "domain-contradicted"]
    assert [one.severity for one in findings] == [Severity.WARN] * bool(texts)
    assert all(text in one.message for one in findings for text in texts)
