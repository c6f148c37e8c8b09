"""Measure how long jobs wait for GPUs that NCCL runs hold, under DRA and under the device plugin, on a real
control plane with the chart's roles; kubelets only start and end pods."""

import argparse
import asyncio
import contextlib
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import replace

from fleet.load import objects, release
from fleet.load.figures import Rows, latency
from fleet.load.kubelets import ManyClients
from fleet.load.measured import Measured
from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy, parse
from nodegauge_operator.api.report import parse_report
from nodegauge_operator.core.context import Snapshot
from nodegauge_operator.core.devices import slice_view
from nodegauge_operator.core.driver_access import Needs, claim_template
from nodegauge_operator.core.model import ProbeDefaults, node_view
from nodegauge_operator.core.probes.pod import probe_pod
from nodegauge_operator.core.probes.registry import EVERY, KINDS
from nodegauge_operator.kube.client import STRATEGIC
from nodegauge_operator.kube.errors import KubeError, NotFound
from nodegauge_operator.settings import parse as settings_of
from support import dra
from support.cluster_under_test import GROUP
from testbed.binaries import find_or_build
from testbed.controlplane import ControlPlane
from testbed.errors import ApiError, TestbedError
from testbed.hardware.dra import DEVICE_CLASS, template
from testbed.interruption import scratch
from testbed.rest import Object
from testbed.scripted import create_node, stamp
from testbed.table import table
from testbed.wait import Progress

GPUS, NODES, AT_ONCE = 8, 8, 4
END_SECONDS = 0.5
"""How long a run's pod takes from SIGTERM until it is gone."""
LOOK_SECONDS, WITHIN = 0.02, 60.0
JOBS = "/api/v1/namespaces/default/pods"
TEMPLATE = "whole-node"
REPORTS = f"{GROUP}/{names.REPORT_PLURAL}"
POLICY: Object = yaml.safe_load(Path(__file__).with_name("giveway.yaml").read_text("utf-8"))


@dataclass(frozen=True, kw_only=True)
class Way:
    """How runs and jobs ask for GPUs; `priority`: of the jobs, above that of our runs or equal to it."""

    title: str
    dra: bool
    claim: bool
    priority: int


WAYS = (
    Way(title="DRA, by ResourceClaim", dra=True, claim=True, priority=1000),
    Way(title="DRA, by nvidia.com/gpu of a DeviceClass", dra=True, claim=False, priority=1000),
    Way(title="device plugin, higher priority", dra=False, claim=False, priority=1000),
    Way(title="device plugin, equal priority", dra=False, claim=False, priority=-50),
)


class AsShipped(ControlPlane):
    """With the scheduler's own pauses after a failed try, of up to ten seconds."""

    def _write_files(self) -> None:
        super()._write_files()
        path = self.layout.scheduler_config
        shipped = {k: v for k, v in json.loads(path.read_text()).items() if "Backoff" not in k}
        path.write_text(json.dumps(shipped))


