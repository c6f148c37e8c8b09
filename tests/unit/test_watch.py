"""Mode Watch: the DaemonSet, and what its containers report by ending."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Problem, ProblemKind, RepeatedXid, Result, WatchReport, Xids
from nodegauge_operator import names
from nodegauge_operator.api.report import stamp
from nodegauge_operator.api.selector import match_expressions
from nodegauge_operator.core.probes.watch import daemon_set
from nodegauge_operator.kube.errors import Forbidden
from nodegauge_probes.settings import parse
from support.api_server import DAEMONSETS, NODES, PODS, POLICIES, REPORTS, Body
from support.judging import listening, saying
from support.objects import DEFAULTS, make_policy
from support.virtual_time import drive
from support.watch_pods import WatchPod
from support.watched import BAD, BOOTED, Watched, at

HOUR, INTERVAL, START_GRACE = 3600.0, 7200.0, 300.0
"""`health.watch.interval` and `limits.notStarted`."""


@pytest.fixture(autouse=True)
def stated_answers() -> Iterator[None]:
    """Results say what the judge answers."""
    with listening():
        yield


def test_the_daemonset_runs_where_the_policy_selects_and_no_driver_changes() -> None:
    """Restricted, without a token; it leaves nodes where the GPU Operator changes driver or MIG layout."""
    selector = {
        "matchLabels": {"gpus": "yes"},
        "matchExpressions": [{"key": "pool", "operator": "NotIn", "values": ["dev"]}],
    }
    operator = Watched(nodeSelector=selector)
    (made,) = operator.cluster.objects[DAEMONSETS].values()
    spec = made["spec"]["template"]["spec"]
    (box,) = spec["containers"]
    assert made["metadata"]["ownerReferences"][0]["kind"] == "GPUValidationPolicy"
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert box["securityContext"]["readOnlyRootFilesystem"] is True
    assert box["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert spec["volumes"] == [{"name": "state", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]
    assert "activeDeadlineSeconds" not in spec
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms = [
        [(e["key"], e["operator"], e.get("values")) for e in term["matchExpressions"]]
        for term in required["nodeSelectorTerms"]
    ]
    own = [("gpus", "In", ["yes"]), ("pool", "NotIn", ["dev"])]
    paused = ["paused-for-driver-upgrade", "paused-for-mig-change"]
    still = [
        ("nvidia.com/mig.config.state", "NotIn", ["pending", "rebooting"]),
        ("nvidia.com/gpu.deploy.client", "NotIn", paused),
        ("nvidia.com/gpu.deploy.device-plugin", "NotIn", paused),
    ]
    state = "nvidia.com/gpu-driver-upgrade-state"
    assert terms == [
        [*own, *still, (state, "DoesNotExist", None)],
        [*own, *still, (state, "In", ["upgrade-done", "upgrade-required"])],
    ]
    assert box["args"][0] == "--interval=7200"


def test_the_daemonset_stays_within_the_nodes_that_the_operator_watches() -> None:
    """Nobody would read its other containers."""
    defaults = replace(DEFAULTS, nodes=match_expressions("pool in (a,b),!spot"))
    spec = daemon_set(make_policy(), defaults)["spec"]["template"]["spec"]
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    for term in required["nodeSelectorTerms"]:
        assert {"key": "pool", "operator": "In", "values": ["a", "b"]} in term["matchExpressions"]
        assert {"key": "spot", "operator": "DoesNotExist"} in term["matchExpressions"]


@pytest.mark.parametrize("instance", ["nodegauge", "n" * 53, "n" * 29 + ".b", "n" * 29 + "-b"])
@pytest.mark.parametrize("policy", ["default", "p" * 253, "a.b"])
def test_the_daemonsets_name_is_also_a_labels_value(instance: str, policy: str) -> None:
    """However long a release and a policy are named, and where the cut falls (RFC 1123)."""
    name = names.watch_set_name(instance=instance, policy=policy)
    part = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    assert re.fullmatch(rf"{part}(\.{part})*", name)
    assert len(name) <= 63


def test_the_container_takes_every_policys_options() -> None:
    """The probe itself parses them, with thresholds at their bounds; they are the judge's by default."""
    odd = {"hotFail": 150, "hotWarn": 20, "hwThermalWarnSeconds": 86_400, "swThermalWarnSeconds": 0}
    parsed, windows = {}, set()
    for thresholds in ({}, odd):
        operator = Watched(thresholds=thresholds)
        (made,) = operator.cluster.objects[DAEMONSETS].values()
        (box,) = made["spec"]["template"]["spec"]["containers"]
        assert box["command"] == ["python", "-m", "nodegauge_probes", "watch"]
        settings = parse(["watch", *box["args"]], {}, probes=["watch"], engines=["nccl4py"])
        parsed[bool(thresholds)] = settings.watch
        windows.add((settings.window, settings.slowed_window))
    usual = parse(["watch"], {}, probes=["watch"], engines=["nccl4py"])
    assert parsed[False] == usual.watch
    assert (parsed[True].temperature_fail, parsed[True].hw_thermal_seconds) == (150, 60)
    assert windows == {(1.0, usual.window)}, "while a GPU is slowed down it samples as long as a health pod"


