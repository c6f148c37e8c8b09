"""The status of policies: counts, conditions, written when they differ and not otherwise."""

import re
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_operator import names
from nodegauge_operator.api.desired_device import DesiredDevice, DeviceState
from nodegauge_operator.api.report import DesiredTaint, GateState, GateStatus, ReportStatus, parse_report
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core import reading_admission
from nodegauge_operator.core.model import node_view
from nodegauge_operator.core.usable import usable
from nodegauge_operator.kube.errors import Forbidden, KubeError
from nodegauge_operator.names import PaceReason, PolicyReason
from nodegauge_operator.reconcile import policy_status
from nodegauge_operator.reconcile.budget_condition import State
from nodegauge_operator.reconcile.concurrency import Concurrency
from nodegauge_operator.reconcile.incident_status import IncidentStatus
from nodegauge_operator.reconcile.obstacles import REASONS
from nodegauge_operator.reconcile.policy_status import PolicyStatus
from support.api_server import ADMISSION, BINDINGS, NODES, POLICIES, REPORTS, Body
from support.client import unavailable
from support.cluster import FakeCluster
from support.judging import saying
from support.objects import INTERVAL, NOW
from support.operator import SETTINGS, SteppedOperator
from support.virtual_operator import refusing
from support.virtual_time import drive


def status_writer(operator: SteppedOperator) -> PolicyStatus:
    """What writes the policies' statuses, of an installation that allows two runs at a time."""
    known: dict[str, Any] = {"client": operator.client, "cache": operator.cache, "metrics": operator.metrics}
    budget, clock = operator.reconciler.gate_budget, operator.cluster.clock
    return PolicyStatus(
        **known,
        gate_budget=budget,
        device_budget=operator.reconciler.device_budget,
        concurrency=Concurrency(operator.cache, budget.counters, limits={"health": 2, "nccl": 2}),
        incidents=IncidentStatus(
            **known, breaker=operator.reconciler.breaker, instance="nodegauge", clock=clock
        ),
        obstacles=operator.reconciler.obstacles,
        trust=operator.reconciler.trust,
        watchers=operator.reconciler.watchers,
        installation=SETTINGS.probe.installation,
        most_nodes=SETTINGS.metric_nodes,
        clock=clock,
        jitter=lambda: 0.0,
    )


class PolicyOperator(SteppedOperator):
    """An operator of three nodes, and the status of their policies."""

    def __init__(self) -> None:
        super().__init__(FakeCluster())
        for n in range(3):
            self.cluster.add_node(f"node-{n}", tier="gold" if n == 0 else "tin")
        self.policy_status = status_writer(self)

    def measure_all(self) -> None:
        self.list()
        self.run_all()

    def write(self, *, after: float = 1.0, dirty: bool = False) -> list[str]:
        """One pass, so much later, perhaps with news that the watches delivered; what was written."""
        self.cluster.pass_time(after)
        if dirty:
            self.deliver()
            self.policy_status.dirty = True
        self.client.log.clear()
        drive(self.policy_status.write())
        return [line for line in self.client.log if "policies" in line]

    def written(self, name: str = "default") -> dict[str, Any]:
        return self.cluster.objects[POLICIES][name]["status"]

    def ready(self, name: str = "default") -> tuple[str, str]:
        condition = self.condition("Ready", name)
        return condition["status"], condition["reason"]

    def condition(self, kind: str, name: str = "default") -> dict[str, Any]:
        condition = self.cluster.condition(kind, name)
        assert condition["message"]
        assert condition["observedGeneration"] == self.written(name)["observedGeneration"]
        return condition


@pytest.fixture
def operator() -> PolicyOperator:
    return PolicyOperator()


