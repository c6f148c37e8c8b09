"""Mode Watch: the DaemonSet, and what its containers write."""

import re
from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Problem, ProblemKind, RepeatedXid, Result, WatchReport, Xids
from nodegauge_operator import names
from nodegauge_operator.api.selector import match_expressions
from nodegauge_operator.core.probes.watch import daemon_set
from nodegauge_operator.kube.errors import Forbidden
from nodegauge_probes.settings import parse
from support.api_server import ADMISSION, BINDINGS, DAEMONSETS, NODES, PODS, POLICIES, READINGS, REPORTS, Body
from support.judging import saying
from support.objects import DEFAULTS, make_policy
from support.virtual_time import drive
from support.watch_pods import WatchPod
from support.watched import BAD, BOOTED, Watched, at, watched_once

pytestmark = pytest.mark.usefixtures("stated_answers")
HOUR, INTERVAL, START_GRACE = 3600.0, 7200.0, 300.0
"""`health.watch.interval` and `limits.notStarted`."""


@pytest.fixture
def node(stated_answers: None) -> Watched:
    """A node whose container has reported once that all is well."""
    return watched_once()


def test_the_daemonset_runs_where_the_policy_selects_and_no_driver_changes() -> None:
    selector = {
        "matchLabels": {"gpus": "yes"},
        "matchExpressions": [{"key": "pool", "operator": "NotIn", "values": ["dev"]}],
    }
    (made,) = Watched(nodeSelector=selector).cluster.objects[DAEMONSETS].values()
    spec = made["spec"]["template"]["spec"]
    (box,) = spec["containers"]
    assert made["metadata"]["ownerReferences"][0]["kind"] == "GPUValidationPolicy"
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert box["securityContext"]["readOnlyRootFilesystem"] is True
    assert box["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    state, token = spec["volumes"]
    assert state == {"name": "state", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
    assert [next(iter(source)) for source in token["projected"]["sources"]] == [
        "serviceAccountToken",
        "configMap",
    ]
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
        ("kubernetes.io/os", "NotIn", ["windows"]),
        ("type", "NotIn", ["virtual-kubelet"]),
        ("nodegauge.dev/driver-access", "NotIn", ["dra"]),
    ]
    upgrade = "nvidia.com/gpu-driver-upgrade-state"
    assert terms == [
        [*own, *still, (upgrade, "DoesNotExist", None)],
        [*own, *still, (upgrade, "In", ["upgrade-done", "upgrade-required"])],
    ]
    assert box["args"][0] == "--interval=7200"


def test_the_daemonset_stays_within_the_nodes_that_the_operator_watches() -> None:
    """Nobody would read its other containers."""
    defaults = replace(DEFAULTS, nodes=match_expressions("pool in (a,b),!spot"))
    spec = daemon_set(make_policy(), defaults, trusted="seen")["spec"]["template"]["spec"]
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
    odd = {"hotFail": 150, "hotWarn": 20, "hwThermalWarnSeconds": 86_400, "swThermalWarnSeconds": 0}
    parsed, windows = {}, set()
    for thresholds in ({}, odd):
        (made,) = Watched(thresholds=thresholds).cluster.objects[DAEMONSETS].values()
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
    before, after = (daemon_set(make_policy().of(of), DEFAULTS, trusted="seen") for of in ({}, spec))
    assert (before["spec"]["template"] != after["spec"]["template"]) == is_new


@pytest.mark.parametrize(
    ("edits", "every", "applied"),
    [(8, 2.0, [14.0 + 10]), (1, 0.0, [10.0]), (20, 9.0, [60.0, 123.0, 181.0])],
)
def test_a_policys_edits_are_gathered(edits: int, every: float, applied: list[float]) -> None:
    """Eight in 16 s replaced every pod eight times.  One who goes on and on is not waited for."""
    operator = Watched()
    sets, now, done = operator.reconciler.watch_sets, 0.0, []
    sets._monotonic = lambda: now
    operator.keep_watch_sets()
    for second in range(int(edits * every) + 61):
        now = float(second)
        if second < edits * every or second == 0:
            number = int(second // every) if every else 0
            thresholds = {"thresholds": {"pcieErrorsPerHour": 7 + number}}
            operator.cluster.change(POLICIES, "default", {"spec": thresholds})
            operator.deliver()
        if sets.due_in() <= 0:
            done.append(now)
            operator.keep_watch_sets()
    assert done == applied


def test_a_new_policy_waits_for_nobody() -> None:
    operator = Watched()
    operator.cluster.change(POLICIES, "default", {"spec": {"expectedGpus": 2}})
    operator.deliver()
    assert operator.reconciler.watch_sets.due_in() > 0
    operator.cluster.remove(POLICIES, "default")
    operator.deliver()
    assert operator.reconciler.watch_sets.due_in() <= 0


def test_the_container_is_asked_whether_it_goes_on_and_has_written() -> None:
    """One that stands still is started again; one that cannot write is not ready."""
    (box,) = daemon_set(make_policy(), DEFAULTS, trusted="seen")["spec"]["template"]["spec"]["containers"]
    for ask, file in (("livenessProbe", "alive"), ("readinessProbe", "ready")):
        probe = box[ask]
        assert probe["exec"]["command"][:3] == ["python", "-m", "nodegauge_probes.alive"]
        assert probe["exec"]["command"][-1] == file
        assert probe["timeoutSeconds"] < probe["periodSeconds"]


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "Paused"},
        *({"probes": {"health": health}} for health in ({"mode": "Periodic"}, {"enabled": False})),
    ],
    ids=str,
)
def test_no_daemonset_stays_that_its_policy_does_not_want(change: Body) -> None:
    operator = Watched()
    labels = {names.WATCH_SET: "x", "app.kubernetes.io/instance": "other"}
    operator.cluster.create(DAEMONSETS, {"metadata": {"name": "x", "labels": labels}, "spec": {}})
    operator.cluster.create(DAEMONSETS, {"metadata": {"name": "nodegauge-watch-mine"}, "spec": {}})
    operator.cluster.change(POLICIES, "default", {"spec": change})
    operator.deliver()
    operator.keep_watch_sets()
    assert sorted(operator.cluster.objects[DAEMONSETS]) == ["nodegauge-watch-mine", "x"]


