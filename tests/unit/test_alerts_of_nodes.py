"""What alerts say of one node, and when they say nothing."""

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_operator.api.override import Override
from nodegauge_operator.api.report import GateState, GateStatus, ReportStatus, Unreadable
from nodegauge_operator.core.alerts import Alert, alerts
from nodegauge_operator.core.model import NodeView
from support.objects import LOST, NOW, STALE, APolicy, make_node, make_policy, make_report, read

NODE, POLICY = make_node("gpu-7"), make_policy()
WELL = make_report(NODE).after(read(made.h100()), node=NODE)
GPU = WELL.status.gpus.items[3]
SINCE = "2027-01-15T08:00:00Z"
ECC = GateStatus(
    code="ecc",
    state=GateState.HELD_BACK,
    fault_at=SINCE,
    subject=f"GPU 3 ({GPU.pci})",
    message="4 uncorrectable errors. Next: drain NODE, and reset GPU 3.",
)
ALERT = Alert(
    taint="unhealthy",
    cause="memory",
    code="ecc",
    gpu="3",
    serial=GPU.serial,
    pci=GPU.pci,
    measured="4 uncorrectable errors.",
    since=SINCE,
    next_step="drain gpu-7, and reset GPU 3.",
)


def having(*gates: GateStatus, of: ReportStatus = WELL.status) -> ReportStatus:
    return replace(of, gates=list(gates))


def test_a_fault_is_told_whole() -> None:
    for gate, policy, state in (
        (ECC, POLICY, "held back: the limit"),
        (replace(ECC, state=GateState.GATED), POLICY, "set"),
        (ECC, POLICY.observing(), "held back: the limit"),
        (replace(ECC, state=GateState.GATED), POLICY.observing(), "not set, the policy is in mode Observe"),
    ):
        [alert] = alerts(having(gate), NODE, policy)
        assert alert.taint_state.startswith(state)
        assert replace(alert, taint_state="") == ALERT
    pair = replace(ECC, code="nvlink-errors", subject=f"GPU 1 ({made.pci(1)}) and GPU 3 ({GPU.pci})")
    [alert] = alerts(having(pair), NODE, POLICY)
    [many] = alerts(having(replace(pair, subject=f"{pair.subject} and 27 more")), NODE, POLICY)
    [supply] = alerts(having(replace(ECC, code="rail", subject="PSU 1, 12 V")), NODE, POLICY)
    assert supply.measured == f"PSU 1, 12 V: {alert.measured}"
    assert many.measured == f"On all 28 pairs of GPUs, such as this: {alert.measured}"
    assert (alert.gpu, alert.serial, alert.pci) == ("1,3", GPU.serial, f"{made.pci(1)},{GPU.pci}")


@pytest.mark.parametrize(
    "status",
    [
        WELL.status,
        having(replace(ECC, state=GateState.PROBATION)),
        having(replace(ECC, state=GateState.WATCHING, bad=1)),
        having(replace(ECC, incident="thermal-1")),
        having(replace(ECC, code="of-tomorrow")),
        having(ECC, of=replace(WELL.status, override=Override(kind="healthy"))),
    ],
)
def test_what_is_not_confirmed_or_has_a_speaker_is_no_alert(status: ReportStatus) -> None:
    assert alerts(status, NODE, POLICY) == ()


def test_each_cause_is_told_once_the_worst_first() -> None:
    gates = [replace(ECC, code=code) for code in ("nvlink-errors", "hot", "memory-hot", "ecc", "row-remap")]
    assert [alert.cause for alert in alerts(having(*gates), NODE, POLICY)] == ["memory", "thermal", "nvlink"]


def hanging(*, probe: str = "call-hung") -> ReportStatus:
    unreadable = Unreadable(symptom=probe, since=SINCE, message="nvmlX hangs. Next: reboot.")
    return replace(WELL.status, probes=[replace(WELL.status.probe["health"], unreadable=unreadable)])


GONE = WELL.after(LOST, node=NODE, at=NOW + 60).seen(node=NODE, at=NOW + 10 * STALE).status
UNREAD = GateStatus(code="node-unreadable", state=GateState.GATED)


@pytest.mark.parametrize(
    ("status", "node", "policy", "expected"),
    [
        (hanging(), NODE, POLICY, [("unread", "call-hung", "nvmlX hangs.", "nvidia-smi")]),
        (hanging(probe="KubeletSilent"), NODE, POLICY, [("unread", "KubeletSilent", "nvmlX", "nvidia-smi")]),
        (having(UNREAD, of=hanging()), NODE, POLICY, [("unreadable", "node-unreadable", "", "nvidia-smi")]),
        (GONE, NODE, POLICY, [("unread", "stale", "no result", "kubectl describe nodereport gpu-7")]),
        (ReportStatus(), NODE, POLICY, [("unread", "never-read", "No run", "describe nodereport gpu-7")]),
        (
            GONE,
            NODE.not_ready(),
            POLICY,
            [("unread", "not-ready", "not Ready", "describe node gpu-7")],
        ),
        (GONE, NODE.not_ready().cordoned(), POLICY, []),
        (GONE, NODE, POLICY.of({"mode": "Paused"}), []),
        (GONE, NODE, POLICY.of({"probes": {"health": {"enabled": False}}}), []),
    ],
)
def test_a_node_that_nobody_reads_is_told_unless_somebody_took_it_away(
    status: ReportStatus, node: NodeView, policy: APolicy, expected: list[tuple[str, str, str, str]]
) -> None:
    shown = alerts(status, node, policy)
    assert [(alert.cause, alert.code) for alert in shown] == [each[:2] for each in expected]
    assert all(text in alert.measured for alert, (_, _, text, _) in zip(shown, expected, strict=True))
    assert all(step in alert.next_step for alert, (*_, step) in zip(shown, expected, strict=True))