def test_nodes_are_counted_by_what_was_found(operator: PolicyOperator) -> None:
    operator.cluster.add_policy()
    operator.cluster.results["node-1"] = made.with_pair(made.titan(), 0, 1, read=1)
    operator.measure_all()
    operator.cluster.add_node("node-new")
    until = stamp(operator.cluster.now + 3600)
    texts = {names.OVERRIDE: "leave-alone", names.OVERRIDE_UNTIL: until, names.OVERRIDE_BY: "ann"}
    texts[names.OVERRIDE_REASON] = "fan"
    operator.cluster.change(NODES, "node-2", {"metadata": {"annotations": texts}})
    operator.catch_up("node-2")
    assert operator.write() == ["PATCH gpuvalidationpolicies/status"]
    verdicts = {"selected": 4, "validated": 2, "failing": 1, "unknown": 1}
    counts = dict.fromkeys(("gated", "heldBack", "measured", "contradicted"), 0) | verdicts
    assert operator.written()["nodes"] == counts
    assert operator.written()["observedGeneration"] == 1
    assert operator.ready() == ("True", "Active")
    shown = operator.metrics.render().decode()
    assert 'nodegauge_nodes{policy="default",verdict="fail"} 1.0' in shown
    assert 'nodegauge_nodes_by_interconnect{interconnect="none",policy="default"} 2.0' in shown
    assert 'nodegauge_health_interval_seconds{policy="default"} 900.0' in shown
    assert re.findall(r"^nodegauge_gate_slots (.+)$", shown, re.MULTILINE) == ["4.0"]
    assert 'nodegauge_overrides{kind="leave-alone",policy="default"} 1.0' in shown
    assert operator.reconciler.gate_budget.counters.selected("default") == 4


def test_what_feed_windows_say_is_summed_over_nodes(operator: PolicyOperator) -> None:
    operator.cluster.add_policy()
    operator.measure_all()
    operator.write()
    value, cause = operator.metrics.registry.get_sample_value, {"policy": "default", "cause": "storage"}
    for nodes, lost in ((1, 1.25), (2, 2.5)):
        probes = [*operator.cluster.objects[REPORTS][f"node-{nodes}"]["status"]["probes"]]
        probes += [{"name": "feed", "history": '{"allocated": 2, "lost": {"storage": 1.25, "rubbish": 9}}'}]
        operator.write_over(REPORTS, f"node-{nodes}", status={"probes": probes})
        operator.write(dirty=True)
        assert value("nodegauge_gpus_lost", cause) == lost
        assert value("nodegauge_gpus_allocated", {"policy": "default"}) == 2 * nodes
        assert value("nodegauge_gpus_lost", cause | {"cause": "rubbish"}) is None


def shown_by(operator: PolicyOperator, *gauges: str) -> Counter[tuple[str, str]]:
    """The samples of gauges by class and cause."""
    families = [family for family in operator.metrics.registry.collect() if family.name in gauges]
    samples = [sample for family in families for sample in family.samples]
    return Counter({(s.labels["class"], s.labels.get("cause", "")): int(s.value) for s in samples})


def causes_of_lost_gpus(operator: PolicyOperator) -> set[str]:
    """Those that are shown, once all numbers are those that anybody can compute from nodes and reports."""
    operator.write(dirty=True)
    expected, whole = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for name, node in operator.cluster.objects[NODES].items():
        report = operator.cluster.objects[REPORTS].get(name)
        gpus = usable(parse_report(report).status if report else ReportStatus(), node_view(node), None)
        expected += Counter({(gpus.klass, cause): n for cause, n in [("", gpus.usable), *gpus.lost.items()]})
        whole += Counter({(gpus.klass, ""): gpus.gpus})
    shown = +shown_by(operator, "nodegauge_usable_gpus", "nodegauge_unusable_gpus")
    assert (shown, shown_by(operator, "nodegauge_gpus")) == (expected, whole)
    return {cause for _, cause in shown if cause}


