"""From "nobody reads this node any more" to a person's alert, for each cause in docs/monitoring.md.

The operator runs in virtual time; what it serves each minute goes through the chart's rules in promtool.  The
page says the minute in which the alert fires: a scrape and an evaluation a minute are in it.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Problem, ProblemKind
from nodegauge_operator import names
from nodegauge_operator.core.probes.watch import ALIVE_SECONDS, ASKED_EVERY
from nodegauge_operator.kube.errors import Forbidden
from nodegauge_operator.kube.leases import PATH as LEASES
from nodegauge_probes.watch.outbox import REHEARSED_S
from support.api_server import ADMISSION, DAEMONSETS, EVENTS, NODES, PODS, POLICIES, REPORTS
from support.calm_fleet import CalmFleet
from support.chart import ROOT, Helm, of_kind
from support.judging import listening
from support.objects import NOW
from support.promtool import Promtool, Series, scraped
from support.virtual_operator import VirtualTimeOperator, play, refusing

LONGEST, BEFORE, AFTER = 10, 3, 12
"""Minutes that a person may wait; those of a calm fleet before, and those that are looked at."""
MONITOR_GRACE = 50.0
"""Seconds until the control plane calls a silent node not ready (kube-controller-manager's default)."""
ROUND_AND_HANG = 140.0
"""Seconds in which the container makes every call of eight GPUs, and until one counts as hung
(docs/watch-mode.md)."""
DENIED = Forbidden("denied", status=403)
HUNG = replace(
    made.titan(),
    gpus=[],
    problem=Problem(kind=ProblemKind.CALL_HUNG, call="nvmlDeviceGetPowerUsage", message="hangs"),
)
ENDED = {"startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z"}
NODE, SET = "node-0", "nodegauge-watch-default"
Cause = Callable[[CalmFleet], Awaitable[object]]


async def no_image(fleet: CalmFleet) -> None:
    fleet.replace(NODE, state={"waiting": {"reason": "ImagePullBackOff"}})


async def no_pod(fleet: CalmFleet) -> None:
    fleet.cluster.remove(PODS, fleet._containers[NODE].name)


async def set_deleted(fleet: CalmFleet) -> None:
    """No controller makes pods of the one that takes its place."""
    fleet.cluster.remove(DAEMONSETS, SET)


async def set_patched(fleet: CalmFleet) -> None:
    while True:
        patch = {"spec": {"template": {"spec": {"nodeSelector": {"no": "where"}}}}}
        fleet.cluster.change(DAEMONSETS, SET, patch)
        await fleet.operator.after(5)


async def set_foreign(fleet: CalmFleet) -> None:
    fleet.operator.client.refuse = refusing(DENIED, "PATCH", DAEMONSETS)
    fleet.cluster.remove(DAEMONSETS, SET)
    fleet.cluster.create(DAEMONSETS, {"metadata": {"name": SET}, "spec": {}})


async def restarts(fleet: CalmFleet) -> None:
    """It wrote before, so that it is ready whenever it runs: for a second; a kubelet waits 10 s, 20 s ..."""
    for count in range(1, 9):
        last = {"restartCount": count, "lastState": {"terminated": ENDED}}
        waits = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}
        fleet._containers[NODE].becomes(ready=False, **last, **waits)
        await fleet.operator.after(min(300.0, 10.0 * 2 ** (count - 1)))
        fleet._containers[NODE].becomes(ready=True, **last)
        await fleet.operator.after(1)


async def never_written(fleet: CalmFleet) -> None:
    fleet.replace(NODE)


async def refused_since(fleet: CalmFleet) -> None:
    """The next rehearsal is refused, the file grows old, and the kubelet asks."""
    await fleet.operator.after(REHEARSED_S + ALIVE_SECONDS + ASKED_EVERY)
    fleet._containers[NODE].becomes(ready=False)


async def not_judged(fleet: CalmFleet) -> None:
    reconciler = fleet.operator.sweep._reconciler
    reconcile = reconciler.reconcile

    async def failing(name: str, **how: Any) -> Any:
        if name == NODE:
            raise ValueError("a bug")
        return await reconcile(name, **how)

    reconciler.reconcile = failing  # type: ignore[method-assign]
    fleet._containers[NODE].reports(made.titan(), later=0.0)


async def unprotected(fleet: CalmFleet) -> None:
    for name in list(fleet.cluster.objects[ADMISSION]):
        fleet.cluster.remove(ADMISSION, name)


async def call_hangs(fleet: CalmFleet) -> None:
    await fleet.operator.after(ROUND_AND_HANG)
    fleet.cluster.results[NODE] = HUNG
    fleet._containers[NODE].reports(HUNG, later=0.0)


async def kubelet_dead(fleet: CalmFleet) -> None:
    await fleet.operator.after(MONITOR_GRACE)
    fleet.cluster.change(NODES, NODE, {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}})


