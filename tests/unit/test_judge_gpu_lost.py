"""A GPU that is missing: lost, or only hidden.  Lost needs proof; everything else is unknown."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Bus, Gpu, Problem, ProblemKind, Repair, Result, Unavailable
from nodegauge_judge import Answer, NodeFacts, Sharing, Verdict
from support.judge_results import LOST, Row, Table, check, judge, rows

BAD, GOOD, UNSURE = Answer.BAD, Answer.GOOD, Answer.UNSURE
FAIL, UNKNOWN = Verdict.FAIL, Verdict.UNKNOWN
ALL = [made.pci(index) for index in range(8)]
WHOLE = made.with_bus(made.h100())
"""Eight GPUs, all on the bus."""
NO_DRIVER = Unavailable("no driver is bound")
OURS = ["nvidia"] * 8


def left(count: int, *, on_bus: int, silent: int = 0, more: tuple[str, ...] = ()) -> Result:
    """NVML lists the first `count` GPUs; the bus has the first `on_bus`, the last `silent` of them mute."""
    addresses = [made.pci(index) for index in range(on_bus)]
    bus = Bus(gpus=[*addresses, *more], silent=addresses[len(addresses) - silent :] if silent else [])
    return replace(made.later(made.h100(count)), bus=bus)


def listed(count: int, drivers: Sequence[str | Unavailable], *, silent: Sequence[int] = ()) -> Result:
    """NVML lists the first `count` GPUs; the bus has a function for each of these drivers."""
    addresses = [made.pci(index) for index in range(len(drivers))]
    bus = Bus(gpus=addresses, drivers=list(drivers), silent=[addresses[index] for index in silent])
    return replace(made.later(made.h100(count)), bus=bus)


def facts(*, expected: int = 0) -> NodeFacts:
    return NodeFacts(gpu_capacity=8, sharing=Sharing.EXCLUSIVE, expected_gpus=expected or None)


def troubled(result: Result, kind: str, **more: Any) -> Result:
    return made.with_gpu(result, len(result.gpus) - 1, error=Problem(kind=kind), **more)


def switches(*links: int, name: str = "NVIDIA H100 80GB HBM3") -> Result:
    """Eight GPUs with so many links to each NVSwitch."""
    ends = [number for number, count in enumerate(links) for _ in range(count)]
    groups = [
        replace(made.to_switch(1, mbps=26_562)[0], links=[link], remote=f"0000:c{end}:00.0")
        for link, end in enumerate(ends)
    ]
    return made.every_gpu(made.switched(8, name=name, links=18, mbps=26_562), links=groups)


def board(*ids: int, name: str = "NVIDIA H200", bus: bool = True, each: int = 0, **more: Any) -> Result:
    """GPUs with these module ids on bare metal, behind switches or with `each` links between them."""
    known, size = {"virtualization": 0} | more, len(ids)
    nv = [[each * (i != j) for j in range(size)] for i in range(size)]
    result = made.mesh(nv, name=name, mbps=25_000, **known)
    if not each:
        result = made.switched(size, name=name, links=18, mbps=26_562, **known)
    gpus = [replace(gpu, module_id=module) for gpu, module in zip(result.gpus, ids, strict=True)]
    return replace(result, gpus=gpus, bus=made.with_bus(result).bus if bus else Bus())


SEVEN = left(7, on_bus=7)
HIDDEN, GONE, FOREIGN = "gpus-not-visible/warn", "gpu-lost/fail", "foreign-gpus/info"
NO_CLASS = {"klass": None}
AGAIN = [made.later(SEVEN, seconds=900 * number) for number in range(3)]
WORN = troubled(left(8, on_bus=8), "nvml-error", repair=Repair(action=2))
RESET = made.with_gpu(left(8, on_bus=8, silent=1), 7, error=Problem(kind=ProblemKind.RESET_REQUIRED, code=16))
MESH = made.with_bus(made.hgx_a100_4())
MESH_GONE = replace(
    made.later(MESH), gpus=MESH.gpus[:3], pairs=made.pairs([[1] * 3] * 3), bus=Bus(gpus=ALL[:3])
)
TURNED = made.with_bus(made.later(made.shuffled(made.h100(), [7, 6, 5, 4, 3, 2, 1, 0])))
VIRTUAL = replace(made.ncv4(), bus=Bus(gpus=["0001:00:00.0", "0002:00:00.0"]))
CUT = replace(left(3, on_bus=3), problem=Problem(kind="deadline"))
NAMELESS = replace(left(7, on_bus=8), gpus=[*made.h100(7).gpus, Gpu(index=7, error=LOST)])
EMPTY = replace(left(0, on_bus=0), gpus=[])
GIVEN = listed(7, [*OURS[:7], "vfio-pci"])
"""A function was given to another driver."""
EXCLUDED = listed(6, [*OURS[:6], "vfio-pci", "vfio-pci"])
MUTE = listed(7, [*OURS[:7], NO_DRIVER], silent=[7])
TWO_GONE = replace(
    made.later(made.h100(6), seconds=1800), bus=Bus(gpus=[*ALL[:6], ALL[7]], drivers=[*OURS[:6], "vfio-pci"])
)
DISPLAY = listed(8, [*OURS, "nouveau"])
DISPLAY_LEFT = replace(SEVEN, bus=Bus(gpus=[*ALL[:7], made.pci(8)], drivers=[*OURS[:7], "nouveau"]))
UNREADABLE = made.later(replace(DISPLAY, bus=Bus(gpus=Unavailable("no PCI tree in sysfs"))))
LOSS = (GONE, FAIL, NO_CLASS, {"gpu-lost": BAD}, "fell off the bus")
HOLE, A100, GB200, B300 = (
    "board-incomplete/warn",
    "NVIDIA A100-SXM4-40GB",
    "NVIDIA GB200",
    "NVIDIA B300 SXM6 AC",
)
DOWN = "nvlink-down/warn"
SOME, HALF, EVERY = (1, 2, 3, 5, 6, 7, 8), (1, 2, 3, 4), (1, 2, 3, 4, 5, 6, 7, 8)
TABLE: Table = {
    "a module that was never seen is named, by the board of its model": [
        ((board(*SOME),) * 3, HOLE, "module 4: ", {"lacks": 1, "board": 8}),
        (board(*SOME, name="NVIDIA H100 80GB HBM3"), HOLE, "module 4: "),
        (board(*EVERY[1:], name=B300), HOLE, "module 1: "),
        (board(8, 7, 6, 4, 2, 1, name="NVIDIA H100"), HOLE, "modules 3, 5: "),
        (board(1, 2, 4, name=GB200), HOLE, "module 3: ", {"board": 4}),
        (board(4, 1, 2, name=A100, each=4), HOLE, "module 3: ", {"board": 4}),
        (board(*HALF), HOLE, "modules 5, 6, 7, 8: "),
        (board(*SOME, bus=False, virtualization=NO_DRIVER), HOLE, "module 4: "),
        *((board(*[0] * 7, virtualization=mode), HOLE, "node: 7 of the 8 GPUs") for mode in (0, 1)),
        (board(*SOME, virtualization=1), HOLE, "module 4: "),
    ],
    "an NVSwitch to which no link leads is named, where every GPU lacks links": [
        (switches(0, 5, 5, 4), f"{HOLE} {DOWN}", "3 of the 4 NVSwitches", {"lacks": 1, "board": 4}),
        (switches(2, 2, 2, 2, 2, name=A100), f"{HOLE} {DOWN}", "5 of the 6 NVSwitches"),
        *((switches(*links), DOWN) for links in ((3, 5, 5, 4), (14,))),
        (switches(9, name="NVIDIA B200"), DOWN),
        *((switches(*links), "") for links in ((4, 5, 5, 4), (9, 9), (18,))),
    ],
    "whole boards, and parts of one in a virtual machine, in a container and by intent": [
        *((board(*EVERY, name=name), "") for name in ("NVIDIA B200", "NVIDIA H20", B300)),
        *((board(*ids, name=GB200), "") for ids in ((1, 2), HALF)),
        *((board(*ids, name=A100, each=4), "") for ids in (HALF, EVERY[4:])),
        *((board(*ids, virtualization=1), "") for ids in (HALF, (3, 4))),
        *((board(*HALF, bus=False), ""), (board(3), "")),
        (judge(board(*SOME), node=NodeFacts(expected_gpus=7)), ""),
    ],
    "GPUs that are hidden or given away are not missing on their board": [
        (replace(board(*HALF), bus=Bus(gpus=ALL)), HIDDEN, UNKNOWN),
        (judge(board(*SOME), node=facts()), HIDDEN, UNKNOWN),
        (replace(board(*SOME), gpus=[Gpu(index=0, error=LOST), *board(*SOME).gpus], bus=Bus()), GONE),
        (replace(board(*HALF), bus=listed(4, [*OURS[:4], *["vfio-pci"] * 4]).bus), FOREIGN),
    ],
    "NVML lacks it, the last run of this boot saw it, and its place on the bus is empty or silent": [
        ((WHOLE, SEVEN), *LOSS, "GPU-00000007: ", "Its place on the PCI bus is empty"),
        ((WHOLE, left(7, on_bus=8, silent=1)), *LOSS, "Its place on the PCI bus is silent (0000:16:00.0)"),
    ],
    "a lost GPU stays lost in later runs": [((WHOLE, *AGAIN), GONE)],
    "a GPU that answers on the bus is hidden": (
        (WHOLE, left(4, on_bus=8)),
        HIDDEN,
        UNKNOWN,
        "the PCI bus has GPUs that NVML does not show: 0000:13:00.0",
    ),
    "of four that are missing two answer on the bus": [
        ((WHOLE, left(4, on_bus=6)), f"{GONE} {HIDDEN}", "2 of GPU-", {"lost": 2})
    ],
    "in another boot, or with another driver, nothing is proven": [
        ((WHOLE, made.rebooted(SEVEN)), HIDDEN, UNKNOWN),
        ((WHOLE, replace(SEVEN, system=replace(made.h100().system, driver="595.84"))), HIDDEN, UNKNOWN),
    ],
    "a bus that was not read, or in part, proves nothing": [
        ((WHOLE, replace(SEVEN, bus=bus)), HIDDEN, UNKNOWN)
        for bus in (Bus(), Bus(gpus=Unavailable("no such folder")), Bus(gpus=[]), left(7, on_bus=5).bus)
    ],
    "another function answers": [((WHOLE, left(7, on_bus=7, more=("0000:f0:00.0",))), HIDDEN, UNKNOWN)],
    "all of them are missing": [((WHOLE, EMPTY), HIDDEN, UNKNOWN)],
    "silence of a GPU that NVML lists is no proof": [
        ((WHOLE, replace(SEVEN, bus=Bus(gpus=ALL, silent=[ALL[0], ALL[7]]))), HIDDEN, UNKNOWN)
    ],
    "a first run proves nothing": [(SEVEN, ""), (left(7, on_bus=8, silent=1), HIDDEN, UNKNOWN)],
    "a run that was cut off": [((WHOLE, CUT), "probe-deadline/warn", UNKNOWN)],
    "the device plugin did not notice": [(judge(SEVEN, history=judge(WHOLE).history, node=facts()), GONE)],
    "an unreadable GPU that asks for recovery": [
        ((WHOLE, WORN), f"{GONE} recovery-action/fail"),
        (WORN, "recovery-action/fail gpu-unreadable/warn"),
    ],
    "a virtual machine shows another bus": [(VIRTUAL, "")],
    "NVML's order is not stable": [((WHOLE, TURNED), "")],
    "links of its peers are active half a second after the fall": [((MESH, MESH_GONE), GONE)],
    "an error 15 and a missing PCI function are one lost GPU": [
        ((WHOLE, replace(left(8, on_bus=7), gpus=[*made.h100(7).gpus, gpu])), GONE, "GPU 7")
        for gpu in (Gpu(index=7, error=LOST), replace(made.h100().gpus[7], error=LOST, links=[]))
    ],
    "a GPU that needs a reset is not lost, whatever the bus says": [
        ((WHOLE, RESET), "reset-required/fail", {"reset-required": BAD, "gpu-lost": UNSURE})
    ],
    "GPUs on the bus that NVML does not show leave the node unjudged": (
        left(2, on_bus=8),
        HIDDEN,
        UNKNOWN,
        "0000:11:00.0, 0000:12:00.0, 0000:13:00.0, 0000:14:00.0 and 2 more",
    ),
    "an error without an address may explain one of them": [(NAMELESS, GONE)],
    "faults of GPUs are good on a complete node": [
        (WHOLE, "", dict.fromkeys(("gpu-lost", "reset-required", "insufficient-power", "gpu-fault"), GOOD))
    ],
    "and on no other": (
        (WHOLE, made.with_gpu(SEVEN, 0, error=Problem(kind=ProblemKind.IRQ_ISSUE))),
        f"{GONE} gpu-fault/fail",
        {"gpu-fault": BAD, "insufficient-power": UNSURE},
    ),
    "GPUs of another driver are not ours, run after run": [
        ((listed(2, drivers),) * runs, FOREIGN, Verdict.PASS, named, {"klass": "nvlink"})
        for runs in (1, 3)
        for drivers, named in (
            (["nvidia", "nvidia", "vfio-pci"], "(vfio-pci)"),
            (["nvidia", "nvidia", "nvidia, excluded"], "(nvidia, excluded)"),
            (["nvidia", "nvidia", *["xen-pciback"] * 6], " and 2 more."),
        )
    ],
    "a GPU without another driver stays suspicious": [
        (listed(2, ["nvidia", "nvidia", NO_DRIVER]), HIDDEN, UNKNOWN),
        (listed(2, ["nvidia", "nvidia", "nvidia"]), HIDDEN, UNKNOWN),
        (listed(2, ["nvidia", "nvidia", Unavailable("sysfs: Permission denied")]), HIDDEN, UNKNOWN),
        (listed(2, ["nvidia", "nvidia", NO_DRIVER], silent=[2]), HIDDEN, UNKNOWN),
        (listed(2, ["vfio-pci", NO_DRIVER, NO_DRIVER, "nouveau"]), f"{HIDDEN} {FOREIGN}", UNKNOWN),
        (replace(listed(2, OURS[:2]), bus=Bus(gpus=ALL[:3])), HIDDEN, UNKNOWN),
    ],
    "what NVML lists is never foreign": [(listed(2, ["nvidia", "vfio-pci"]), "")],
    "a GPU given to another driver explains one missing GPU, once": [
        ((listed(8, OURS), GIVEN), FOREIGN),
        ((listed(8, OURS), GIVEN, TWO_GONE), f"{GONE} {FOREIGN}"),
        ((listed(8, OURS), TWO_GONE), f"{GONE} {FOREIGN}", {"lost": 1}),
    ],
    "a display card that was there before explains no lost GPU": [
        ((DISPLAY, DISPLAY_LEFT), f"{GONE} {FOREIGN}"),
        ((DISPLAY, UNREADABLE, DISPLAY_LEFT), f"{GONE} {FOREIGN}"),
    ],
    "a run that was cut off or denied is no loss of an intended GPU": [
        (judge(result, node=NodeFacts(expected_gpus=8)), expected, UNKNOWN)
        for result, expected in (
            (CUT, "probe-deadline/warn"),
            (troubled(WHOLE, ProblemKind.NO_PERMISSION), HIDDEN),
            (troubled(WHOLE, ProblemKind.CALL_HUNG), "call-hung/warn"),
        )
    ],
    "fewer GPUs than the policy intends are lost": [
        (judge(result, node=facts(expected=8)), expected, text, NO_CLASS, {"lost": n, "gpu-lost": BAD})
        for result, expected, n, text in (
            (SEVEN, GONE, 1, "expects 8 GPUs, the driver lists 7."),
            (EXCLUDED, f"{GONE} {FOREIGN}", 2, "(not for this node's jobs: 0000:15:00.0 (vfio-pci), "),
            (MUTE, GONE, 1, "(silent on the PCI bus: 0000:16:00.0)"),
            (replace(made.h100(3), bus=Bus()), GONE, 5, "the driver lists 3."),
            (EMPTY, GONE, 8, "the driver lists 0."),
        )
    ],
}


@pytest.mark.parametrize("row", rows(TABLE))
def test_a_gpu_is_lost_only_by_proof(row: Row) -> None:
    judgement = check(*row)
    assert judgement.verdict is not UNKNOWN or not judgement.answers


def test_a_run_that_was_cut_off_finds_what_is_bad_and_calls_nothing_good() -> None:
    cut = replace(RESET, problem=Problem(kind="deadline"))
    assert {BAD, GOOD} < {*judge(RESET, node=facts()).answers.values()}
    answers = {*judge(cut, node=facts()).answers.values()}
    assert BAD in answers
    assert GOOD not in answers


INTENDED = {
    "drained": (SEVEN, 7),
    "hidden": (left(4, on_bus=8), 4),
    "unbound": (listed(6, [*OURS[:6], NO_DRIVER, "nvidia"]), 6),
    "silent": (listed(6, [*OURS[:6], NO_DRIVER, NO_DRIVER], silent=[7]), 5),
    "rebooted": (made.rebooted(SEVEN), 7),
}


@pytest.mark.parametrize(("result", "intended"), INTENDED.values(), ids=INTENDED)
def test_as_many_gpus_as_the_policy_intends_are_all(result: Result, intended: int) -> None:
    judgement = judge(result, history=judge(WHOLE).history, node=facts(expected=intended))
    check(judgement, "", {"gpu-lost": GOOD})
    assert len(judgement.history.gpus) == len(result.gpus)
    assert judgement.interconnect.klass is not None
