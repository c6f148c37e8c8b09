"""One node, its four probes, and the planner in a loop; every write succeeds."""

from collections import Counter
from typing import Any

import msgspec
from msgspec.structs import replace

from nodegauge_judge import Probe
from nodegauge_operator import names
from nodegauge_operator.api.report import Outcome, Report, ReportStatus, Run
from nodegauge_operator.api.times import NEVER
from nodegauge_operator.core import actions, decision, gates
from nodegauge_operator.core.context import Snapshot
from nodegauge_operator.core.gpu_eligibility import SEEN_BY_THE_PROBE
from nodegauge_operator.core.model import pod_view
from nodegauge_operator.core.planner import next_step, wake_at
from nodegauge_operator.core.probes.registry import EVERY
from nodegauge_operator.core.reading_view import ReadingView
from support.nccl_nodes import DAY, INSTALLED, NODE
from support.objects import NOW, ANode, APod, APolicy, make_policy, reading_of

MOST_WRITES = 30
TOPOLOGY = {
    names.LABEL_INTERCONNECT,
    "nodegauge.dev/interconnect-evidence",
    "nodegauge.dev/nvlink-gbps",
    "nodegauge.dev/busbw-allreduce",
    "nodegauge.dev/busbw-allgather",
    "nodegauge.dev/busbw-reducescatter",
    "interconnect",
}
ROWS = {Probe.NCCL: names.PROBE_NCCL, Probe.LOAD: names.PROBE_LOAD}
"""Whose runs count in a row of `gates`, where it is not a health run."""


