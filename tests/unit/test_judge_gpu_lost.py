"""A GPU that is missing: lost, or only hidden.  Lost needs proof; everything else is unknown."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Bus, Gpu, Problem, ProblemKind, Repair, Result, Unavailable
from nodegauge_judge import Answer, History, NodeFacts, Sharing, Verdict, judge_health
from support.judge_results import LOST, codes, only

STRANGER = "0000:f0:00.0"


ALL = [made.pci(index) for index in range(8)]


def whole() -> Result:
    """Eight GPUs, all on the bus."""
    return made.with_bus(made.h100())


def past() -> History:
    """The history of a node that was whole."""
    return judge_health(whole()).history


def left(count: int, *, on_bus: int, silent: int = 0, more: tuple[str, ...] = ()) -> Result:
    """NVML lists the first `count` GPUs; the bus has the first `on_bus`, the last `silent` of them mute."""
    addresses = [made.pci(index) for index in range(on_bus)]
    bus = Bus(gpus=[*addresses, *more], silent=addresses[len(addresses) - silent :] if silent else [])
    return replace(made.later(made.h100(count)), bus=bus)


@pytest.mark.parametrize(
    ("result", "index"),
    [(left(7, on_bus=7), "is empty"), (left(7, on_bus=8, silent=1), "is silent (0000:16:00.0)")],
)
def test_a_gpu_that_fell_off_the_bus_is_lost(result: Result, index: str) -> None:
    """NVML lacks it, the last run of this boot saw it, and its place on the bus is empty or silent."""
    judgement = judge_health(result, history=past())
    finding = only(judgement)
    assert (finding.code, judgement.verdict) == ("gpu-lost", Verdict.FAIL)
    assert judgement.answers["gpu-lost"] is Answer.BAD
    assert finding.subject == made.uuid(7)[:12]
    assert f"Its place on the PCI bus {index}" in finding.message
    assert judgement.interconnect.klass is None
    assert "1 GPU" not in judgement.interconnect.message
    assert "fell off the bus" in judgement.interconnect.message


def test_a_lost_gpu_stays_lost_in_later_runs() -> None:
    """A history that followed the loss would heal the node."""
    judgement = judge_health(left(7, on_bus=7), history=past())
    for number in range(3):
        judgement = judge_health(
            made.later(left(7, on_bus=7), seconds=900 * (number + 1)), history=judgement.history
        )
        assert codes(judgement) == ["gpu-lost/fail"]


def test_a_gpu_that_answers_on_the_bus_is_hidden() -> None:
    """A runtime that hides GPUs leaves them on the bus: unknown, with the fixes."""
    judgement = judge_health(left(4, on_bus=8), history=past())
    assert (codes(judgement), judgement.verdict) == (["gpus-not-visible/warn"], Verdict.UNKNOWN)
    assert "the PCI bus has GPUs that NVML does not show: 0000:13:00.0" in only(judgement).message


def test_some_may_be_lost_and_others_hidden() -> None:
    """Of four that are missing two answer on the bus: two are lost for certain, and nobody knows which."""
    judgement = judge_health(left(4, on_bus=6), history=past())
    assert codes(judgement) == ["gpu-lost/fail", "gpus-not-visible/warn"]
    assert judgement.findings[0].subject.startswith("2 of GPU-")
    assert judgement.findings[0].evidence["lost"] == 2


@pytest.mark.parametrize(
    "result",
    [
        made.rebooted(left(7, on_bus=7)),
        replace(left(7, on_bus=7), system=replace(made.h100().system, driver="595.84")),
        replace(left(7, on_bus=7), bus=Bus()),
        replace(left(7, on_bus=7), bus=Bus(gpus=Unavailable("no such folder"))),
        replace(left(7, on_bus=7), bus=Bus(gpus=[])),
        left(7, on_bus=5),
        left(7, on_bus=8),
        left(7, on_bus=7, more=(STRANGER,)),
        replace(left(0, on_bus=0), gpus=[]),
        replace(
            left(7, on_bus=8),
            bus=Bus(gpus=[made.pci(i) for i in range(8)], silent=[made.pci(0), made.pci(7)]),
        ),
    ],
    ids=[
        "reboot",
        "other-driver",
        "bus-not-read",
        "bus-unreadable",
        "bus-empty",
        "bus-in-part",
        "answers",
        "another-answers",
        "all-of-them",
        "silence-is-no-proof",
    ],
)
def test_a_missing_gpu_without_proof_is_hidden(result: Result) -> None:
    """Another boot or driver, a hidden PCI tree, a function that still answers: not visible, and no gate."""
    judgement = judge_health(result, history=past())
    assert codes(judgement) == ["gpus-not-visible/warn"]
    assert (judgement.verdict, judgement.answers) == (Verdict.UNKNOWN, {})


SHARED = NodeFacts(gpu_capacity=32, sharing=Sharing.SHARED)
EIGHT = NodeFacts(gpu_capacity=8, sharing=Sharing.EXCLUSIVE)
WORN = made.with_gpu(
    left(8, on_bus=8), 7, error=Problem(kind="nvml-error", code=999), repair=Repair(action=2)
)
MESH = made.with_bus(made.hgx_a100_4())
MESH_LEFT = replace(made.later(MESH), gpus=MESH.gpus[:3], pairs=made.pairs([[1] * 3] * 3))
MESH_GONE = replace(MESH_LEFT, bus=Bus(gpus=[made.pci(index) for index in range(3)]))
TURNED = made.with_bus(made.later(made.shuffled(made.h100(), [7, 6, 5, 4, 3, 2, 1, 0])))
VIRTUAL = replace(made.ncv4(), bus=Bus(gpus=["0001:00:00.0", "0002:00:00.0"]))
CUT = replace(left(3, on_bus=3), problem=Problem(kind="deadline"))
JUDGED: dict[str, tuple[Result, Result | None, NodeFacts | None, list[str]]] = {
    # what: the run, the run before it, facts of the node, and what is found
    "seven of eight on a first run": (left(7, on_bus=7), None, None, []),
    "a mute function on a first run": (left(7, on_bus=8, silent=1), None, None, ["gpus-not-visible/warn"]),
    "a run that was cut off": (CUT, whole(), None, ["probe-deadline/warn"]),
    "the device plugin did not notice yet": (left(7, on_bus=7), whole(), EIGHT, ["gpu-lost/fail"]),
    "an unreadable GPU that asks for recovery": (WORN, whole(), None, ["gpu-lost/fail"]),
    "the same on a first run": (WORN, None, None, ["recovery-action/fail", "gpu-unreadable/warn"]),
    "a virtual machine that shows another bus": (VIRTUAL, None, None, []),
    "sharing multiplies the capacity": (whole(), None, SHARED, []),
    "so does MIG": (made.with_gpu(whole(), 0, mig=1), None, SHARED, []),
    "NVML's order is not stable": (TURNED, whole(), None, []),
    "links of its peers are active half a second after the fall": (MESH_GONE, MESH, None, ["gpu-lost/fail"]),
    "the same while the bus was not read": (MESH_LEFT, MESH, None, ["gpus-not-visible/warn"]),
}


@pytest.mark.parametrize("name", JUDGED)
def test_a_gpu_is_lost_only_by_proof(name: str) -> None:
    """By what an earlier run of this boot saw and what the bus shows; not by capacity or half a run."""
    result, before, facts, expected = JUDGED[name]
    history = judge_health(before).history if before else None
    found_codes = codes(judge_health(result, history=history, node=facts))
    assert [code for code in found_codes if result is not WORN or code in expected] == expected


def test_an_error_and_a_missing_pci_function_are_one_lost_gpu() -> None:
    """NVML says 15 for the GPU whose function is gone: one finding, one GPU."""
    for gpu in (Gpu(index=7, error=LOST), replace(made.h100().gpus[7], error=LOST, links=[])):
        gone = left(8, on_bus=7)
        result = replace(gone, gpus=[*gone.gpus[:7], gpu])
        finding = only(judge_health(result, history=past()))
        assert (finding.code, finding.subject[:5]) == ("gpu-lost", "GPU 7")


def test_a_gpu_that_needs_a_reset_is_not_lost() -> None:
    """16 alone, whatever the bus says."""
    error = Problem(kind=ProblemKind.RESET_REQUIRED, code=16)
    result = made.with_gpu(left(8, on_bus=8, silent=1), 7, error=error)
    judgement = judge_health(result, history=past())
    assert codes(judgement) == ["reset-required/fail"]
    assert judgement.answers["reset-required"] is Answer.BAD
    assert judgement.answers["gpu-lost"] is Answer.UNSURE


def test_gpus_on_the_bus_that_nvml_does_not_show_leave_the_node_unjudged() -> None:
    """No past and no capacity needed; each error without an address may explain one of them."""
    judgement = judge_health(left(2, on_bus=8))
    assert (only(judgement).code, judgement.verdict) == ("gpus-not-visible", Verdict.UNKNOWN)
    assert "0000:11:00.0, 0000:12:00.0, 0000:13:00.0, 0000:14:00.0 and 2 more" in only(judgement).message
    nameless = replace(left(7, on_bus=8), gpus=[*made.h100(7).gpus, Gpu(index=7, error=LOST)])
    assert codes(judge_health(nameless)) == ["gpu-lost/fail"]


def test_gpu_faults_are_good_only_on_a_complete_node() -> None:
    """Every GPU must have given its handle."""
    rows = ("gpu-lost", "reset-required", "insufficient-power", "gpu-fault")
    assert {judge_health(whole()).answers[row] for row in rows} == {Answer.GOOD}
    hot = made.with_gpu(left(7, on_bus=7), 0, error=Problem(kind=ProblemKind.IRQ_ISSUE))
    answers = judge_health(hot, history=past()).answers
    assert (answers["gpu-fault"], answers["insufficient-power"]) == (Answer.BAD, Answer.UNSURE)


NO_DRIVER = Unavailable("no driver is bound")


def bus(drivers: Sequence[str | Unavailable], *, silent: Sequence[int] = ()) -> Bus:
    """One function on the bus for each of these drivers."""
    addresses = [made.pci(index) for index in range(len(drivers))]
    return Bus(gpus=addresses, drivers=list(drivers), silent=[addresses[index] for index in silent])


def listed(count: int, drivers: Sequence[str | Unavailable], *, silent: Sequence[int] = ()) -> Result:
    """NVML lists the first `count` GPUs; the bus has a function for each of these drivers."""
    return replace(made.later(made.h100(count)), bus=bus(drivers, silent=silent))


OURS = ["nvidia"] * 8


@pytest.mark.parametrize(
    ("drivers", "named"),
    [
        (["nvidia", "nvidia", "vfio-pci"], "(vfio-pci)"),
        (["nvidia", "nvidia", "nouveau"], "(nouveau)"),
        (["nvidia", "nvidia", "nvidia, excluded"], "(nvidia, excluded)"),
        (["nvidia", "nvidia", "pci-stub", "nvgrace_gpu_vfio_pci"], "(nvgrace_gpu_vfio_pci)"),
        (["nvidia", "nvidia", *["xen-pciback"] * 6], " and 2 more."),
    ],
)
def test_gpus_of_another_driver_are_not_ours(drivers: list[str], named: str) -> None:
    """Passed through, driving a display, or taken out by NVreg_ExcludedGpus: run after run
    the node is whole without them, and an information names them."""
    judgement = judge_health(listed(2, drivers))
    for _ in range(3):
        assert (codes(judgement), judgement.verdict) == (["foreign-gpus/info"], Verdict.PASS)
        assert named in only(judgement).message
        assert judgement.interconnect.klass is not None
        judgement = judge_health(listed(2, drivers), history=History.decode(judgement.history.encode()))


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (listed(2, ["nvidia", "nvidia", NO_DRIVER]), ["gpus-not-visible/warn"]),
        (listed(2, ["nvidia", "nvidia", "nvidia"]), ["gpus-not-visible/warn"]),
        (listed(2, ["nvidia", "nvidia", Unavailable("sysfs: Permission denied")]), ["gpus-not-visible/warn"]),
        (listed(2, ["nvidia", "nvidia", NO_DRIVER], silent=[2]), ["gpus-not-visible/warn"]),
        (listed(2, ["nvidia", "vfio-pci"]), []),
        (
            listed(2, ["vfio-pci", NO_DRIVER, NO_DRIVER, "nouveau"]),
            ["gpus-not-visible/warn", "foreign-gpus/info"],
        ),
        (
            replace(listed(2, OURS[:2]), bus=Bus(gpus=[made.pci(index) for index in range(3)])),
            ["gpus-not-visible/warn"],
        ),
    ],
    ids=["unbound", "hidden", "unreadable", "silent", "listed-by-nvml", "mixed", "older-probe"],
)
def test_a_gpu_without_another_driver_stays_suspicious(result: Result, expected: list[str]) -> None:
    """It fell off, its driver's probe failed, or the runtime hides it; what NVML lists is never foreign."""
    assert codes(judge_health(result)) == expected


