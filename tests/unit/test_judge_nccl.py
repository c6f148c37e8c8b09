"""The judgement of an NCCL run: verdict, labels, how much was measured, peers, NVML, and the slow pair."""

import pytest
from msgspec.structs import replace

import support.nccl_results as nccl
import support.results as made
from nodegauge_contract import ArmName, Problem, Result, Unavailable
from nodegauge_judge import Answer, NodeFacts, Sharing, Verdict, judge_health
from nodegauge_judge.nccl.expectations import Expectation, Expectations
from nodegauge_judge.nccl.judge import NCCL_RULES, judge_nccl
from nodegauge_judge.nccl.measurement import Agreement, NcclJudgement
from support.judge_results import Row, Table, rows
from support.nccl_results import GIB, MIB, SHM, check, finding

GOOD, UNSURE = Answer.GOOD, Answer.UNSURE
FINE = {"busbw-low": GOOD}
CUT_SHORT = "nccl-incomplete/warn nccl-incomplete/info"
PASS, UNKNOWN, SKIPPED = Verdict.PASS, Verdict.UNKNOWN, Verdict.SKIPPED
LOW, WARNS, PAIR = "busbw-low/warn", "interconnect-contradicted/warn", "pair-slow/warn"
CONFIRMED, CONTRADICTED, NEITHER = ({"agreement": each} for each in ("confirmed", "contradicted", "unsure"))


def cut(result: Result, *, below: int) -> Result:
    cells = [cell for cell in nccl.arm_of(result, ArmName.DEFAULT).cells if cell.bytes < below]
    return nccl.changed(nccl.with_cells(result, ArmName.DEFAULT, *cells), cut=["all_reduce/1073741824"])


def skipping(why: str, message: str) -> Result:
    return nccl.changed(nccl.h100(), arms=[], skipped=why, message=message)


def among(gbps: float, *others: float) -> NcclJudgement:
    return judge_nccl(nccl.h100(gbps), peers=lambda fingerprint: others if "H100" in fingerprint else ())


def narrow(gbps: float) -> Result:
    machine = made.every_gpu(made.rtx3090(), pcie=nccl.GEN4, compute_capability="8.6")
    return nccl.node(machine, nccl.default_arm(gbps, gather=40, ranks=2, algorithm="RING"))


def bridged(gbps: float, *, host: float | None = None) -> Result:
    """Two bridged pairs of A100: the ring crosses PCIe."""
    machine = made.every_gpu(made.a100_bridged_pairs(), pcie=nccl.GEN4, compute_capability="8.0")
    first = nccl.default_arm(gbps, gather=gbps, ranks=4, algorithm="RING", transport=f"{nccl.P2P}+{SHM}")
    return nccl.node(machine, first, *([nccl.p2p_off_arm(host, ranks=4)] if host else []))


def within(gbps: float, slow: dict[tuple[int, int], float] | None = None) -> Result:
    return nccl.with_pairs(nccl.h100(), gbps, slow=slow)


REASONS = ("Busy", "SingleGpu", "Mig", "NoEngine")
PREVIOUS = judge_nccl(nccl.h100()).record
LARGE = nccl.cell(nccl.AR, 8 * GIB, 400, ranks=8, algorithm="NVLS", wrong=0)
SEVEN = nccl.changed(nccl.h100(440, count=7), expected=8)
WITHHELD = nccl.changed(nccl.h100(440), uuids=[made.uuid(number) for number in range(7)], ranks=7)
BRIDGES = dict.fromkeys(((0, 1), (1, 0), (2, 3), (3, 2)), 250.0)
STOPPED = replace(
    made.with_bus(nccl.h100(440, count=7), more=["0000:16:00.0"]), problem=Problem(kind="deadline")
)
STILL_P2P = nccl.swapped(nccl.titan(40, host=36), ArmName.P2P_OFF, transport=nccl.P2P)
A100 = made.every_gpu(made.a100(), pcie=nccl.GEN4, compute_capability="8.0")
SLOW_A100 = nccl.node(A100, nccl.default_arm(20, gather=20, ranks=8, algorithm="RING", transport=SHM))
OWN = Expectation(gpu="*A100*", count=8, collective="all_reduce", bytes=1 << 30, busbw=25)
OFF = {"NCCL_P2P_LEVEL": "LOC"}
DGX1 = nccl.node(
    made.every_gpu(made.dgx1(), pcie=nccl.GEN3, compute_capability="7.0"),
    nccl.default_arm(130, gather=130, ranks=8, algorithm="RING"),
)
NV = {(i, j): 24.0 * made.DGX1_NV[i][j] or 9.0 for i in range(8) for j in range(8)}


def without(result: Result, *collectives: str) -> Result:
    """The same run without a cell of these."""
    first = nccl.arm_of(result, ArmName.DEFAULT)
    return nccl.with_cells(result, first.name, *(c for c in first.cells if c.collective not in collectives))