@pytest.mark.parametrize(
    ("spec", "is_new"),
    [
        ({"thresholds": {"pcieErrorsPerHour": 7}}, True),
        ({"expectedGpus": 2}, True),
        ({"powerInventory": {"supplyWatts": 1000, "otherWatts": 200}}, True),
        ({"xids": [{"codes": [31], "count": 2, "severity": "Warn"}]}, True),
        ({"hysteresis": {"enterRuns": 3}, "budget": {"gatedNodes": 2}}, False),
    ],
)
def test_what_judges_readings_makes_new_pods(spec: Body, is_new: bool) -> None:
    """They read their nodes at once; what counts runs or slots needs no reading."""
    before, after = (daemon_set(make_policy().of(one), DEFAULTS)["spec"]["template"] for one in ({}, spec))
    assert (before != after) == is_new


@pytest.mark.parametrize(
    "change",
    [
        {"probes": {"health": {"mode": "Periodic"}}},
        {"mode": "Paused"},
        {"probes": {"health": {"enabled": False}}},
    ],
)
def test_no_daemonset_stays_that_its_policy_does_not_want(change: Body) -> None:
    """And none is touched that is another release's, or nobody's of ours."""
    operator = Watched()
    labels = {names.WATCH_SET: "x", "app.kubernetes.io/instance": "other"}
    operator.cluster.create(DAEMONSETS, {"metadata": {"name": "x", "labels": labels}, "spec": {}})
    operator.cluster.create(DAEMONSETS, {"metadata": {"name": "nodegauge-watch-mine"}, "spec": {}})
    operator.cluster.change(POLICIES, "default", {"spec": change})
    operator.deliver()
    operator.keep_watch_sets()
    assert sorted(operator.cluster.objects[DAEMONSETS]) == ["nodegauge-watch-mine", "x"]


def test_the_daemonset_of_a_policy_that_cannot_be_read_stays() -> None:
    """As its nodes do: a rollback meets policies of a newer version, and a restart knows no earlier one."""
    operator = Watched()
    unreadable = operator.cluster.objects[POLICIES]["default"]
    operator.cluster._store(POLICIES, unreadable | {"spec": {"mode": "Quarantine"}}, "MODIFIED")
    operator.restart()
    operator.keep_watch_sets()
    assert operator.cache.policies == {}
    assert len(operator.cluster.objects[DAEMONSETS]) == 1
    operator.cluster.remove(POLICIES, "default")
    operator.deliver()
    operator.keep_watch_sets()
    assert operator.cluster.objects[DAEMONSETS] == {}


def test_each_end_of_the_container_is_judged_once_and_makes_no_pod() -> None:
    """Not again after a restart of the operator, and not when the pod's status changes otherwise."""
    operator = Watched()
    pod = WatchPod(operator.cluster)
    assert operator.after(pod) == []
    assert (operator.runs, operator.status["verdict"]) == (1, "pass")
    assert operator.labels[names.LABEL_HEALTH] == "pass"
    operator.restart()
    operator.keep_watch_sets()
    operator.catch_up()
    operator.cluster.change(PODS, pod.name, {"metadata": {"labels": {"a": "b"}}})
    operator.catch_up()
    assert operator.runs == 1
    operator.after(pod)
    assert (operator.runs, operator.run_pods) == (2, [])


