"""What is wrong with a node, as event, condition and report say it."""

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Gpu, Problem, Result, Xids
from nodegauge_judge import Finding, GpuIdentity, Severity
from nodegauge_judge.identity import complete
from nodegauge_operator.api.fault import Fault
from nodegauge_operator.api.report import ProbeStatus
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core.events import MAX_NOTE_BYTES
from nodegauge_operator.core.faults import faults, sentence, supplies
from nodegauge_operator.core.wording import before
from support.judging import MARK, listening
from support.objects import INTERVAL, NOW, AReport, make_node, make_policy, make_report, read

NODE = make_node()
LOST_GPU = Gpu(index=3, error=Problem(kind="gpu-lost"))
NODE_8 = replace(made.h100(), gpus=[replace(gpu, serial=f"165{gpu.index:04d}") for gpu in made.h100().gpus])
UNNAMED = replace(NODE_8, gpus=[gpu if gpu.index != 3 else LOST_GPU for gpu in NODE_8.gpus])
"""NVML has only the index of a GPU that is lost."""


def after(*results: Result, **known: object) -> AReport:
    report = make_report()
    for n, result in enumerate(results):
        end = read(made.later(result, seconds=900 * n))
        report = report.after(end, node=NODE, at=NOW + n * INTERVAL, **known)
    return report


def event(report: AReport) -> str:
    assert report.status.change is not None
    return report.status.change.message


@pytest.mark.parametrize("runs", [1, 2])
def test_a_lost_gpu_keeps_its_identity(runs: int) -> None:
    report = after(NODE_8, NODE_8, *[UNNAMED] * runs)
    (fault,) = faults(report.status, policy=make_policy(), node="node-1")
    lost = NODE_8.gpus[3]
    assert fault.gpus == [GpuIdentity(index=3, uuid=lost.uuid, serial=lost.serial, pci=lost.pci)]
    text = event(report)
    assert all(part in text for part in ("GPU 3", lost.pci, lost.serial, fault.since, fault.next_step))
    assert f"serial {lost.serial}" in report.status.desired.message
    assert fault.next_step in report.status.desired.message


def test_an_index_that_another_gpu_has_now_names_nobody() -> None:
    known = [GpuIdentity(index=0, uuid="GPU-b", pci="b"), GpuIdentity(index=1, uuid="GPU-b", pci="b")]
    assert complete(GpuIdentity(index=1), known) == GpuIdentity(index=1)


@pytest.mark.parametrize("codes", [["hot"], ["hot", "ecc", "p2p-refused"], ["hot", "ecc", "xid", "rail"]])
def test_an_event_has_a_next_step_for_each_taint(codes: list[str]) -> None:
    """Each taint has its evidence, since when, and its step, and the whole fits into a note."""
    machine = made.with_gpu(NODE_8, 0, vbios=f"{MARK}{' '.join(f'{code}=b' for code in codes)};loaded;fault")
    with listening():
        reports = [after(*[machine] * runs) for runs in (1, 2, 3)]
    texts = [event(report) for report in reports]
    tainted = [fault for fault in faults(reports[-1].status, policy=make_policy()) if fault.tainted]
    assert all(len(text.encode()) <= MAX_NOTE_BYTES and text.count("`") % 2 == 0 for text in texts)
    assert len(tainted) == len(reports[-1].status.desired.taints)
    for fault in tainted:
        assert any(f"Since {fault.since}." in text and fault.next_step in text for text in texts)


def test_a_warning_has_its_number_and_its_next_step() -> None:
    report = after(NODE_8, made.with_gpu(NODE_8, 2, xids=Xids(seen=[94])))
    (fault, *_) = faults(report.status, policy=make_policy())
    assert all(part in event(report) for part in ("Xid 94", NODE_8.gpus[2].serial, fault.next_step, "Since "))


def test_the_cause_shows_in_mode_observe_too() -> None:
    bad = made.with_gpu(NODE_8, 2, compute_mode=2)
    report = after(NODE_8, bad, bad, policy=make_policy().observing())
    assert (report.status.cause, report.status.desired.taints) == ("gpu-fault", [])
    assert after(NODE_8, NODE_8).status.cause == ""


@pytest.mark.parametrize("most", [1, 80, 300, 1024])
def test_what_was_measured_is_cut_before_the_next_step(most: int) -> None:
    fault = Fault(
        code="x", title="x", severity="fail", measured="m" * 900, next_step="do `this`.", since="now"
    )
    text = sentence(fault, most)
    assert len(text.encode()) <= most
    assert ("Next: do `this`." in text) == (most >= 300) or most == 80
    assert text.count("`") % 2 == 0


@pytest.mark.parametrize(
    ("subject", "gpus", "scope"),
    [
        ("GPU 3 (0000:43:00.0)", [3], "1 of 8 GPUs"),
        ("GPU 3 (0000:43:00.0) and 7 more", [3], "all 8 GPUs"),
        ("GPU 3 (0000:43:00.0), fan 0 and 1 more", [3], ""),
        (NODE_8.gpus[3].uuid, [3], "1 of 8 GPUs"),
        ("GPU 0 - GPU 1 and 27 more", [0, 1], "all 28 pairs of GPUs"),
        ("GPU 0 - GPU 1", [0, 1], "1 of 28 pairs of GPUs"),
        ("PSU 1", [], ""),
        ("PSU 1 and 1 more", [], ""),
    ],
)
def test_a_fault_says_how_much_of_the_node_has_it(subject: str, gpus: list[int], scope: str) -> None:
    named = [GpuIdentity(index=index, uuid=NODE_8.gpus[index].uuid) for index in gpus]
    finding = Finding(code="hot", severity=Severity.FAIL, subject=subject, message="97.", gpus=named)
    status = after(NODE_8).status
    probe = replace(status.probe["health"], findings=[finding])
    (fault,) = faults(replace(status, probes=[probe]), policy=make_policy())
    assert fault.scope == scope
    assert fault.where.startswith(f"{scope}, such as ") == (fault.locations > 1 and bool(scope))
    assert fault.where.endswith(" and 1 more") == subject.endswith(" and 1 more")


def test_a_power_brake_alone_says_what_the_label_psu_stands_for() -> None:
    """And a reading that is older than the fault is told as such."""
    braking = made.with_gpu(NODE_8, 0, vbios=f"{MARK}power-brake=b;loaded;fault")
    with listening():
        status = replace(after(NODE_8, braking, braking).status, psu="fault")
    known = faults(status, policy=make_policy())
    assert "power brake" in supplies(status, known)
    for code in ("rail", "supply-failed"):
        assert (
            supplies(status, [*known, Fault(code=code)]) == supplies(replace(status, psu="ok"), known) == ""
        )
    older, same, never, now = (
        ProbeStatus(name="nccl", read_at=at) for at in (stamp(NOW - 1), known[0].since, "", stamp(NOW))
    )
    assert before(older, known) == f"read at {stamp(NOW - 1)}, before the fault"
    assert before(same, known) == before(never, known) == before(now, []) == ""