TABLE: Table = {
    "a healthy node passes with labels and a confirmed interconnect": (
        nccl.h100(),
        "",
        {"verdict": PASS, "again": False, "agreement": Agreement.CONFIRMED},
        {"busbw": {"all_reduce": 462, "all_gather": 355, "reduce_scatter": 355}},
    ),
    "a job that asks for more than 462 must not get 462.9": [(nccl.h100(462.9), "", {"all_reduce": 462})],
    "256 MiB replaces 1 GiB, uses its own expectation, and the finding names the size": [
        (cut(nccl.h100(), below=GIB), CUT_SHORT, {"busbw": {"all_reduce": 415}} | FINE, "256 MiB"),
        # 360 GB/s at 256 MiB; 0.9 of 420 is 378
        (cut(nccl.h100(400), below=GIB), f"{CUT_SHORT} {LOW}", {"bytes": 256 * MIB}),
    ],
    "a collective that was not measured is no pass": [
        (without(nccl.h100(), "all_gather"), "nccl-incomplete/warn", "all_gather; so it has no label"),
        (
            without(nccl.h100(), "all_gather", "reduce_scatter"),
            "nccl-incomplete/warn",
            "so they have no label",
        ),
    ],
    "256 MiB is not compared with 1 GiB of peers": (
        judge_nccl(cut(nccl.h100(), below=GIB), peers=lambda _: (600, 610, 620)),
        CUT_SHORT,
    ),
    "256 MiB without an expectation is not graded, for link rates give a floor at 1 GiB only": (
        cut(nccl.h100(300, count=7), below=GIB),
        "nccl-incomplete/warn nccl-incomplete/info not-gradable/info",
        {"busbw-low": UNSURE},
    ),
    "8 GiB is graded but gets no label, which would overstate": (
        nccl.with_cells(nccl.h100(), ArmName.DEFAULT, LARGE),
        f"nccl-incomplete/warn {LOW}",
        {"busbw": {}, "bytes": 8 * GIB},
    ),
    "less than 256 MiB gets no label": (
        cut(nccl.h100(), below=256 * MIB),
        CUT_SHORT,
        {"busbw": {}, "verdict": UNKNOWN, "readable": False},
        "no label",
    ),
    "a virtual machine hides link rates: not graded, and not called fast enough": (
        made.with_links(nccl.h100(count=4), 0, mbps=Unavailable("NotSupported")),
        "not-gradable/info",
        {"verdict": PASS, "busbw-low": UNSURE, "agreement": Agreement.UNSURE},
        "not graded",
    ),
    "fewer GPUs are graded, and the health probe's history knows the missing one": (
        judge_nccl(SEVEN, history=judge_health(made.h100()).history),
        "fewer-gpus/warn",
        {"ranks": 7, "expected": 8, "agreement": Agreement.CONFIRMED},
        "7 of 8 GPUs",
        made.uuid(7)[:12],
    ),
    "a GPU that the device plugin withheld is named": [(WITHHELD, "fewer-gpus/warn", "GPU 7 (0000:16:00.0)")],
    "time slicing multiplies the capacity": [
        (judge_nccl(nccl.h100(), node=NodeFacts(gpu_capacity=16, sharing=sharing)), expected)
        for sharing, expected in ((Sharing.EXCLUSIVE, "fewer-gpus/warn"), (Sharing.SHARED, ""))
    ],
    "expectations are for one node": (
        nccl.changed(nccl.h100(20), nodes=2),
        "not-gradable/info",
        {"summary": "not-gradable: 2 nodes", "verdict": UNKNOWN, "readable": False},
        {"busbw": {}, "answers": {}},
    ),
    "a skipped run decides nothing and keeps the previous record": [
        (
            judge_nccl(skipping(why, "pid 4711 works on GPU 3"), previous=PREVIOUS),
            "",
            {"verdict": SKIPPED, "reason": reason, "record": PREVIOUS, "readable": False, "answers": {}},
            "4711",
        )
        for why, reason in zip(("busy", "single-gpu", "mig", "no-engine"), REASONS, strict=True)
    ],
    "an image without NCCL names one that has it": (
        skipping("no-engine", "No module named 'nccl'"),
        "",
        "cannot load nccl4py (No module named 'nccl')",
        "images.nccl",
    ),
    "a result without an NCCL run is unknown, and keeps the record too": (
        judge_nccl(replace(made.h100(), problem=Problem(kind="driver-not-loaded")), previous="old"),
        "",
        {"verdict": UNKNOWN, "reason": "DriverNotLoaded", "record": "old"},
    ),
    "0.85 of the median of at least two other nodes": [
        (among(430, *others), expected, {"busbw-low": GOOD})
        for others, expected in (
            ((550, 552), "busbw-below-peers/warn"),
            ((550, 560, 100, 555), "busbw-below-peers/warn"),
            ((470, 480), ""),
            ((600,), ""),
            ((), ""),
        )
    ],
    "12 GB/s cannot come from 50 GB/s of NVLink": [
        (nccl.titan(12), f"{WARNS} {LOW}", CONTRADICTED, "12 GB/s", "50 GB/s", "Measured: all_reduce")
    ],
    "slow NVLink above PCIe speed is slow, and may be a narrow NVLink": [
        (nccl.h100(100, gather=350), LOW, NEITHER),
        (narrow(25), LOW, NEITHER),
        (narrow(22), f"{WARNS} {LOW}", CONTRADICTED),
    ],
    "P2P that gains less than 15 % is none": [
        (nccl.titan(40, host=32), WARNS, CONTRADICTED),
        (nccl.titan(40, host=31), "", CONFIRMED),
    ],
    "the arm with P2P disabled still used it": [(STILL_P2P, "", CONFIRMED)],
    "40 GB/s over PCIe 4": [(nccl.phb(40), WARNS, CONTRADICTED)],
    "every pair at PCIe speed": [(within(50.0), f"{WARNS} {PAIR}", CONTRADICTED)],
    "stopped early, a GPU on the bus was not given": [(STOPPED, "nccl-failed/warn", CONFIRMED)],
    "NCCL by default uses P2P only up to a PCIe switch": [
        (nccl.phb(11, host=11), "", CONFIRMED),
        (bridged(20, host=20), "", NEITHER),
    ],
    "the policy's environment made it slow": [
        (judge_nccl(nccl.titan(4), environment={"NCCL_P2P_DISABLE": "1"}), "", NEITHER, {"verdict": PASS}),
        (judge_nccl(nccl.titan(4), environment={"NCCL_DEBUG": "WARN"}), f"{WARNS} {LOW}"),
    ],
    "with P2P disabled only the policy's expectations apply": [
        (SLOW_A100, f"{LOW} {WARNS}"),
        (judge_nccl(SLOW_A100, environment=OFF), ""),
        (judge_nccl(SLOW_A100, environment=OFF, expectations=Expectations.default().with_policy([OWN])), LOW),
    ],
    "only the pair matrix shows bridges: 250 GB/s does, 20 does not": [
        (nccl.with_pairs(bridged(25), 20.0, slow=BRIDGES), "", CONFIRMED),
        (nccl.with_pairs(bridged(25), 20.0), f"{WARNS} {PAIR}", CONTRADICTED),
        (bridged(25), "", NEITHER),
    ],
    "one bad link is named by its two GPUs": (
        within(390.0, {(2, 5): 200.0, (5, 2): 210.0}),
        PAIR,
        "GPU 2 (0000:11:00.0) and GPU 5 (0000:14:00.0): ",
        "200 GB/s",
        "390 GB/s",
    ),
    "a single pair is compared with what its links carry: 2 x 25 GB/s": [
        (nccl.with_pairs(nccl.titan(), 20.0), PAIR),
        (nccl.with_pairs(nccl.titan(), 26.0), ""),
    ],
    "the board is the cause, not seven links": (
        within(390.0, {pair: 190.0 for i in range(8) for pair in ((3, i), (i, 3))}),
        PAIR,
        "GPU 3 (0000:12:00.0) is in every slow pair",
    ),
    "pairs may differ by a few percent": [(within(390.0), ""), (within(390.0, {(0, 1): 382.0}), "")],
    "in a DGX-1, NV1 reaches half of NV2": [
        (nccl.with_pairs(DGX1, 0.0, slow=NV), ""),
        (nccl.with_pairs(DGX1, 0.0, slow=NV | {(0, 3): 24.0}), PAIR, "GPU 0 "),
    ],
}