def test_every_second_report_of_a_calm_node_renews_its_time() -> None:
    """Also where each is as late as the probe may be: the label is never older than two such intervals."""
    operator = Watched()
    pod = WatchPod(operator.cluster)
    times = []
    for _ in range(5):
        operator.after(pod, later=1.05 * INTERVAL)
        times.append(int(operator.labels[names.LABEL_VALIDATED_AT]))
    first, third = times[0], int(times[0] + 2 * 1.05 * INTERVAL)
    assert times[:4] == [first, first, third, third]
    assert times[4] > third
    assert operator.labels[names.LABEL_HEALTH] == "pass"


def test_two_bad_reports_taint_and_three_good_ones_lift_it() -> None:
    """The hysteresis is that of pods of single runs."""
    operator = Watched()
    pod = WatchPod(operator.cluster)
    seen = [operator.after(pod, answer) for answer in ("", BAD, BAD, "", "")]
    assert seen == [[], [], ["p2p"], ["p2p"], ["p2p"]]
    assert operator.after(pod, later=INTERVAL / 2) == []


def test_xids_of_several_reports_taint_by_the_policys_rule() -> None:
    """Two and one within a day; an operator that is restarted in between counts none of them again, and the
    taint goes once fewer are left."""
    operator = Watched(xids=[{"codes": [94], "count": 3, "severity": "Fail"}])
    pod = WatchPod(operator.cluster)
    assert operator.reported(pod, at(50, 60)) == []
    operator.restart()
    operator.keep_watch_sets()
    operator.catch_up()
    assert operator.reported(pod, at(3600), later=HOUR) == ["xid"]
    (finding,) = operator.probe["findings"]
    assert finding["message"].startswith("Xid 94 came 3 times within 24 h on GPU 1")
    assert operator.reported(pod, later=22.5 * HOUR) == ["xid"]
    seen = [operator.reported(pod, later=HOUR) for _ in range(3)]
    assert (seen[-1], operator.status["verdict"]) == ([], "pass")


def test_xids_of_a_reading_that_could_not_be_judged_are_not_new_in_the_next() -> None:
    """Half of the GPUs are hidden: until when Xids are known is kept all the same."""
    operator = Watched()
    pod = WatchPod(operator.cluster)
    operator.reported(pod)

    def after(result: Result, *earlier: RepeatedXid) -> list[str]:
        up = int(operator.cluster.now + 20) - BOOTED
        host = replace(result.host, boottime_ms=up * 1000)
        pod.reports(replace(result, host=host, watch=WatchReport(at=up, repeated=list(earlier))))
        operator.catch_up()
        return [finding["code"] for finding in operator.probe.get("findings") or ()]

    hidden, well = (made.every_gpu(made.h100(count), xids=Xids(registered=True)) for count in (4, 8))
    seen = Xids(registered=True, seen=[13], counts=[at(110)])
    after(made.with_gpu(hidden, 1, xids=seen))
    assert operator.probe["lastRun"]["reason"] == "NotReadable"
    assert after(well, RepeatedXid(gpu=1, code=13, count=1, first=110, last=110)) == []
    assert operator.probe["lastRun"]["outcome"] == "read"


def test_only_a_pod_of_the_daemonset_speaks_for_its_node() -> None:
    """A pod of another owner says nothing; a result of another pod, node or probe is a failed run."""
    operator = Watched()
    pod = WatchPod(operator.cluster)
    operator.after(pod)
    operator.cluster.pass_time(60)
    for owner in ("uid-other", ""):
        operator.after(WatchPod(operator.cluster, owner=owner), BAD)
    assert operator.runs == 1, "of another owner, and beside the one that is there"
    for number, other in enumerate(({"run": "uid-other"}, {"node": "node-2"}, {"probe": "load"}), start=2):
        pod.reports(saying(BAD), **other)
        operator.catch_up()
        assert (operator.runs, operator.probe["lastRun"]["reason"]) == (number, "WrongRun")
    assert operator.status["verdict"] == "pass"


@pytest.mark.parametrize(
    ("message", "code", "reason"),
    [("", 0, "Completed"), ("", 137, "OOMKilled"), ("no such file", 128, "StartError")],
)
def test_an_end_without_a_result_is_no_run(message: str, code: int, reason: str) -> None:
    """The kubelet starts the container again; where none comes for long, a health pod reads the node."""
    operator = Watched()
    pod = WatchPod(operator.cluster)
    operator.after(pod)
    pod.ends(message, code=code, reason=reason)
    operator.catch_up()
    assert (operator.runs, operator.run_pods) == (1, [])