def test_the_gpus_of_a_fleet_add_up_whatever_happens_to_it(operator: PolicyOperator) -> None:
    operator.cluster.add_policy()
    operator.cluster.results["node-1"] = made.with_pair(made.titan(), 0, 1, read=1)
    operator.measure_all()
    assert causes_of_lost_gpus(operator) == {"unvalidated"}
    operator.write_over(REPORTS, "node-1", status={"gates": [{"code": "gpu-lost", "state": "held-back"}]})
    operator.cluster.change(NODES, "node-2", {"spec": {"unschedulable": True}})
    for name, gpus in (("node-new", {"nvidia.com/gpu": "8"}), ("node-dark", {})):
        operator.cluster.add_node(name)
        operator.cluster.change(NODES, name, {"status": {"capacity": gpus}})
    assert causes_of_lost_gpus(operator) == {"gpu-lost", "cordoned", "unread"}
    value = operator.metrics.registry.get_sample_value
    assert value("nodegauge_uncounted_nodes", {"policy": "default"}) == 1
    operator.cluster.change(NODES, "node-2", {"spec": {"unschedulable": False}})
    for name in ("node-1", "node-new"):
        operator.cluster.remove(NODES, name)
        operator.catch_up(name)
    assert causes_of_lost_gpus(operator) == set()


def test_metrics_name_the_worst_nodes_within_their_limit(operator: PolicyOperator) -> None:
    """A fleet of thousands of broken nodes must not make thousands of series."""
    operator.cluster.add_policy()
    operator.measure_all()
    for n, code in enumerate(("hot", "psu-fault", "gpu-lost")):
        operator.write_over(REPORTS, f"node-{n}", status={"gates": [{"code": code, "state": "gated"}]})
    shown = []
    for limit in (2, 0):
        operator.policy_status._most_nodes = limit
        operator.write(dirty=True)
        text = operator.metrics.render().decode()
        names = [re.findall(rf'^nodegauge_{name}{{.*node="([^"]+)"', text, re.M) for name in SERIES]
        left_out = operator.metrics.registry.get_sample_value
        shown.append((names, left_out("nodegauge_node_faults_left_out", {"policy": "default"})))
    named = ["node-2", "node-1"]
    assert shown == [([named, named], 1.0), ([[], []], None)]


SERIES = ("node_fault", "node_fault_info")


def test_nothing_new_is_not_written_again(operator: PolicyOperator) -> None:
    operator.cluster.add_policy()
    operator.list()
    assert len(operator.write()) == 1
    assert operator.write(dirty=True) == []
    assert operator.write() == []
    again = SteppedOperator(operator.cluster)
    again.list()
    drive(status_writer(again).write())
    assert again.client.log == []


def test_counts_that_drift_are_written_every_few_seconds(operator: PolicyOperator) -> None:
    """Five thousand nodes settling must not mean a patch a second; the first change is written at once."""
    operator.cluster.add_policy()
    operator.list()
    assert len(operator.write()) == 1
    written = 0
    for n in range(60):
        operator.cluster.add_node(f"node-{n + 10}")
        written += len(operator.write(dirty=True))
    assert 10 <= written <= 12
    operator.write(after=5.0)
    assert operator.written()["nodes"]["selected"] == 63
    operator.cluster.add_node("node-late")
    assert len(operator.write(after=10.0, dirty=True)) == 1


def bad(operator: PolicyOperator) -> Body:
    """The policy after a change that an older CRD let through."""
    body = operator.cluster.get(POLICIES, "default")
    body["metadata"] |= {"generation": 2, "resourceVersion": "99999"}
    body["spec"]["staleAfterIntervals"] = 1
    return body


def test_a_policy_that_cannot_be_read_says_which_field(operator: PolicyOperator) -> None:
    operator.cluster.add_policy()
    operator.list()
    operator.cache.put_policy(bad(operator))
    operator.write()
    assert operator.ready() == ("False", "Invalid")
    condition = operator.condition("Ready")
    assert "spec.staleAfterIntervals" in condition["message"]
    assert "last good version stays in force" in condition["message"]
    assert (operator.written()["observedGeneration"], operator.written()["nodes"]["selected"]) == (2, 3)
    other = SteppedOperator(operator.cluster)
    other.cache.put_policy(bad(operator))
    operator.cluster.pass_time(500)
    drive(status_writer(other).write())
    assert "The policy is not in force" in operator.written()["conditions"][0]["message"]