def test_the_daemonset_of_a_policy_that_cannot_be_read_stays() -> None:
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


def test_each_reading_of_the_container_is_judged_once_and_makes_no_pod(node: Watched) -> None:
    assert (node.runs, node.status["verdict"], node.taints) == (1, "pass", [])
    assert node.labels[names.LABEL_HEALTH] == "pass"
    node.resume()
    node.cluster.change(PODS, node.pod.name, {"metadata": {"labels": {"a": "b"}}})
    node.catch_up()
    assert node.runs == 1
    node.after()
    assert (node.runs, node.run_pods) == (2, [])


def test_every_second_report_of_a_calm_node_renews_its_time() -> None:
    """Fewer writes, and young enough for Gt (ADR 0008), also where each is as late as the probe may be."""
    node, times = Watched(), []
    for _ in range(5):
        node.after(later=1.05 * INTERVAL)
        times.append(int(node.labels[names.LABEL_VALIDATED_AT]))
    first, third = times[0], int(times[0] + 2 * 1.05 * INTERVAL)
    assert times[:4] == [first, first, third, third]
    assert times[4] > third
    assert node.labels[names.LABEL_HEALTH] == "pass"


def test_xids_of_a_reading_that_could_not_be_judged_are_not_new_in_the_next() -> None:
    node = Watched()

    def after(result: Result, *earlier: RepeatedXid) -> list[str]:
        up = int(node.cluster.now + 20) - BOOTED
        host = replace(result.host, boottime_ms=up * 1000)
        node.reports(replace(result, host=host, watch=WatchReport(at=up, repeated=list(earlier))))
        return [finding["code"] for finding in node.probe.get("findings") or ()]

    hidden, well = (made.every_gpu(made.h100(count), xids=Xids(registered=True)) for count in (4, 8))
    after(well)
    after(made.with_gpu(hidden, 1, xids=Xids(registered=True, seen=[13], counts=[at(110)])))
    assert node.probe["lastRun"]["reason"] == "NotReadable"
    assert after(well, RepeatedXid(gpu=1, code=13, count=1, first=110, last=110)) == []
    assert node.probe["lastRun"]["outcome"] == "read"