def test_a_container_that_was_asked_to_end_reports_nothing() -> None:
    """A roll-out ends every container: labels stay as they are."""
    operator = Watched()
    pod = WatchPod(operator.cluster)
    operator.after(pod)
    asked = Problem(kind=ProblemKind.TERMINATED, call="", message="SIGTERM")
    pod.reports(replace(saying(""), problem=asked))
    operator.catch_up()
    assert operator.runs == 1


def test_a_message_that_cannot_be_read_is_a_failed_run_once() -> None:
    """Say, of an image of another major version."""
    operator = Watched()
    pod = WatchPod(operator.cluster)
    operator.after(pod)
    pod.ends("{}")
    operator.catch_up()
    operator.catch_up(granted=False)
    assert (operator.runs, operator.probe["lastRun"]["reason"]) == (2, "ResultUnreadable")


def test_a_health_pod_reads_the_node_if_the_container_brings_nothing() -> None:
    """First as long as a pod may take to start, later an interval and a tenth more."""
    operator = Watched()
    assert operator.wait() == START_GRACE
    pod = WatchPod(operator.cluster)
    operator.after(pod)
    assert operator.wait() == pytest.approx(1.1 * INTERVAL + START_GRACE)
    operator.catch_up()
    assert [pod["metadata"]["labels"][names.POD_PROBE] for pod in operator.run_pods] == ["health"]


def test_a_requested_run_is_a_pod_at_once() -> None:
    """`spec.requestedAt` asks for a run now, and the container answers no request."""
    operator = Watched()
    pod = WatchPod(operator.cluster)
    operator.after(pod)
    operator.cluster.change(REPORTS, "node-1", {"spec": {"requestedAt": "2026-01-01T00:00:00Z"}})
    operator.after(pod, later=0.0)
    assert len(operator.run_pods) == 1


def test_a_running_health_pod_comes_first() -> None:
    """What the container reports meanwhile is older than the pod's reading, and says nothing new."""
    operator = Watched()
    pod = WatchPod(operator.cluster)
    operator.after(pod)
    operator.cluster.change(REPORTS, "node-1", {"spec": {"requestedAt": "2026-01-01T00:00:00Z"}})
    operator.catch_up()
    (health,) = operator.run_pods
    operator.cluster.schedule(health)
    operator.after(pod, BAD)
    assert operator.runs == 1
    operator.cluster.pass_time(1)
    operator.cluster.end(health, operator.cluster.result(health))
    operator.catch_up()
    operator.catch_up(granted=False)
    assert operator.runs == 2


@pytest.mark.parametrize("ahead", [-20_000.0, -600.0, 0.0, 600.0, 20_000.0])
def test_a_node_whose_clock_is_wrong_is_judged_like_any_other(ahead: float) -> None:
    """What a health pod read before hides no later report, and what it read after an end is not undone by
    that end."""
    operator = Watched()
    pod = WatchPod(operator.cluster)
    operator.cluster.pass_time(4 * HOUR)
    operator.after(pod)
    operator.cluster.pass_time(4 * HOUR)
    pod.ahead = ahead

    def health_pod() -> int:
        asked = {"spec": {"requestedAt": stamp(operator.cluster.clock())}}
        operator.cluster.change(REPORTS, "node-1", asked)
        operator.catch_up()
        health = operator.run_pods[-1]
        operator.cluster.schedule(health)
        operator.cluster.pass_time(5)
        message = operator.cluster.result(health)
        operator.cluster.pass_time(ahead)
        operator.cluster.end(health, message)
        operator.cluster.pass_time(-ahead)
        operator.catch_up()
        return operator.runs

    assert health_pod() == 2
    assert [operator.after(pod, BAD) for _ in range(2)] == [[], ["p2p"]]
    assert health_pod() == operator.runs == 5
    operator.cluster.pass_time(30)
    operator.catch_up(granted=False)
    assert (operator.runs, operator.status["rawVerdict"]) == (5, "pass")