def test_a_policy_without_nodes_says_why(operator: PolicyOperator) -> None:
    for name, tier, priority in (("gold", "gold", 5), ("under", "gold", 0), ("typo", "golld", 0)):
        operator.cluster.add_policy(name, nodeSelector={"matchLabels": {"tier": tier}}, priority=priority)
    operator.list()
    operator.write()
    reasons = {name: operator.ready(name) for name in ("gold", "under", "typo")}
    expected = {"gold": "Active", "under": "Overridden", "typo": "NoNodes"}
    assert reasons == {name: ("True", reason) for name, reason in expected.items()}
    pause = {"metadata": {"generation": 2}, "spec": {"budget": {"concurrentProbes": 0}}}
    operator.cluster.change(POLICIES, "gold", pause)
    operator.write(after=61, dirty=True)
    assert operator.ready("gold") == ("True", "Paused")
    assert operator.written("under")["nodes"]["selected"] == 0


def test_a_policy_names_the_installation_that_has_its_nodes(operator: PolicyOperator) -> None:
    """They are left alone; the message has the command for an installation that is gone."""
    operator.cluster.add_policy()
    operator.measure_all()
    operator.write_over(REPORTS, "node-1", status={"installation": "a/b"})
    operator.write()
    assert 'nodegauge_foreign_nodes{policy="default"} 1.0' in operator.metrics.render().decode()
    assert operator.ready() == ("False", PolicyReason.OTHER_INSTALLATION)
    assert "nodegauge cleanup --namespace a --release b" in operator.condition("Ready")["message"]


def test_a_policy_under_which_no_reading_counts_is_not_ready(operator: PolicyOperator) -> None:
    """The condition says what is wrong and the way out; it is ready again once the protection stands."""
    operator.cluster.add_policy()
    operator.measure_all()
    protection = operator.cluster.objects[ADMISSION].pop(reading_admission.NAME)
    for _ in range(2):
        drive(operator.reconciler.trust.look(on_change=lambda: None))
    operator.write()
    assert operator.ready() == ("False", PolicyReason.READINGS_UNPROTECTED)
    message = operator.condition("Ready")["message"]
    assert message.startswith("no reading counts, and 3 nodes stay as they are: ")
    assert message.endswith("upgrade or reinstall the chart, which brings it")
    operator.cluster.objects[ADMISSION][reading_admission.NAME] = protection
    drive(operator.reconciler.trust.look(on_change=lambda: None))
    operator.write(dirty=True)
    assert operator.ready() == ("True", PolicyReason.ACTIVE)


@pytest.mark.parametrize(
    ("verb", "path", "reason", "names_it"),
    [
        ("PATCH", f"{NODES}/node-0", PolicyReason.LABEL_REFUSED, "the label interconnect"),
        ("PATCH", f"{NODES}/node-0", PolicyReason.TAINT_REFUSED, "a change of taints"),
        ("PATCH", f"{NODES}/node-0/status", PolicyReason.CONDITION_REFUSED, "the condition GPUValidated"),
        ("POST", REPORTS, PolicyReason.REPORT_REFUSED, "the report"),
    ],
)
def test_a_policy_of_which_something_is_refused_is_not_ready(
    operator: PolicyOperator, verb: str, path: str, reason: PolicyReason, names_it: str
) -> None:
    """With the thing, where, why, and the way out; as a number too; until it is admitted."""
    operator.cluster.add_policy()
    if reason is PolicyReason.TAINT_REFUSED:
        closed = {"key": names.TAINT_UNVALIDATED, "effect": "NoSchedule"}
        operator.cluster.change(NODES, "node-0", {"spec": {"taints": [closed]}})
    operator.list()
    for name in ("node-1", "node-2"):
        operator.reconcile(name)
    operator.refuse(verb, path, Forbidden("rule r denied request: not here.", status=403))
    for _ in range(2):
        with suppress(Forbidden):
            operator.catch_up("node-0")
        operator.cluster.kubelets()
    with suppress(Forbidden):
        operator.catch_up("node-0")
    operator.write(dirty=True)
    assert operator.ready() == ("False", reason)
    message = operator.condition("Ready")["message"]
    assert message.startswith(f"{names_it} cannot be written on 1")
    assert "denied request: not here. " in message
    kind = next(kind for kind, (of, _) in REASONS.items() if of is reason)
    count = operator.metrics.registry.get_sample_value
    assert count("nodegauge_obstacles", {"policy": "default", "kind": kind}) == 1
    operator.heal()
    operator.cluster.pass_time(60)
    operator.measure_all()
    operator.write(dirty=True)
    assert operator.ready() == ("True", PolicyReason.ACTIVE)
    assert count("nodegauge_obstacles", {"policy": "default", "kind": kind}) is None