class Stage:
    def __init__(self, plane: ControlPlane, client: ManyClients, way: Way) -> None:
        self._plane, self._client, self._way = plane, client, way
        self._nodes = [f"gpu-{number}" for number in range(NODES)]
        self._ending: dict[str, float] = {}
        self._policy: Policy
        self._defaults: ProbeDefaults

    async def run(self, *, jobs: int) -> Rows:
        environment = await asyncio.to_thread(self._install)
        operator = Measured(
            kubeconfig=release.kubeconfig(self._plane),
            namespace=release.NAMESPACE,
            directory=self._plane.directory / "operator",
            environment={**environment, **release.LOCAL},
        )
        kubelets = asyncio.create_task(self._kubelets())
        milliseconds: list[float] = []
        try:
            await operator.begin(frozenset(), within=WITHIN)
            while len(milliseconds) < jobs:
                operator.alive()
                milliseconds += await self._round(min(AT_ONCE, jobs - len(milliseconds)))
            rows = {"Jobs": f"{jobs} of {jobs}"} | latency(milliseconds, of="Bound after")
            operator.finish()
        finally:
            operator.kill()
            kubelets.cancel()
            await asyncio.gather(kubelets, return_exceptions=True)
        return rows

    def _install(self) -> Object:
        environment = dict(release.install(self._plane))
        api = self._plane.rest()
        for name in self._nodes:
            create_node(api, name)
            if self._way.dra:
                dra.publish(api, name)
        if self._way.dra:
            extended = {} if self._way.claim else {"extendedResourceName": names.GPU_RESOURCE}
            spec = DEVICE_CLASS["spec"] | extended
            api.create(f"{dra.GROUP}/deviceclasses", DEVICE_CLASS | {"spec": spec})
            api.create(f"{dra.GROUP}/namespaces/default/resourceclaimtemplates", template(TEMPLATE))
        self._policy = parse(api.create(f"{GROUP}/{names.POLICY_PLURAL}", POLICY))
        self._defaults = settings_of(environment | {"POD_NAMESPACE": release.NAMESPACE}).probe
        if self._way.dra:  # as the operator does once it has seen slices
            own = claim_template(self._defaults, needs=Needs.GPUS)
            with contextlib.suppress(ApiError):
                api.create(f"{dra.GROUP}/namespaces/{release.NAMESPACE}/resourceclaimtemplates", own)
        return environment

    async def _round(self, count: int) -> list[float]:
        """Every node is held by a run; so many jobs come, and as many runs end, without a trace."""
        runs = {name: await self._hold(name) for name in self._nodes}
        await self._until(self._all_bound, release.PODS, set(runs.values()))
        started, bound = {}, dict[str, float]()
        for number in range(count):
            name = f"job-{number}"
            started[name] = time.monotonic()
            await self._client.call("POST", JOBS, body=self._job(name))
        until = time.monotonic() + WITHIN
        while len(bound) < count:
            for pod in (await self._client.call("GET", JOBS))["items"]:
                if pod["spec"].get("nodeName") and pod["metadata"]["name"] not in bound:
                    bound[pod["metadata"]["name"]] = time.monotonic()
            if time.monotonic() > until:
                raise TestbedError(f"{len(bound)} of {count} jobs were bound in {WITHIN:.0f} s")
            await asyncio.sleep(LOOK_SECONDS)
        await self._expect_no_trace(runs, ended=count)
        for name in started:
            await self._client.call("DELETE", f"{JOBS}/{name}", body={"gracePeriodSeconds": 0})
        await self._until(self._gone, JOBS, set(started))
        return [1000 * (bound[name] - started[name]) for name in started]

    async def _hold(self, name: str) -> str:
        """The pod of the node's next NCCL run, made as the operator makes it; one that goes on is kept."""
        until = time.monotonic() + WITHIN
        while True:
            try:
                report = parse_report(await self._client.call("GET", f"{REPORTS}/{name}"))
                break
            except NotFound:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(LOOK_SECONDS)
        node = node_view(await self._client.call("GET", f"/api/v1/nodes/{name}"))
        if self._way.dra and (listed := slice_view(dra.slice_body(name))):
            node = replace(node, devices=listed.devices)
        context = Snapshot(
            node=node,
            policy=self._policy,
            report=report,
            now=time.time(),
            defaults=self._defaults,
            kinds=EVERY,
        ).context
        assert context is not None
        pod = probe_pod(context, KINDS[names.PROBE_NCCL], context.next_run(names.PROBE_NCCL))
        try:
            await self._client.call("GET", f"{release.PODS}/{pod['metadata']['name']}")
        except NotFound:
            with self._client.speaking(self._plane.service_account_token(release.NAMESPACE, release.RELEASE)):
                await self._client.call("POST", release.PODS, body=pod)
        return str(pod["metadata"]["name"])

    def _ask(self, spec: Object) -> None:
        """The container asks for all GPUs, in this way."""
        [container] = spec["containers"]
        if self._way.claim:
            container["resources"] = {"claims": [{"name": "gpus"}]}
            spec["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": TEMPLATE}]
        else:
            container["resources"] = {"limits": {names.GPU_RESOURCE: str(GPUS)}}

    def _job(self, name: str) -> Object:
        spec: Object = {"containers": [{"name": "job", "image": "example.com/job:1"}]}
        spec["terminationGracePeriodSeconds"] = 0
        if self._way.priority < 0:
            spec["priorityClassName"] = f"{release.RELEASE}-nccl"
        else:
            spec["priorityClassName"] = "system-cluster-critical"
        self._ask(spec)
        return {"metadata": {"name": name}, "spec": spec}

    async def _expect_no_trace(self, runs: dict[str, str], *, ended: int) -> None:
        """As few runs ended as there are jobs, as skipped; neither a verdict nor a pod is left of them."""
        until = time.monotonic() + WITHIN
        while True:
            pods = {p["metadata"]["name"] for p in (await self._client.call("GET", release.PODS))["items"]}
            gone = {node: run for node, run in runs.items() if run not in pods}
            last = {node: await self._last_run(node) for node in gone}
            if len(gone) == ended and all(last.values()):
                break
            if time.monotonic() > until:
                raise TestbedError(f"{len(gone)} runs ended for {ended} jobs: {last}")
            await asyncio.sleep(5 * LOOK_SECONDS)
        wrong = {node: run for node, run in last.items() if run != ("skipped", "Preempted", "unknown")}
        if wrong:
            raise TestbedError(f"runs that ended otherwise: {wrong}")

    async def _last_run(self, node: str) -> tuple[str, str, str] | None:
        status = parse_report(await self._client.call("GET", f"{REPORTS}/{node}")).status
        probe = status.probe[names.PROBE_NCCL]
        run = probe.last_run
        return (run.outcome.value, run.reason, probe.verdict.value) if run else None

    async def _kubelets(self) -> None:
        """Start each pod that is bound, and end each that is deleted."""
        while True:
            for path in (release.PODS, JOBS):
                for pod in (await self._client.call("GET", path))["items"]:
                    if pod["spec"].get("nodeName"):
                        await self._keep(f"{path}/{pod['metadata']['name']}", pod)
            await asyncio.sleep(LOOK_SECONDS)

    async def _keep(self, path: str, pod: Object) -> None:
        metadata = pod["metadata"]
        if metadata.get("deletionTimestamp"):
            if time.monotonic() - self._ending.setdefault(metadata["uid"], time.monotonic()) >= END_SECONDS:
                with_uid = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
                await self._client.call("DELETE", path, body=with_uid)
        elif pod["status"].get("phase") == "Pending" and names.PROBE_HEALTH not in metadata["name"]:
            [container] = pod["spec"]["containers"]
            status = {"status": objects.running(stamp(), container=container["name"])}
            await self._client.call("PATCH", f"{path}/status", body=status, content_type=STRATEGIC)

    async def _until(self, holds: Any, path: str, wanted: set[str]) -> None:
        until = time.monotonic() + WITHIN
        while not holds((await self._client.call("GET", path))["items"], wanted):
            if time.monotonic() > until:
                raise TestbedError(f"not so within {WITHIN:.0f} s: {holds.__name__} {sorted(wanted)}")
            await asyncio.sleep(LOOK_SECONDS)

    @staticmethod
    def _all_bound(pods: Sequence[Object], wanted: set[str]) -> bool:
        return wanted <= {p["metadata"]["name"] for p in pods if p["status"].get("phase") == "Running"}

    @staticmethod
    def _gone(pods: Sequence[Object], unwanted: set[str]) -> bool:
        return not unwanted & {p["metadata"]["name"] for p in pods}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=100, help="jobs in each way; default: 100")
    parser.add_argument("--way", type=int, choices=range(len(WAYS)), help="only this one of the four")


def run_scenario(chosen: argparse.Namespace) -> int:
    clock, result = Progress(), dict[str, Rows]()
    find_or_build(progress=clock.say)

    async def measure(plane: ControlPlane, way: Way) -> Rows:
        async with ManyClients.of(plane) as client:
            return await Stage(plane, client, way).run(jobs=chosen.jobs)

    with scratch("giveway") as directory:
        for number, way in enumerate(WAYS):
            if chosen.way in (None, number):
                clock.say(f"{way.title}: {chosen.jobs} jobs, {AT_ONCE} at a time, {NODES} nodes held by runs")
                try:
                    with AsShipped(Path(directory) / str(number)) as plane:
                        result[way.title] = asyncio.run(measure(plane, way))
                except KubeError as error:
                    raise TestbedError(str(error)) from error
                clock.say(str(result[way.title]))
                shutil.rmtree(plane.directory, ignore_errors=True)
    labels = next(iter(result.values()))
    print(table([["", *labels], *([title, *rows.values()] for title, rows in result.items())]))
    print("Absolute numbers are of this machine, and of what else it did meanwhile.")
    return 0