def test_a_report_is_not_judged_again_by_a_new_operator_because_the_nodes_clock_is_ahead() -> None:
    """It looks as if it had come just now, also after what a health pod read since."""
    operator = Watched()
    pod = WatchPod(operator.cluster)
    pod.ahead = HOUR
    watched = replace(saying(BAD), watch=WatchReport(at=50))
    pod.reports(watched)
    operator.catch_up()
    operator.cluster.change(REPORTS, "node-1", {"spec": {"requestedAt": "2026-01-01T00:00:00Z"}})
    operator.catch_up()
    (health,) = operator.run_pods
    operator.cluster.schedule(health)
    operator.cluster.end(health, operator.cluster.result(health))
    operator.catch_up()
    assert operator.runs == 2
    operator.cluster.pass_time(60)
    operator.restart()
    operator.keep_watch_sets()
    operator.catch_up(granted=False)
    assert operator.runs == 2
    pod.reports(replace(watched, watch=WatchReport(at=70)))
    operator.catch_up(granted=False)
    assert operator.runs == 3


def test_a_reading_of_an_earlier_boot_is_not_one_of_this_boot() -> None:
    """The pod outlives a reboot, and shows the container's end from before until the next."""
    operator = Watched()
    pod = WatchPod(operator.cluster)
    operator.after(pod)
    operator.cluster.change(NODES, "node-1", {"status": {"nodeInfo": {"bootID": "boot-2"}}})
    operator.after(pod)
    assert operator.runs == 1
    well = saying("")
    pod.reports(replace(well, host=replace(well.host, boot_id="another")))
    operator.catch_up()
    assert operator.runs == 2


def test_an_old_report_says_nothing() -> None:
    """An operator that was away for longer than an interval leaves it to the next."""
    operator = Watched()
    pod = WatchPod(operator.cluster)
    pod.reports(saying(BAD))
    operator.cluster.pass_time(INTERVAL + 1)
    operator.restart()
    operator.keep_watch_sets()
    operator.catch_up(granted=False)
    assert operator.runs == 0


def test_a_new_operator_makes_no_pod_before_it_knows_what_containers_reported() -> None:
    """After a long absence every last reading is old, and the containers have newer ones."""
    operator = Watched()
    pod = WatchPod(operator.cluster)
    operator.after(pod)
    pod.reports(saying(""), later=2 * INTERVAL)
    operator.restart()
    operator.catch_up()
    assert operator.run_pods == []
    operator.keep_watch_sets()
    operator.catch_up()
    assert (operator.runs, operator.run_pods) == (2, [])


def refuse_daemonsets(operator: Watched) -> None:
    """Quota, webhook or rights refuse every one."""
    operator.client.refuse = lambda verb, path: (
        Forbidden("no", status=403) if (verb, "daemonsets" in path) == ("PATCH", True) else None
    )


@pytest.mark.parametrize("was_there", [False, True], ids=["never made", "deleted, and not made again"])
def test_without_a_daemonset_health_pods_read_the_nodes_as_in_mode_periodic(was_there: bool) -> None:
    """Every 15 minutes, once it has been missing for as long as a pod may take to start."""
    operator = Watched()
    operator.cluster.objects[DAEMONSETS].clear()
    if not was_there:
        operator.restart()
    refuse_daemonsets(operator)
    operator.keep_watch_sets()
    waits = []
    for _ in range(3):
        waits.append(operator.wait())
        operator.catch_up()
        operator.end_run()
        operator.end_run()
    assert waits == [START_GRACE, 900, 900]


@pytest.mark.parametrize("error", [-HOUR, HOUR])
def test_a_missing_daemonset_is_waited_for_by_a_clock_that_nobody_sets(error: float) -> None:
    """Whoever corrects the operator's clock brings no pod to a node whose container is about to start."""
    operator = Watched()
    operator.cluster.objects[DAEMONSETS].clear()
    operator.restart()
    refuse_daemonsets(operator)
    operator.keep_watch_sets()
    operator.cluster.clock_error += error
    sets, policy = operator.reconciler.watch_sets, operator.cache.policies["default"]
    assert sets.applied(policy) is policy
    operator.cluster.pass_time(START_GRACE + 1)
    assert sets.applied(policy) is not policy


def test_a_daemonset_that_is_known_stays_known_if_the_api_server_answers_nothing() -> None:
    """Neither the list nor the apply: its containers speak for their nodes as before."""
    operator = Watched()
    operator.after(WatchPod(operator.cluster))
    operator.client.refuse = lambda _, path: Forbidden("no", status=403) if "daemonsets" in path else None
    operator.keep_watch_sets()
    operator.cluster.pass_time(HOUR)
    operator.keep_watch_sets()
    operator.catch_up()
    assert operator.run_pods == []