@pytest.mark.parametrize("row", rows(TABLE))
def test_an_nccl_run_is_judged(row: Row) -> None:
    check(*row)


def test_the_nccl_probe_answers_its_own_gated_findings_only() -> None:
    """A gate without an answer would never open; two probes that answer one gate would contradict."""
    gated = {rule.code for rule in NCCL_RULES if rule.gate is not None}
    assert gated == set(judge_nccl(nccl.h100()).answers)
    assert not gated & set(judge_health(made.titan()).answers)


def test_the_fingerprint_has_all_that_makes_nodes_comparable() -> None:
    """GPU, count, driver branch and NCCL version change it; patches, bandwidth and lost links do not."""
    first = nccl.h100()
    others = [
        nccl.h100(count=7),
        nccl.changed(first, nccl="2.29.1"),
        replace(first, system=replace(first.system, driver="580.65.06")),
        made.every_gpu(first, name="NVIDIA H200"),
    ]
    fingerprints = [judge_nccl(result).fingerprint for result in (first, *others)]
    assert len(set(fingerprints)) == len(fingerprints)
    patch = replace(first, system=replace(first.system, driver="550.90.07"))
    fewer = [made.with_links(first, 0, links=list(range(links))) for links in (17, 12, 1)]
    assert {judge_nccl(same).fingerprint for same in (patch, nccl.h100(100), *fewer)} == {fingerprints[0]}


def test_many_slow_pairs_are_not_reported_as_a_few() -> None:
    """A report names only the slowest, so the message says how many there are."""
    all_slow = finding(judge_nccl(nccl.with_pairs(nccl.h100(28), 20)), "pair-slow")
    assert "Half of the 56 measured directions" in all_slow.message
    assert "Half of" not in finding(judge_nccl(within(396, {(2, 5): 60})), "pair-slow").message