def test_only_a_pod_of_the_daemonset_speaks_for_its_node(node: Watched) -> None:
    node.cluster.pass_time(60)
    node.after(BAD, pod=WatchPod(node.cluster, owner="uid-other"))
    assert node.runs == 1
    others: list[dict[str, Any]] = [{"run": "uid-other"}, {"node": "node-2"}, {"probe": "load"}]
    for number, other in enumerate(others, start=2):
        node.reports(saying(BAD), **other)
        assert (node.runs, node.probe["lastRun"]["reason"]) == (number, "WrongRun")
    assert node.status["verdict"] == "pass"


def test_two_pods_of_a_roll_out_both_speak_for_the_node(node: Watched) -> None:
    """The old one writes until it ends; each reading counts once, whichever pod wrote it."""
    new = WatchPod(node.cluster)
    assert [node.after(BAD, pod=pod) for pod in (node.pod, new)] == [[], ["p2p"]]
    assert node.runs == 3
    node.cluster.remove(PODS, node.pod.name)
    node.catch_up(granted=False)
    node.after(BAD, pod=new)
    assert node.runs == 4


def test_a_reading_that_was_cut_off_by_sigterm_says_nothing_of_the_node(node: Watched) -> None:
    asked = Problem(kind=ProblemKind.TERMINATED, call="", message="SIGTERM")
    node.reports(replace(saying(BAD), problem=asked))
    assert (node.runs, node.probe["lastRun"]["reason"], node.probe["verdict"]) == (2, "Terminated", "pass")


def test_a_document_that_cannot_be_read_is_a_failed_run_once(node: Watched) -> None:
    node.pod.writes("{}")
    node.catch_up()
    node.catch_up(granted=False)
    assert (node.runs, node.probe["lastRun"]["reason"]) == (2, "ResultUnreadable")


def test_a_health_pod_reads_the_node_if_the_container_brings_nothing() -> None:
    node = Watched()
    assert node.wait() == START_GRACE
    node.after()
    assert node.wait() == pytest.approx(1.1 * INTERVAL + START_GRACE)
    node.catch_up()
    assert [pod["metadata"]["labels"][names.POD_PROBE] for pod in node.run_pods] == ["health"]


def test_a_run_that_is_asked_for_is_a_pod_at_once(node: Watched) -> None:
    """What the container writes once the pod is made answers the request too: the pod is ended."""
    node.request()
    node.after(later=0.0)
    assert (len(node.run_pods), node.runs) == (1, 2)
    node.start_health_pod()
    node.after("gpu-lost=b")
    assert (node.runs, node.taints) == (3, ["gpu-lost"])
    [pod] = node.run_pods
    assert "deletionTimestamp" in pod["metadata"]
    node.cluster.remove(PODS, pod["metadata"]["name"])
    node.catch_up()
    assert (node.run_pods, node.runs) == ([], 3)


def test_a_reading_that_may_be_older_than_a_request_answers_none(node: Watched) -> None:
    """The operator was away: a list does not say when a reading came, so another pod is made."""
    node.request()
    node.catch_up()
    first = node.start_health_pod()
    node.write(saying("gpu-lost=b"))
    node.resume()
    assert (node.runs, node.taints) == (2, ["gpu-lost"])
    node.cluster.remove(PODS, first)
    node.catch_up()
    assert len(node.run_pods) == 1