async def operator_gone(fleet: CalmFleet) -> None:
    await fleet.operator.stop()
    fleet.operator.metrics = None  # type: ignore[assignment]


async def loop_stands(fleet: CalmFleet) -> None:
    fleet.operator.sweep._pass = asyncio.Event().wait  # type: ignore[method-assign,assignment]


async def lease_taken(fleet: CalmFleet) -> None:
    fleet.cluster.change(LEASES, names.LEASE, {"spec": {"holderIdentity": "other/other"}})
    while True:
        await fleet.operator.after(5)
        fleet.cluster.change(LEASES, names.LEASE, {"spec": {"renewTime": str(fleet.operator.loop.time())}})


async def api_away(fleet: CalmFleet) -> None:
    fleet.operator.cut_off()


async def report_refused(fleet: CalmFleet) -> None:
    fleet.operator.client.refuse = refusing(DENIED, "PATCH", REPORTS)
    fleet._containers[NODE].reports(HUNG, later=0.0)


async def pods_refused(fleet: CalmFleet) -> None:
    fleet.operator.client.refuse = refusing(DENIED, "POST", PODS)
    fleet.edit({"spec": {"probes": {"health": {"mode": "Periodic", "interval": "1m", "deadline": "30s"}}}})


CAUSES: tuple[Cause, ...] = (
    *(no_image, no_pod, set_deleted, set_patched, set_foreign, restarts, never_written, refused_since),
    *(not_judged, unprotected, call_hangs, kubelet_dead, operator_gone, loop_stands, lease_taken, api_away),
    *(report_refused, pods_refused),
)
ROW = re.compile(r"^\| (.+?) \| (.+?) \| `(Nodegauge\w+)` \| (\d+) min \|$", re.MULTILINE)
ROWS = ROW.findall((ROOT / "docs/monitoring.md").read_text("utf-8"))


def served(operator: VirtualTimeOperator, *, began: float) -> dict[str, str]:
    """What a scrape finds now; Prometheus' time begins at `began`."""
    if operator.metrics is None:
        return {}
    result = {}
    for metric in operator.metrics.registry.collect():
        for one in metric.samples:
            if one.name.startswith("nodegauge_") and not one.name.endswith(("_bucket", "_created")):
                labels = ",".join(f'{key}="{value}"' for key, value in sorted(one.labels.items()))
                since = NOW + began if one.name.endswith("_timestamp_seconds") else 0.0
                result[f"{one.name}{{{labels}}}"] = f"{one.value - since:g}"
    return result


def recorded(cause: Cause) -> tuple[Series, str]:
    """The series around a cause, a sample a minute, and what policy, node and events say in the end."""
    scrapes: list[dict[str, str]] = []
    text = ""

    async def story(operator: VirtualTimeOperator) -> None:
        nonlocal text
        operator.metrics.ready.set_function(lambda: not operator.sweep.not_ready())
        fleet = CalmFleet(operator)
        await fleet.begin(3)
        began = operator.loop.time()
        for minute in range(BEFORE + AFTER):
            scrapes.append(served(operator, began=began))
            if minute == BEFORE:
                task = asyncio.create_task(cause(fleet))  # type: ignore[arg-type]
            await asyncio.sleep(60)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        objects = fleet.cluster.objects
        text = str([objects[POLICIES]["default"]["status"], objects[NODES][NODE]["status"], objects[EVENTS]])

    with listening():
        play(story)
    every = {name for scrape in scrapes for name in scrape}
    return {name: [scrape.get(name, "_") for scrape in scrapes] for name in sorted(every)}, text


@pytest.fixture(scope="module")
def groups(helm: Helm) -> list[dict[str, Any]]:
    values = {"metrics": {"prometheusRule": {"enabled": True}}}
    return [g for o in of_kind(helm.objects(values), "PrometheusRule") for g in o["spec"]["groups"]]


def test_the_page_has_every_cause() -> None:
    assert len(ROWS) == len(CAUSES)
    assert all(int(minutes) <= LONGEST for *_, minutes in ROWS)


@pytest.mark.parametrize("number", range(len(CAUSES)), ids=[cause.__name__ for cause in CAUSES])
def test_a_person_hears_of_a_node_that_nobody_reads(
    number: int, groups: list[dict[str, Any]], tmp_path: Path
) -> None:
    """In the minute that the page says, and not before; and somebody gives the reasons that it names."""
    series, text = recorded(CAUSES[number])
    _, says, alert, minutes = ROWS[number]
    for reason in re.findall(r"`([A-Z]\w+)`", says):
        assert reason in text
    firing = f'(count(ALERTS{{alertname="{alert}",alertstate="firing"}}) > bool 0) or vector(0)'
    at = BEFORE + int(minutes)
    expected = {(firing, minute): {"{}": float(minute >= at)} for minute in (BEFORE, at - 1, at)}
    assert Promtool(tmp_path, groups).query(scraped(series), expected) == ""