@pytest.mark.parametrize(("away", "status"), [(False, 500), (False, 504), (True, 503)])
def test_a_write_that_fails_for_one_node_alone_is_said_after_a_while(
    operator: PolicyOperator, away: bool, status: int
) -> None:
    """An object that etcd finds too large, a quota whose evaluation times out; while nobody is answered, the
    API server is away."""
    operator.cluster.add_policy()
    operator.list()
    operator.refuse("POST", REPORTS, unavailable(status))
    for reason in ("Active", "Active" if away else "ReportRefused"):
        if away:
            operator.client.outage.failed("away", since=time.monotonic() - 60)
        with suppress(KubeError):
            operator.catch_up("node-0")
        operator.write(dirty=True)
        assert operator.ready()[1] == reason
        operator.cluster.pass_time(61)
    operator.heal()
    operator.catch_up("node-0")
    operator.write(dirty=True)
    assert operator.ready() == ("True", PolicyReason.ACTIVE)


@pytest.mark.parametrize(
    ("key", "mode", "reason"),
    [
        ("fabric", "Enforce", PolicyReason.LABEL_REFUSED),
        ("fabric", "Observe", PolicyReason.ACTIVE),
        ("interconnect", "Enforce", PolicyReason.ACTIVE),
    ],
)
def test_a_key_that_the_chart_s_values_lack_is_said_before_it_is_written(
    operator: PolicyOperator, key: str, mode: str, reason: PolicyReason
) -> None:
    operator.reconciler.obstacles._keys = (names.LABEL_INTERCONNECT, "interconnect")
    operator.cluster.add_policy(mode=mode, labels={"interconnectKey": key})
    operator.list()
    operator.write()
    assert operator.ready()[1] == reason
    counts = operator.reconciler.obstacles.counts("default")
    assert counts["label"] == (reason is PolicyReason.LABEL_REFUSED)


NO, READY = ("False", "ApplyRefused", "no"), ("True", "Active", "")


@pytest.mark.parametrize(
    ("ready", "watchers", "pace", "reason"),
    [
        (READY, NO, None, "ApplyRefused"),
        (READY, None, ("False", PaceReason.RUNS_REFUSED, "no"), PaceReason.RUNS_REFUSED),
        (READY, ("True", "Applied", ""), ("False", PaceReason.TOO_FEW_SLOTS, "slow"), "Active"),
        (("False", "ReadingsUnprotected", ""), NO, None, "ReadingsUnprotected"),
    ],
)
def test_ready_follows_other_conditions(
    ready: State, watchers: State | None, pace: State | None, reason: str
) -> None:
    states = {policy_status.READY: ready, policy_status.WATCHERS_READY: watchers, policy_status.KEEP_UP: pace}
    followed = policy_status.following(states)
    assert followed[1] == reason