class Refused(Watched):
    """A node whose container reported an hour ago, and a new operator whose every DaemonSet is refused; it
    finds that of its policy (`owner`: of another one), or none."""

    def __init__(self, *, owner: str = "") -> None:
        super().__init__()
        self.after(WatchPod(self.cluster))
        ((name, made),) = self.cluster.objects[DAEMONSETS].items()
        [policy] = made["metadata"]["ownerReferences"]
        references = [policy | {"uid": owner or policy["uid"]}]
        self.cluster.change(DAEMONSETS, name, {"metadata": {"ownerReferences": references}})
        self.cluster.pass_time(HOUR)
        self.restart()
        refuse_daemonsets(self)
        self.wakes = 0
        """How often every node was woken."""

    def keep(self, *, later: float = 0.0) -> None:
        """Apply the DaemonSets, and look at the node."""

        def wake() -> None:
            self.wakes += 1

        self.cluster.pass_time(later)
        drive(self.reconciler.watch_sets.keep(on_change=wake))
        self.catch_up()


def test_a_daemonset_that_is_refused_for_a_moment_costs_no_pod() -> None:
    """Neither while it is missed, nor once it is there and cannot be applied again."""
    operator = Refused()
    operator.cluster.objects[DAEMONSETS].clear()
    operator.keep()
    operator.keep(later=START_GRACE - 1)
    operator.heal()
    operator.keep()
    refuse_daemonsets(operator)
    operator.keep(later=HOUR)
    assert (operator.wakes, operator.run_pods) == (2, [])


def test_nodes_are_read_by_pods_as_soon_as_their_daemonset_is_no_longer_waited_for() -> None:
    """Their own timers are those of mode Watch, hours later."""
    operator = Refused()
    operator.cluster.objects[DAEMONSETS].clear()
    operator.keep()
    operator.keep(later=START_GRACE)
    assert (operator.wakes, len(operator.run_pods)) == (2, 1)


@pytest.mark.parametrize(("owner", "pods"), [("", 0), ("another-uid", 1)], ids=["its own", "another's"])
def test_a_new_operator_hears_the_daemonset_of_its_policy_though_it_cannot_apply_it(
    owner: str, pods: int
) -> None:
    """No pod has to read its nodes: its containers go on."""
    operator = Refused(owner=owner)
    operator.keep()
    operator.keep(later=START_GRACE)
    assert len(operator.run_pods) == pods


def test_a_message_that_was_judged_is_not_kept() -> None:
    """The kubelet shows it again at each change of the pod; a new end brings a new one."""
    operator = Watched()
    pod = WatchPod(operator.cluster)
    operator.after(pod)

    def kept() -> str:
        (view,) = operator.reconciler.watch_sets.pods.each()
        return view.ended.message

    assert (operator.runs, kept()) == (1, "")
    operator.cluster.pod_status(pod.name, {"podIP": "10.0.0.7"})
    operator.deliver()
    assert kept() == ""
    operator.cluster.pod_status(pod.name, {"podIP": "10.0.0.8"})
    operator.inbox.clear()
    operator.list()
    assert kept() == ""
    pod.reports(saying(BAD))
    operator.deliver()
    assert kept() != ""
    operator.catch_up()
    assert (operator.runs, kept()) == (2, "")
    operator.restart()
    operator.keep_watch_sets()
    assert kept() != ""
    operator.catch_up()
    assert (operator.runs, kept()) == (2, "")


def test_a_deleted_report_is_made_anew_from_the_pods_message() -> None:
    """Whoever deletes it resets the node's history, and waits for no reading."""
    operator = Watched()
    pod = WatchPod(operator.cluster)
    operator.after(pod)
    operator.after(pod)
    operator.cluster.remove(REPORTS, "node-1")
    operator.catch_up()
    assert operator.runs == 1
    assert not operator.run_pods


def test_a_pod_that_went_with_the_report_is_missed_by_nobody() -> None:
    """Its message can no longer be read: the next pod reports."""
    operator = Watched()
    pod = WatchPod(operator.cluster)
    operator.after(pod)
    operator.cluster.remove(REPORTS, "node-1")
    operator.cluster.remove(PODS, pod.name)
    operator.inbox = [event for event in operator.inbox if event[0] != PODS]
    operator.catch_up(granted=False)
    assert operator.runs == 0
    operator.after(WatchPod(operator.cluster))
    assert operator.runs == 1