@pytest.mark.parametrize("path", [ADMISSION, BINDINGS], ids=["policy", "binding"])
def test_what_was_written_while_anybody_could_write_says_nothing(node: Watched, path: str) -> None:
    """The protection was made again: only a pod counts that came after that, for its token is new."""
    [protection] = node.cluster.objects[path].values()
    protection["metadata"]["uid"] = "made-again"
    drive(node.reconciler.trust.look(on_change=lambda: None))
    assert (node.after("gpu-lost=b"), node.runs) == ([], 1)
    node.keep_watch_sets()
    assert (node.after("gpu-lost=b", pod=WatchPod(node.cluster)), node.runs) == (["gpu-lost"], 2)


@pytest.mark.parametrize("ahead", [-20_000.0, -600.0, 0.0, 600.0, 20_000.0])
def test_a_node_whose_clock_is_wrong_is_judged_like_any_other(ahead: float) -> None:
    """What a health pod read before hides no later reading, nor is it undone by an earlier one."""
    node = Watched()
    node.cluster.pass_time(4 * HOUR)
    node.after()
    node.cluster.pass_time(4 * HOUR)
    assert node.end_health_pod(node.begin_health_pod(), ahead=ahead) == 2
    assert [node.reports(saying(BAD), ahead=ahead) for _ in range(2)] == [[], ["p2p"]]
    assert node.end_health_pod(node.begin_health_pod(), ahead=ahead) == 5
    node.cluster.pass_time(30)
    node.catch_up(granted=False)
    assert (node.runs, node.status["rawVerdict"]) == (5, "pass")


def test_a_reading_of_an_earlier_boot_is_not_one_of_this_boot(node: Watched) -> None:
    node.write(saying("gpu-lost=b"))
    node.cluster.change(NODES, "node-1", {"status": {"nodeInfo": {"bootID": "boot-2"}}})
    node.catch_up(granted=False)
    assert (node.runs, node.taints) == (1, [])
    node.after()
    assert node.runs == 2


def test_an_old_report_says_nothing() -> None:
    """An operator that was away for longer than an interval leaves it to the next."""
    node = Watched()
    node.pod.reports(saying(BAD))
    node.cluster.pass_time(INTERVAL + 1)
    node.resume(granted=False)
    assert node.runs == 0


def test_a_new_operator_makes_no_pod_before_it_knows_what_containers_reported(node: Watched) -> None:
    node.pod.reports(saying(""), later=2 * INTERVAL)
    node.restart()
    node.catch_up()
    assert node.run_pods == []
    node.keep_watch_sets()
    node.catch_up()
    assert (node.runs, node.run_pods) == (2, [])


def refuse_daemonsets(node: Watched) -> None:
    """Quota, webhook or rights refuse every one."""
    node.client.refuse = lambda verb, path: (
        Forbidden("no", status=403) if (verb, "daemonsets" in path) == ("PATCH", True) else None
    )


@pytest.mark.parametrize("was_there", [False, True], ids=["never made", "deleted, and not made again"])
def test_without_a_daemonset_health_pods_read_the_nodes_as_in_mode_periodic(was_there: bool) -> None:
    node, waits = Watched(), []
    node.cluster.objects[DAEMONSETS].clear()
    if not was_there:
        node.restart()
    refuse_daemonsets(node)
    node.keep_watch_sets()
    for _ in range(3):
        waits.append(node.wait())
        node.catch_up()
        node.end_run()
        node.end_run()
    assert waits == [START_GRACE, 900, 900]


def test_a_daemonset_that_is_known_stays_known_if_the_api_server_answers_nothing(node: Watched) -> None:
    """Neither the list nor the apply: its containers speak for their nodes as before."""
    node.client.refuse = lambda _, path: Forbidden("no", status=403) if "daemonsets" in path else None
    node.keep_watch_sets()
    node.cluster.pass_time(HOUR)
    node.keep_watch_sets()
    node.catch_up()
    assert node.run_pods == []