@pytest.mark.parametrize(
    ("path", "spec"),
    [
        (ADMISSION, {"failurePolicy": "Ignore"}),
        (ADMISSION, {"validations": []}),
        (ADMISSION, {"variables": []}),
        (ADMISSION, {"matchConditions": [{"name": "never", "expression": "false"}]}),
        (ADMISSION, {"matchConstraints": {"resourceRules": []}}),
        (BINDINGS, {"validationActions": ["Audit"]}),
        (BINDINGS, {"policyName": "another"}),
        (BINDINGS, {"matchResources": {"namespaceSelector": {"matchLabels": {"a": "b"}}}}),
    ],
)
def test_no_reading_counts_while_its_protection_lets_others_write(
    operator: PolicyOperator, path: str, spec: dict[str, Any]
) -> None:
    trust = operator.reconciler.trust
    drive(trust.look(on_change=lambda: None))
    assert trust.problem == ""
    [body] = operator.cluster.objects[path].values()
    body["spec"] = body["spec"] | spec
    changed: list[str] = []
    drive(trust.look(on_change=lambda: changed.append("now")))
    assert trust.problem.endswith("upgrade or reinstall the chart, which brings it")
    assert changed == ["now"]


def test_a_refusal_is_believed_when_it_comes_twice(operator: PolicyOperator) -> None:
    """An API server that has just started refuses what it allows; in between nothing is decided.  One that
    does not answer changes no trust: nobody can write a reading there either."""
    trust, changed = operator.reconciler.trust, list[str]()
    refusal = Forbidden("not yet", status=403)

    def look(*answers: KubeError | None) -> list[tuple[bool, bool]]:
        """Whether something is decided, and whether readings count, after each of these answers."""
        seen = []
        for answer in answers:
            operator.client.refuse = refusing(answer, "GET", ADMISSION)
            drive(trust.look(on_change=lambda: changed.append("now")))
            seen.append((trust.looked, not trust.problem))
        return seen

    assert look(unavailable()) == [(False, False)]
    assert look(None, refusal, None) == [(True, True), (False, True), (True, True)]
    identity = trust.identity
    assert look(refusal, unavailable()) == [(False, True), (True, True)]
    assert (changed, trust.identity) == (["now"], identity)
    assert look(None, refusal, refusal, refusal)[1:] == [(False, True), (True, False), (True, False)]
    assert changed == ["now", "now"]


def test_reports_that_cannot_be_read_are_counted(operator: PolicyOperator) -> None:
    operator.cluster.add_policy()
    operator.measure_all()
    operator.write_over(REPORTS, "node-1", status={"gates": 7})
    operator.write()
    assert 'nodegauge_unreadable_reports{policy="default"} 1.0' in operator.metrics.render().decode()


def test_a_status_that_cannot_be_written_is_tried_again(operator: PolicyOperator) -> None:
    operator.cluster.add_policy("a")
    operator.cluster.add_policy("b")
    operator.list()
    operator.client.refuse = lambda verb, path: unavailable() if "/a/" in path else None
    assert operator.write() == ["PATCH gpuvalidationpolicies/status"]
    assert "status" not in operator.cluster.objects[POLICIES]["a"]
    calls = operator.client.calls
    for _ in range(360):
        assert operator.write(after=10.0) == []
    assert operator.client.calls - calls < 20
    operator.heal()
    assert operator.write(after=301.0) == ["PATCH gpuvalidationpolicies/status"]
    assert operator.ready("a") == ("True", "Active")


def gate(
    operator: PolicyOperator, name: str, *codes: str, held_back: bool = False, devices: str = ""
) -> None:
    """The node's report says that these gates are entered, with or without a slot, and these devices."""
    report = operator.cache.reports[name]
    state = GateState.HELD_BACK if held_back else GateState.GATED
    rows = [GateStatus(code=code, state=state, since=stamp(NOW)) for code in codes]
    taints = [] if held_back else [DesiredTaint(key=names.TAINT_THROTTLED, value="thermal")]
    of_devices = [
        DesiredDevice(uuid="GPU-1", state=DeviceState(one), key="unhealthy", cause="xid", code="xid")
        for one in devices.split()
    ]
    desired = replace(report.status.desired, taints=taints, devices=of_devices)
    status = replace(report.status, gates=rows, desired=desired)
    version = str(int(report.resource_version) + 10_000)
    operator.cache.put_report(replace(report, resource_version=version, status=status))
    operator.policy_status.dirty = True