def test_a_gpu_given_to_another_driver_is_not_lost() -> None:
    """It explains one missing GPU, once: the next that vanishes is lost."""
    before = judge_health(listed(8, OURS)).history
    given = judge_health(listed(7, [*OURS[:7], "vfio-pci"]), history=before)
    assert codes(given) == ["foreign-gpus/info"]
    gone = replace(
        made.later(made.h100(6), seconds=1800),
        bus=Bus(gpus=[*ALL[:6], ALL[7]], drivers=[*OURS[:6], "vfio-pci"]),
    )
    assert codes(judge_health(gone, history=given.history)) == ["gpu-lost/fail", "foreign-gpus/info"]
    both = judge_health(gone, history=before)
    assert (codes(both)[0], both.findings[0].evidence["lost"]) == ("gpu-lost/fail", 1)


def test_a_display_card_explains_no_lost_gpu() -> None:
    """It was there before."""
    whole = replace(made.h100(), bus=bus([*OURS, "nouveau"]))
    gone = replace(listed(7, OURS), bus=Bus(gpus=[*ALL[:7], made.pci(8)], drivers=[*OURS[:7], "nouveau"]))
    unread = replace(whole, bus=Bus(gpus=Unavailable("no PCI tree in sysfs")))
    history = judge_health(made.later(unread), history=judge_health(whole).history).history
    for past in (judge_health(whole).history, history):
        assert codes(judge_health(gone, history=past)) == ["gpu-lost/fail", "foreign-gpus/info"]