class PlannerLoop:
    def __init__(self) -> None:
        self.node: ANode = NODE
        self.policy: APolicy = make_policy()
        self.report: Report | None = None
        self.pods: list[APod] = []
        self.now = NOW
        self.slot = True
        self.counted: Counter[str] = Counter()
        self.events: list[tuple[str, str]] = []
        self.written: Counter[str] = Counter()
        self.klass = (0.0, "")
        """The last class that the node had, and since when."""
        self._since = NOW
        self._posted = ("", "")
        self._judged: actions.Judged | None = None
        self._made = 0
        self._written: ReadingView | None = None
        self._recorded: actions.WrittenHistory | None = None

    def snapshot(self, *, fresh: bool = False) -> Snapshot:
        return Snapshot(
            kinds=EVERY,
            node=self.node,
            policy=self.policy,
            report=self.report,
            pods=tuple(self.pods),
            now=self.now,
            granted=frozenset({names.PROBE_HEALTH, names.PROBE_NCCL, names.PROBE_LOAD}),
            gate_slot=self.slot,
            posted=self._posted,
            judged=self._judged,
            reading=self._reading(),
            written=self._recorded,
            fresh=frozenset({actions.RefreshReport} if fresh else ()) | {actions.RefreshReading},
            since=self._since,
            defaults=INSTALLED,
        )

    def _reading(self) -> ReadingView | None:
        written = reading_of(self.pods)
        if written is not None:
            known = self._written.parts if self._written is not None else {}
            self._written = replace(written, parts=known | written.parts)
        return self._written

    def go(self, most: int = MOST_WRITES) -> None:
        fresh = False
        for _ in range(most):
            step = next_step(self.snapshot(fresh=fresh))
            if step is None:
                return
            self._write(step)
            fresh = isinstance(step, actions.RefreshReport)
        assert most < MOST_WRITES, "it does not come to rest"

    def restart(self) -> None:
        self._since, self._posted, self._judged, self._recorded = self.now, ("", ""), None, None

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.pods = [pod for pod in self.pods if not pod.gone and not pod.deleting_since]

    def until_woken(self) -> None:
        at = wake_at(self.snapshot())
        self.wait(at - self.now if at < NEVER else 60.0)

    def pod(self) -> APod | None:
        return next(
            (p for p in self.pods if not p.gone and not p.deleting_since and p.terminated is None), None
        )

    def changed(self, before: APod, after: APod) -> None:
        self.pods = [after if pod is before else pod for pod in self.pods]

    def asked(self, at: str) -> None:
        self.report = _written_again(replace(self.report, requested_at=at))

    @property
    def status(self) -> ReportStatus:
        return self.report.status if self.report else ReportStatus()

    def _write(self, step: actions.Step) -> None:
        self.written[type(step).__name__] += 1
        match step:
            case actions.CreateReport(node):
                self.report = Report(name=node.name, uid="report", resource_version="1", node_uid=node.uid)
            case actions.PatchReport(report, status):
                assert report == self.report
                self._patched(report, status)
            case actions.PatchNode(_, labels, taints, judged):
                self._classed(labels.get(names.LABEL_CLASS))
                self.node = self.node.patched(labels, taints)
                if judged is not None:
                    assert judged.status.desired.labels.items() <= self.node.labels.items()
                    self._judged = judged
            case actions.SetCondition(_, condition):
                self.node = self.node.saying(condition)
            case actions.PostEvent(_, change):
                self._posted = (change.run, change.reason)
                self.events.append(self._posted)
            case actions.WriteHistory():
                self._recorded = step.written
            case actions.CreatePod():
                allowed = [names.PROBE_PULL] if step.probe == names.PROBE_HEALTH else []
                assert all(pod.gone or pod.probe in allowed for pod in self.pods), "one pod of ours at a time"
                self._made += 1
                meta = step.manifest["metadata"] | {"uid": f"pod-{self._made}", "resourceVersion": "1"}
                view = pod_view({"metadata": meta, "spec": {}, "status": {"phase": "Pending"}})
                assert view.probe == step.probe
                known: dict[str, Any] = {name: getattr(view, name) for name in view.__struct_fields__}
                self.pods.append(APod(**known | {"created_at": self.now}))
            case actions.DeletePod(pod, grace):
                at_once = grace == 0 or pod.finished
                self.pods = [
                    p if p.uid != pod.uid else p.deleting(self.now)
                    for p in self.pods
                    if p.uid != pod.uid or not at_once
                ]

    def _classed(self, klass: str | None) -> None:
        if klass not in (None, "", self.klass[1]):
            assert self.now - self.klass[0] >= DAY, "another class within a day"
            self.klass = (self.now, klass)

    def _patched(self, report: Report, status: ReportStatus) -> None:
        """The API server keeps JSON; and what a run may change is looked at."""
        for name in names.PROBES:
            before, after = report.status.probe[name].last_run, status.probe[name].last_run
            if after is not None and after != before:
                context = self.snapshot().context
                # What the report would hold by now without a run: what time does is not the run's doing.
                aged, number = decision.decide(context.after(report.status)), before.number if before else 0
                self._checked(aged, status, probe=name, run=after, number=number)
        kept = msgspec.json.decode(msgspec.json.encode(status), type=ReportStatus)
        assert kept == status
        self.report, self._judged = _written_again(replace(report, status=kept)), None

    def _checked(
        self, before: ReportStatus, after: ReportStatus, *, probe: str, run: Run, number: int
    ) -> None:
        self.counted[run.pod_uid] += 1
        assert self.counted[run.pod_uid] == 1, "a run is judged once"
        assert run.number == number + 1
        others = [name for name in names.PROBES if name != probe]
        for name in others:
            was, now = before.probe[name], after.probe[name]
            assert (was.last_run, was.read_at) == (now.last_run, now.read_at), name
        assert _counted(before, probe, own=False) == _counted(after, probe, own=False), "gates of another"
        if run.outcome is not Outcome.READ:
            assert _counted(before, probe) == _counted(after, probe), "missing data changes no gate"
            assert before.desired.taints == after.desired.taints
            assert before.bandwidth.all_reduce == after.bandwidth.all_reduce
            assert before.bandwidth.agreement == after.bandwidth.agreement
            if run.reason not in SEEN_BY_THE_PROBE:  # which says: no longer the GPUs that were measured
                assert before.interconnect.klass == after.interconnect.klass
                _same_labels(before, after)
        if probe == names.PROBE_PULL:
            _same_labels(before, after)


def _written_again(report: Report) -> Report:
    return replace(report, resource_version=str(int(report.resource_version) + 1))


def _same_labels(before: ReportStatus, after: ReportStatus) -> None:
    """Labels of what was read last are as they were; those of topology may be back where nobody had even
    tried for so long that they were gone (`Context.topology_expires_at`)."""
    old, new = before.desired.labels, after.desired.labels
    assert old.items() <= new.items()
    assert new.keys() - old.keys() <= TOPOLOGY


def _counted(status: ReportStatus, probe: str, *, own: bool = True) -> list[tuple[Any, ...]]:
    """What runs have counted in the rows of this probe, or in the others."""
    return [
        (row.code, row.state, row.bad, row.good, row.readable_since, row.entered_at)
        for row in status.gates
        if (ROWS.get(gates.PROBES.get(row.code, Probe.HEALTH), names.PROBE_HEALTH) == probe) is own
    ]