def test_a_policy_says_whether_all_that_should_be_gated_is(operator: PolicyOperator) -> None:
    operator.cluster.add_policy(budget={"concurrentProbes": "100%", "gatedNodes": "40%"})
    operator.measure_all()

    def shown(after: float = 1.0) -> tuple[str, str, str]:
        operator.write(after=after)
        condition = operator.condition("GatesWithinBudget")
        times.append(condition["lastTransitionTime"])
        return condition["status"], condition["reason"], condition["message"]

    times: list[str] = []
    assert shown() == ("True", "WithinBudget", "0 of 1 slots used (40% of 3 nodes)")
    gate(operator, "node-0", "hot")
    assert shown(after=10)[1] == "WithinBudget"
    metric = 'nodegauge_gated_nodes{cause="thermal",policy="default",taint="throttled"} 1.0'
    assert metric in operator.metrics.render().decode()
    gate(operator, "node-1", "hot", "xid", held_back=True)
    *what, message = shown()
    assert what == ["False", "BudgetExhausted"], "another reason is written at once"
    assert message.startswith("1 of 1 slots used (40% of 3 nodes), 1 node held back: thermal 1, xid 1.")
    assert times[0] == times[1] < times[2]
    assert operator.written()["nodes"]["heldBack"] == 1
    gate(operator, "node-2", "hot")
    *what, message = shown()
    assert what == ["False", "BudgetExceeded"]
    assert message.startswith("2 of 1 slots used")
    assert (operator.written()["nodes"]["gated"], operator.ready()) == (2, ("True", "Active"))


def test_devices_are_counted_beside_nodes(operator: PolicyOperator) -> None:
    operator.cluster.add_policy(budget={"gatedNodes": "100%"})
    operator.measure_all()
    gate(operator, "node-0", devices="gated held-back held-back")
    operator.write()
    shown = operator.metrics.render().decode()
    assert 'nodegauge_gated_devices{policy="default"} 1.0' in shown
    assert 'nodegauge_held_back_devices{policy="default"} 2.0' in shown
    assert operator.condition("GatesWithinBudget")["reason"] == "DeviceBudgetExhausted"


@pytest.mark.usefixtures("stated_answers")
@pytest.mark.parametrize(
    ("budget", "cluster", "rate", "reason", "message"),
    [
        ({}, 1, 9, "ClusterBudgetExhausted", "1 of 1 slots of all policies together (1); see operator.max"),
        ({}, 9, 1, "RateExhausted", "; see operator.maxGatedNodesPerHour."),
        ({"gatedNodesPerHour": 1}, 9, 9, "RateExhausted", "; see spec.budget.gatedNodesPerHour."),
    ],
)
def test_a_policy_names_the_limit_that_holds_nodes_back(
    operator: PolicyOperator, budget: Body, cluster: int, rate: int, reason: str, message: str
) -> None:
    """Its own slots would suffice for all."""
    spec = {"concurrentProbes": "100%", "gatedNodes": "100%", "gatedNodesPerHour": "100%"}
    operator.cluster.add_policy(budget=spec | budget)
    operator.cluster.results = {f"node-{n}": saying("gpu-lost=b") for n in range(3)}
    limits = operator.reconciler.gate_budget
    limits.cluster, limits.rate.cluster = cluster, rate
    operator.measure_all()
    operator.write()
    condition = operator.condition("GatesWithinBudget")
    assert (condition["status"], condition["reason"]) == ("False", reason)
    assert "2 nodes held back: gpu-lost 2." in condition["message"]
    assert message in condition["message"]
    assert 'nodegauge_newly_gated_nodes{policy="default"} 1.0' in operator.metrics.render().decode()