def expecting(count: int) -> NodeFacts:
    """A policy that intends this many GPUs."""
    return NodeFacts(expected_gpus=count, gpu_capacity=8, sharing=Sharing.EXCLUSIVE)


@pytest.mark.parametrize(
    ("result", "expected_gpus"),
    [
        (left(7, on_bus=7), 7),
        (left(4, on_bus=8), 4),
        (listed(6, [*OURS[:6], NO_DRIVER, "nvidia"]), 6),
        (listed(6, [*OURS[:6], NO_DRIVER, NO_DRIVER], silent=[7]), 5),
        (made.rebooted(left(7, on_bus=7)), 7),
    ],
    ids=["drained", "hidden", "unbound", "silent", "rebooted"],
)
def test_as_many_gpus_as_the_policy_intends_are_all(result: Result, expected_gpus: int) -> None:
    """Whatever capacity, bus and earlier runs say; and the next run starts from there."""
    judgement = judge_health(result, history=past(), node=expecting(expected_gpus))
    assert (codes(judgement), judgement.answers["gpu-lost"]) == ([], Answer.GOOD)
    assert len(judgement.history.gpus) == len(result.gpus)
    assert judgement.interconnect.klass is not None


@pytest.mark.parametrize(
    ("result", "lost", "message"),
    [
        (left(7, on_bus=7), 1, "expects 8 GPUs, the driver lists 7."),
        (
            listed(6, [*OURS[:6], "vfio-pci", "vfio-pci"]),
            2,
            "(not for this node's jobs: 0000:15:00.0 (vfio-pci), ",
        ),
        (listed(7, [*OURS[:7], NO_DRIVER], silent=[7]), 1, "(silent on the PCI bus: 0000:16:00.0)"),
        (replace(made.h100(3), bus=Bus()), 5, "the driver lists 3."),
        (replace(left(0, on_bus=0), gpus=[]), 8, "the driver lists 0."),
    ],
    ids=["first-run", "foreign", "silent", "no-bus", "none"],
)
def test_fewer_gpus_than_the_policy_intends_are_lost(result: Result, lost: int, message: str) -> None:
    """Even on a first run; the message says what explains it."""
    judgement = judge_health(result, node=NodeFacts(expected_gpus=8))
    assert (codes(judgement)[0], judgement.verdict) == ("gpu-lost/fail", Verdict.FAIL)
    assert message in judgement.findings[0].message
    assert judgement.findings[0].evidence["lost"] == lost
    assert judgement.answers["gpu-lost"] is Answer.BAD
    assert judgement.interconnect.klass is None


def test_a_run_that_was_cut_off_or_denied_is_no_loss_of_an_intended_gpu() -> None:
    """Missing data proves nothing, whatever the policy intends; a GPU with an error has its own finding."""
    facts = NodeFacts(expected_gpus=8)
    cut = replace(left(3, on_bus=3), problem=Problem(kind="deadline"))
    assert codes(judge_health(cut, node=facts)) == ["probe-deadline/warn"]
    for kind, code in (
        (ProblemKind.NO_PERMISSION, "gpus-not-visible/warn"),
        (ProblemKind.CALL_HUNG, "call-hung/warn"),
    ):
        denied = made.with_gpu(whole(), 3, error=Problem(kind=kind))
        assert codes(judge_health(denied, node=facts)) == [code]