def refused(*, owner: str | None = "") -> Watched:
    """A node whose container reported an hour ago, and a new operator whose every DaemonSet is refused; it
    finds that of its policy (`owner`: of another one), or none."""
    node = watched_once()
    ((name, made),) = node.cluster.objects[DAEMONSETS].items()
    if owner is None:
        node.cluster.objects[DAEMONSETS].clear()
    elif owner:
        [policy] = made["metadata"]["ownerReferences"]
        references = {"ownerReferences": [policy | {"uid": owner}]}
        node.cluster.change(DAEMONSETS, name, {"metadata": references})
    node.cluster.pass_time(HOUR)
    node.restart()
    refuse_daemonsets(node)
    return node


def keep(node: Watched, *, later: float = 0.0) -> int:
    """Apply the DaemonSets so much later, and look at the node; how often every node was woken."""
    wakes: list[float] = []
    node.cluster.pass_time(later)
    drive(node.reconciler.watch_sets.keep(on_change=lambda: wakes.append(later)))
    node.catch_up()
    return len(wakes)


def test_a_daemonset_that_is_refused_for_a_moment_costs_no_pod() -> None:
    node = refused(owner=None)
    assert [keep(node), keep(node, later=START_GRACE - 1)] == [1, 0]
    node.heal()
    assert keep(node) == 1
    WatchPod(node.cluster)
    refuse_daemonsets(node)
    assert (keep(node, later=HOUR), node.run_pods) == (0, [])


@pytest.mark.parametrize(
    ("owner", "pods"),
    [(None, 1), ("another-uid", 1), ("", 0)],
    ids=["none is there", "another policy's", "its own, which goes on"],
)
def test_pods_read_the_nodes_once_a_daemonset_is_no_longer_waited_for(owner: str | None, pods: int) -> None:
    """Their own timers are those of mode Watch, hours later, so that every node is woken."""
    node = refused(owner=owner)
    assert [keep(node), keep(node, later=START_GRACE), len(node.run_pods)] == [1, pods, pods]


def test_a_document_that_was_judged_is_not_kept(node: Watched) -> None:
    """It is most of what the operator would keep; a new reading brings a new one, and a list none again."""

    def kept() -> str:
        return node.cache.readings["node-1"].parts[names.PROBE_HEALTH].text

    node.catch_up(granted=False)
    assert (node.runs, kept()) == (1, "")
    node.inbox.clear()
    node.list()
    node.catch_up(granted=False)
    assert (node.runs, kept()) == (1, "")
    node.write(saying(BAD))
    node.deliver()
    assert kept() != ""
    for restarted in (False, True):
        if restarted:
            node.restart()
            node.keep_watch_sets()
        node.catch_up(granted=False)
        node.catch_up(granted=False)
        assert (node.runs, kept()) == (2, "")


@pytest.mark.parametrize("pod_goes", [False, True], ids=["its pod runs", "its pod is gone"])
def test_a_deleted_report_is_made_anew_from_the_reading(node: Watched, pod_goes: bool) -> None:
    node.after(BAD)
    node.cluster.remove(REPORTS, "node-1")
    if pod_goes:
        node.cluster.remove(PODS, node.pod.name)
    node.catch_up()
    assert (node.runs, node.run_pods, node.probe["verdict"]) == (1, [], "fail")


def test_a_reading_that_went_with_the_report_is_missed_by_nobody(node: Watched) -> None:
    node.cluster.remove(REPORTS, "node-1")
    node.cluster.remove(READINGS, "node-1")
    node.inbox = [event for event in node.inbox if event[0] != READINGS]
    node.catch_up(granted=False)
    assert node.runs == 0
    node.after()
    assert node.runs == 1