class Fleet(SteppedOperator):
    """Node-1 follows `top`, node-2 follows `low`, which selects both nodes and only observes."""

    def __init__(self, *, priority: int = 5) -> None:
        super().__init__(FakeCluster())
        self.cluster.add_node("node-1", tier="gold")
        self.cluster.add_node("node-2", tier="tin")
        self.cluster.add_policy("low", mode="Observe")
        selector = {"matchLabels": {"tier": "gold"}}
        self.cluster.add_policy("top", priority=priority, nodeSelector=selector)
        self.list()
        self.inbox.clear()
        self.run_all()

    def policy_of(self, name: str) -> str:
        return str(self.cluster.objects[REPORTS][name]["status"]["policy"])

    def runs_of(self, name: str) -> list[int]:
        return [number for node, number, _ in self.cluster.judged if node == name]

    def rolled_back(self, **spec: Any) -> dict[str, str]:
        """The labels of node-1; then `top` is unreadable, the operator restarts, and an interval passes."""
        before = self.labels
        self.write_over(POLICIES, "top", spec=spec)
        self.restart()
        self.run_all(after=INTERVAL + 1)
        return before


UNKNOWN = {"key": "tier", "operator": "Matches", "values": ["gold.*"]}
SELECTORS: list[Any] = ["all", {"matchLabels": ["tier=gold"]}, {"matchExpressions": [UNKNOWN]}]


@pytest.mark.parametrize("spec", [{"mode": "Quarantine"}, *({"nodeSelector": one} for one in SELECTORS)])
def test_its_nodes_keep_what_they_carry(spec: Body) -> None:
    """They got the observing policy instead, which took every label off them; others go on."""
    fleet = Fleet()
    assert "interconnect" in fleet.labels
    before = fleet.rolled_back(**spec)
    for seconds, runs in ((0, [1, 2]), (2 * SETTINGS.release_grace, [1, 2, 3])):
        fleet.run_all(after=seconds)
        assert fleet.labels == before
        assert (fleet.policy_of("node-1"), fleet.policy_of("node-2")) == ("top", "low")
        assert fleet.runs_of("node-2") == runs, "a node that it does not select is read as before"


def test_of_lower_priority_it_holds_nobody_up() -> None:
    """Its nodes follow a policy that can be read, as they did before."""
    fleet = Fleet(priority=-5)
    assert fleet.policy_of("node-1") == "low"
    fleet.rolled_back(mode="Quarantine")
    assert fleet.runs_of("node-1") == [1, 2]


def test_a_new_node_that_it_selects_is_left_alone() -> None:
    fleet = Fleet()
    fleet.rolled_back(mode="Quarantine")
    fleet.cluster.add_node("node-3", tier="gold")
    fleet.catch_up("node-3")
    assert "node-3" not in fleet.cluster.objects[REPORTS]


@pytest.mark.parametrize("mended", [True, False])
def test_once_it_can_be_read_or_is_gone_its_nodes_go_on(mended: bool) -> None:
    fleet = Fleet()
    before = fleet.rolled_back(mode="Quarantine")
    epoch = fleet.cache.epoch
    if mended:
        fleet.write_over(POLICIES, "top", spec={"mode": "Enforce"})
    else:
        fleet.cluster.remove(POLICIES, "top")
        fleet.deliver()
    assert fleet.policies_changed == [True]
    assert fleet.cache.epoch > epoch
    fleet.run_all()
    assert fleet.policy_of("node-1") == ("top" if mended else "low")
    assert (fleet.labels.keys() == before.keys()) is mended


def test_a_policy_that_is_deleted_while_another_is_written_is_no_error(operator: PolicyOperator) -> None:
    """An exception here would end the whole process."""
    for name in ("a", "b"):
        operator.cluster.add_policy(name, nodeSelector={"matchLabels": {"tier": "none"}})
    operator.list()

    def delete(verb: str, path: str) -> None:
        if verb == "PATCH" and path.endswith("/a/status") and "b" in operator.cluster.objects[POLICIES]:
            operator.cluster.remove(POLICIES, "b")
            operator.deliver()

    operator.client.answered = delete
    assert operator.write() == ["PATCH gpuvalidationpolicies/status"]
    assert list(operator.cache.policies) == ["a"]
