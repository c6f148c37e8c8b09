"""Links between GPUs: refused, missing, hidden, unclear, down on every GPU at first sight, or with errors."""

from itertools import combinations
from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Fabric, LinkErrors, LinkGroup, Result, Unavailable
from nodegauge_judge import CATALOGUE, Answer, Thresholds, Verdict
from support.judge_results import LOST, Row, Table, check, judge, only, rows


def all_refused() -> Result:
    result = made.h100()
    for i, j in combinations(range(8), 2):
        result = made.with_pair(result, i, j, nvlink=5)
    return made.with_pair(result, 2, 3, read=5, write=5)


def fewer(*counts: int) -> Result:
    result = made.h100()
    for gpu_index, count in enumerate(counts):
        result = made.without_links(result, gpu_index, count=count)
    return result


def joined(name: str, *links: int, each: int = 0, **more: Any) -> Result:
    """GPUs two and two, each pair by so many links; or four of which each pair has `each`."""
    size = 2 * len(links) or 4
    nv = [[each * (i != j) or (i ^ 1 == j and links[i // 2]) for j in range(size)] for i in range(size)]
    return made.mesh(nv, name=name, mbps=25_000, **more)


def early(result: Result, seconds: int = 57) -> Result:
    return replace(result, host=replace(result.host, boottime_ms=seconds * 1000))


PCIE, NVL, H200, GIVEN = "NVIDIA A100 80GB PCIe", "NVIDIA H200 NVL", "NVIDIA H200", {"virtualization": 1}
P100 = made.mesh([[min(n, 1) for n in row] for row in made.DGX1_NV], name="Tesla P100-SXM2-16GB", mbps=20_000)
MESH, A100_8 = made.hgx_a100_4(), made.a100()
REGISTERED = made.every_gpu(made.h100(), fabric=Fabric(state=3, status=0))
STARTING = (
    made.every_gpu(REGISTERED, fabric=Fabric(state=2)),
    made.with_gpu(made.switched(4, name="NVIDIA GB300", links=18, mbps=53_125), 1, fabric=Fabric(state=1)),
    *(made.with_pair(A100_8, 0, 1, read=5), made.every_link(A100_8, state=0)),
    made.with_links(A100_8, 1, state=0),
)
FABRIC = made.with_pair(made.with_gpu(made.h100(), 7, fabric=Fabric(state=2)), 0, 1, read=5)
NO_READ = replace(made.titan(), pairs=replace(made.titan().pairs, read=[]))
GONE = made.every_link(made.titan(), state=0)
ONE_OF_NCV4 = replace(made.ncv4(), gpus=made.ncv4().gpus[:1], pairs=made.pairs([[0]]))
MIG = made.with_gpu(made.with_pair(made.h100(), 1, 2, read=5), 0, mig=1, fabric=Fabric(state=2))
SHORT_H800 = made.with_gpu(made.without_links(made.h100(), 3, count=9), 3, name="NVIDIA H800")
DISABLED = made.every_link(made.titan(), state=3)
SHORT_OF_SIBLINGS = ("nvlink-degraded/fail", "13 NVLinks active; its siblings have 18 (72%, below 75%")
SHORT_OF_SIBLINGS += ({"links": 13, "expected": 18, "against": "siblings", "limit": 0.75},)
ALSO = "0-1, 0-2, 0-3, 0-4, 0-5, 0-6, 0-7, 1-2, 1-3, 1-4, 1-5, 1-6, 1-7, 2-4, 2-5, 2-6"
TABLE: Table = {
    "refused P2P names pair, links, status and next step": (
        made.with_pair(made.titan(), 0, 1, read=5, nvlink=4),
        "p2p-refused/fail",
        "GPU 0 (0000:0f:00.0) - GPU 1 (0000:10:00.0): ",
        "2 NVLinks up",
        "READ (NS: not supported), NVLINK (DR: disabled by a registry key)",
        {"refused": "READ (NS: not supported); NVLINK (DR: disabled by a registry key)"},
        f"Next: {CATALOGUE['p2p-refused'].next_step}",
    ),
    "28 refused pairs of one cause are one finding, the worst pair first": (
        all_refused(),
        "p2p-refused/fail",
        "GPU 2 (0000:11:00.0) - GPU 3 (0000:12:00.0) and 27 more: ",
        {"pairs": 28, "also": f"{ALSO} and 11 more"},
    ),
    "a fabric that is not ready is named before the pairs that refuse": (
        FABRIC,
        "p2p-refused/fail",
        "GPU 7 (0000:16:00.0) and 1 more: ",
        "still in progress",
        {"fabric_state": 2},
    ),
    "behind switches siblings tell which links are missing": [
        (fewer(0, 0, 0, 1), "nvlink-degraded/warn"),
        (fewer(0, 0, 0, 5), *SHORT_OF_SIBLINGS),
    ],
    "exactly the tolerated share of NVLinks warns": [
        (judge(fewer(0, 0, 0, 9), thresholds=Thresholds(nvlink_sum_ratio=0.5)), "nvlink-degraded/warn")
    ],
    "siblings that are degraded alike are seen against the past": [
        ((made.h100(), fewer(*[2] * 8)), "nvlink-degraded/warn", " and 7 more: ", {"against": "history"})
    ],
    "a doubt is not a lost link, even with a past to compare with": [
        ((made.titan(), DISABLED), "nvlink-unresolved/warn", "traffic is disabled")
    ],
    "zero of 18 is a fact, although the GPU still counts its wires to the switches": [
        (made.with_links(made.h100(), 1, state=0), "nvlink-degraded/fail", {"links": 0})
    ],
    "a pair that lost all links is degraded against its past, and unresolved without": [
        ((made.titan(), GONE), "nvlink-degraded/fail"),
        (GONE, "nvlink-unresolved/warn"),
    ],
    "P2P that could not be told is neither refused nor fine": [
        (
            made.with_pair(made.titan(), 0, 1, write=Unavailable("Unknown")),
            "nvlink-unresolved/warn",
            "WRITE (not readable: Unknown)",
        ),
        (NO_READ, "nvlink-unresolved/warn", "READ (not in the document)"),
        (made.with_links(MESH, 1, state=3), "nvlink-unresolved/warn", "GPU 1 (0000:10:00.0)"),
    ],
    "what starts after boot has its time": [
        (early(result, seconds), "fabric-starting/warn", Verdict.UNKNOWN, f"booted {seconds} s ago")
        for result in STARTING
        for seconds in (45, 299)
    ],
    "what had its time or needs none is judged": [
        (early(STARTING[0], 300), "p2p-refused/fail"),
        (early(STARTING[3], 300), "nvlink-down/warn"),
        (early(made.without_links(REGISTERED, 3, count=5)), "nvlink-degraded/fail"),
        (early(made.every_gpu(REGISTERED, fabric=Fabric(state=3, status=999))), "p2p-refused/fail"),
        (early(made.with_pair(made.rtx3090(), 0, 1, nvlink=4)), "p2p-refused/fail"),
        (early(made.without_links(MESH, 0, count=1)), "nvlink-degraded/warn"),
        *((early(result), "") for result in (REGISTERED, A100_8, made.phb())),
    ],
    "fewer bridges and other boards are whole": [
        ((result, result), "")
        for result in (
            *(joined(PCIE, *links) for links in ((4,), (8,), (12,), (4, 12))),
            *(joined("NVIDIA H100 PCIe", 8), joined("Quadro GV100", 2), joined("Quadro RTX 5000", 1)),
            *(joined("Tesla V100-SXM2-16GB", 3, 3), joined("Tesla V100-SXM2-32GB", each=1)),
            *(joined("NVIDIA A100-SXM4-80GB", 6, **GIVEN), joined(H200, each=6), joined(NVL, 18)),
        )
    ],
    "a mesh may be uneven": [(made.dgx1([0, 1, 2, 3]), "")],
    "another model may have fewer links": [(SHORT_H800, "mixed-gpus/info")],
    "one GPU of a bridged pair in a virtual machine has nobody to join": [(ONE_OF_NCV4, "")],
    "a card lost its links with the GPU at the other end of its bridge": [
        (
            made.with_gpu(
                made.without_links(joined(name, *links), 1, count=links[0]), 0, error=LOST, links=[]
            ),
            "gpu-lost/fail",
        )
        for name, links in ((PCIE, (12, 12)), (NVL, (18, 18)), ("Quadro GV100", (4,)))
    ],
    "with MIG on, NVML reports links as down": [((made.h100(), MIG), "")],
}


@pytest.mark.parametrize("row", rows(TABLE))
def test_links_are_judged(row: Row) -> None:
    """By P2P, by siblings, and by the past."""
    check(*row)


NEVER_UP = [  # the machine, how many links its first GPU lacks from the first run on, and what is whole
    *((made.rtx3090(), 1, 4), (made.titan(), 1, 2), (MESH, 1, 12), (MESH, 4, 12), (made.dgx1(), 2, 6)),
    *((joined(PCIE, 11), 0, 12), (joined(PCIE, 7), 0, 8), (joined(PCIE, 12, 12, **GIVEN), 1, 12)),
    *((joined("NVIDIA H100 PCIe", 11), 0, 12), (joined(NVL, 17), 0, 18), (joined("Quadro GV100", 3), 0, 4)),
    *((joined(name, each=6), 1, 18) for name in (NVL, H200, "NVIDIA GH200 120GB")),
    *((P100, 1, 4), (made.every_gpu(made.dgx1(), **GIVEN), 1, 6), (joined("NVIDIA A30", 4, 1), 0, 4)),
]


@pytest.mark.parametrize(("whole", "down", "expected"), NEVER_UP)
def test_a_link_that_was_never_up_is_missed_and_not_learned(whole: Result, down: int, expected: int) -> None:
    judgement = judge(*[made.without_links(whole, 0, count=down)] * 5)
    links = only(judgement).evidence["links"]
    severity = "warn" if links >= 0.75 * expected else "fail"
    check(judgement, f"nvlink-degraded/{severity}", {"expected": expected, "against": "wiring"})
    assert links not in {gpu.links.sum for gpu in judgement.history.gpus.values()}
    assert severity == "warn" or judgement.interconnect.klass is None


ABSENT = LinkGroup(links=list(range(18)), **dict.fromkeys(("state", "p2p"), Unavailable("not supported")))
"""As a driver answers for links that a GPU does not have."""


def down(count: int, name: str, links: int, **more: Any) -> Result:
    """GPUs whose links the driver lists as capable and inactive; P2P over NVLink is not supported."""
    idle = [LinkGroup(links=list(range(links)), state=0, p2p=1)] if links else []
    gpus = [made.gpu(i, name=name, links=idle, **more) for i in range(count)]
    return made.machine(gpus, [[False] * count for _ in range(count)])


H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"


def absent(count: int, name: str) -> Result:
    return made.every_gpu(down(count, name, 0), links=[ABSENT])


def short(name: str, links: int, *, count: int = 8, **more: Any) -> Result:
    return made.switched(count, name=name, links=links, mbps=25_000, **more)


ONE_DEAD = made.mesh(
    [[4 * (i != j and 0 not in (i, j)) for j in range(4)] for i in range(4)], name=A100, mbps=25_000
)
"""HGX A100 4-GPU without switches, one module without a link: no sibling is comparable."""
SXM = ("nvlink-down/warn", None, "LinksDown", "nvidia-fabricmanager", "nvidia-smi nvlink -s")
CARD = ("", "pcie", "NoNvlink")
PERHAPS = ("nvlink-down/info", None, "LinksDown", Verdict.PASS)
MODEL = ("", "nvlink", "NvlinkRing")
TWO_DOWN = down(2, H100, 0)
UNREADABLE = [LinkGroup(links=[0, 1], state=Unavailable("Unknown"), p2p=1)]
AT_FIRST_SIGHT: Table = {
    "SXM modules and superchips always have NVLinks": [
        (down(8, H100, 18), *SXM),
        (down(4, "NVIDIA GB200", 18), *SXM),
        (down(16, "Tesla V100-SXM3-32GB", 6), *SXM),
    ],
    "NVLink is disabled in the driver, or it knows no link calls": [
        (down(8, "NVIDIA H20", 0), *SXM),
        (absent(8, "NVIDIA A800-SXM4-80GB"), *SXM),
    ],
    "a whole board in a virtual machine": [(down(8, "NVIDIA H200", 18, **GIVEN), *SXM)],
    "an unknown model that is wired to switches": [(down(2, "NVIDIA Z100", 20, switch_links=20), *SXM)],
    "GH200 in a fabric": [(down(4, "NVIDIA GH200 480GB", 18, fabric=Fabric(state=3, status=0)), *SXM)],
    "cards without a bridge: the driver lists their links as inactive": [
        (down(2, "NVIDIA GeForce RTX 3090", 4), *CARD),
        (down(2, "NVIDIA H100 PCIe", 18), *CARD),
        (down(2, "NVIDIA A100 80GB PCIe", 12), *CARD),  # NVSentinel issue 1481
        (down(2, "NVIDIA RTX A6000", 4, **GIVEN), *CARD),
        (absent(4, "NVIDIA L40S"), *CARD),
    ],
    "a chip that only cards have": [(down(2, "Graphics Device", 4, compute_capability="8.6"), *CARD)],
    "an odd form": [(down(2, "NVIDIA Z100", 20), *PERHAPS), (down(2, "NVIDIA GH200 480GB", 18), *PERHAPS)],
    "modules in a virtual machine may have no NVLink by design": [
        (down(2, H100, 18, **GIVEN), *PERHAPS),
        (early(down(2, H100, 18, **GIVEN)), *PERHAPS),
        (down(4, A100, 0, **GIVEN), *PERHAPS),
    ],
    "one GPU has no peer to miss": [(down(1, H100, 18), "", None, "SingleGpu")],
    "a module of a mesh without a link is no card": [
        (ONE_DEAD, "nvlink-degraded/fail", None, "LinksDegraded", "GPU 0 (0000:0f:00.0) and 3 more: ")
    ],
    "the model tells where siblings agree, for one NVSwitch may be out for all": [
        row
        for name, links, healthy in (
            (A100, 10, 12),
            (H100, 14, 18),
            ("NVIDIA B200", 9, 18),
            ("NVIDIA H800", 6, 8),
            ("NVIDIA GB300", 17, 18),
        )
        for row in (
            (short(name, healthy), *MODEL),
            (short(name, links), "nvlink-down/warn", None, "LinksDown", {"expected": healthy}),
        )
    ],
    "an unknown model, a part of a board and a mesh have what they show": [
        (short("NVIDIA Z100", 10), *MODEL),
        (short(A100, 6, count=2, **GIVEN), *MODEL),
        (made.mesh([[0, 8], [8, 0]], name=A100, mbps=25_000), *MODEL),
    ],
    "13 of 18 fails beside siblings that lack links too": [
        (fewer(5, *[1] * 7), "nvlink-degraded/fail nvlink-down/warn", None, "LinksDegraded", {"expected": 18})
    ],
    "MIG, a vGPU and a fabric that has not started explain links that are down": [
        (down(4, H100, 18, mig=1), "", None, "MigEnabled"),
        (down(4, H100, 18, virtualization=2), "virtual-gpu/info", None, "VirtualGpu"),
        (down(4, H100, 18, fabric=Fabric(state=1)), "p2p-refused/fail", None, "FabricDisagrees"),
    ],
    "links that were up before are degraded": [
        ((made.h100(2), down(2, H100, 18)), "nvlink-degraded/fail", None, "LinksDegraded")
    ],
    "links whose state is unreadable are not called down": [
        (made.every_gpu(TWO_DOWN, links=UNREADABLE), "nvlink-unresolved/warn", None, "LinksUnresolved")
    ],
}


@pytest.mark.parametrize("row", rows(AT_FIRST_SIGHT))
def test_links_that_are_down_at_first_sight_are_judged(row: Row) -> None:
    runs, expected, klass, reason, *facts = row
    judgement = check(runs, expected, *facts)
    assert (judgement.interconnect.klass, judgement.interconnect.reason) == (klass, reason)


def test_without_a_number_that_stays_the_label_shows_the_weakest_gpu() -> None:
    judgement = judge(made.without_links(short("NVIDIA Z100", 18, count=4), 2, count=5))
    check(judgement, "nvlink-degraded/fail")
    assert judgement.interconnect.nvlink_gbps == 13 * 25


def with_errors(known: int | None = 0, **errors: int) -> Result:
    """GPU 2 of four with these counters of links up to NVLink 4, the others at `known`; None: of NVLink 5."""
    older = {} if known is None else dict.fromkeys(("replay", "recovery", "crc_flit", "crc_data"), known)
    newer = dict.fromkeys(("recoveries", "received", "integrity", "effective"), 0) if known is None else {}
    return made.with_gpu(made.hgx_a100_4(), 2, link_errors=LinkErrors(**older | newer | errors))


def grew(known: int | None = 0, seconds: float = 900, **counts: tuple[int, int]) -> tuple[Result, Result]:
    before, now = (with_errors(known, **{name: both[n] for name, both in counts.items()}) for n in (0, 1))
    return before, made.later(now, seconds=seconds)


NVLINK5, MINUTES = None, 900
CRC = 100 * MINUTES
MIG_ERRORS = made.with_gpu(made.later(with_errors(recovery_failed=3)), 0, mig=1)
WARN, FAIL, FULL = "nvlink-errors/warn", "nvlink-errors/fail", "counter-saturated/warn"
GOOD, UNSURE = {"nvlink-errors": Answer.GOOD}, {"nvlink-errors": Answer.UNSURE}
GPU_2 = "GPU 2 (0000:11:00.0): "
ERRORS: Table = {
    "a replay or recovery fails, as in DCGM": [
        (grew(replay=(5, 6)), FAIL, GPU_2, {"nvlink-errors": Answer.BAD, "link_replay": 6}),
        (judge(*grew(replay=(0, 9)), thresholds=Thresholds(nvlink_errors=10)), WARN),
        (grew(replay=(0, 5_000_000)), FAIL, "5000000 NVLink replays or recoveries since the last run"),
        (grew(recovery=(0, 1), crc_data=(0, 7)), f"{FAIL} {WARN}"),
    ],
    "CRC errors fail at 100 a second": [
        (grew(crc_flit=(0, 5_000_000)), FAIL, GPU_2, "5.56e+03 a second (fails from 100)"),
        (grew(crc_flit=(9, 9 + CRC // 2), crc_data=(0, CRC // 2)), FAIL, "100 a second"),
        (grew(crc_data=(0, CRC - 1)), WARN, GPU_2),
        (grew(crc_flit=(0, 1)), WARN),
        (judge(*grew(crc_data=(0, CRC)), thresholds=Thresholds(nvlink_crc_per_second=101)), WARN),
    ],
    "NVLink 5 has other counters, and corrects errors: none may get through": [
        *((grew(NVLINK5, **{name: (3, 4)}), FAIL, GPU_2) for name in ("recoveries", "received", "integrity")),
        (grew(recovery_failed=(0, 1)), FAIL, GPU_2),
        (grew(NVLINK5, effective=(1, 2)), FAIL, "1 NVLink errors after correction"),
    ],
    "totals without a past warn": [
        (with_errors(recovery_failed=2), WARN, "2 NVLink replays or recoveries since the driver was loaded"),
        (with_errors(replay=5_000_000), WARN, "some may be old: there is no earlier reading", UNSURE),
        (with_errors(NVLINK5, recoveries=505), WARN),
        (made.with_gpu(made.h100(), 1, link_errors=LinkErrors(recovery_failed=1)), WARN),
        (made.later(with_errors(crc_flit=5_000_000), seconds=MINUTES), WARN),
    ],
    "old errors and corrected bits are what links live with": [
        *((grew(**counts), "", GOOD) for counts in ({"replay": (5, 5)}, {"symbol": (9, 9000)})),
        (grew(recovery_failed=(1, 1)), ""),
        (with_errors(crc_flit=70), "", UNSURE),
        (with_errors(), "", GOOD),
    ],
    "a full counter cannot grow, which is said and clears nothing": [
        *(
            (grew(**{name: (full, full)}), FULL, GPU_2, "NVLink errors", UNSURE)
            for name in ("replay", "crc_flit", "recovery")
            for full in (65535, 12 * 65535, 2**32 - 1)
        ),
        (grew(replay=(65601, 65601), full=(1, 1)), FULL, UNSURE),
        (grew(NVLINK5, received=(65535, 65535)), FULL, UNSURE),
        (grew(replay=(65601, 65601), full=(0, 0)), "", GOOD),
        (grew(replay=(7, 65535)), f"{FAIL} {FULL}"),
    ],
    "a run too soon leaves it to a later one, and links with MIG on are not judged": [
        (grew(seconds=30, replay=(5, 9)), "", UNSURE),
        ((with_errors(recovery_failed=0), MIG_ERRORS), ""),
    ],
}


@pytest.mark.parametrize("row", rows(ERRORS))
def test_errors_of_links_are_judged(row: Row) -> None:
    assert (check(*row).answers.get("nvlink-errors") is Answer.BAD) == (FAIL in row[1])
