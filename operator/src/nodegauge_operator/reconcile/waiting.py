"""Follows the pods that wait for GPUs: which of our runs end for them, and where none starts (ADR 0058).

What it keeps is small: of every pod that is not placed a few fields, of all pods of a job one demand.  It
reads pods and claims, and writes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from nodegauge_operator.core.model import NodeView
from nodegauge_operator.core.probes.registry import KINDS
from nodegauge_operator.core.waiting import (
    MOST_DEMANDS,
    ClaimName,
    Demand,
    HoldingRun,
    Sign,
    WaitingPod,
    claimed_gpus,
    demand,
    runs_to_end,
    waiting_pod,
)
from nodegauge_operator.kube import waiting as kube
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import Forbidden, KubeError, NotFound
from nodegauge_operator.reconcile.cache import Cache

log = logging.getLogger("nodegauge.waiting")

RETRY_SECONDS = 12.0
"""Seconds for which a pod has to take what a run has left to it before another one ends.  Chosen by this
project: longer than the scheduler rests after a failed try (at most 10 s by default)."""
LATE_SECONDS = 10.0
"""Seconds after its grace period for which a pod is believed to go.  Chosen by this project: a kubelet that
is well needs one or two."""
LOOK_SECONDS, GATHER_SECONDS, MOST_OF_A_CORE = 1.0, 0.1, 0.2
"""How often it is looked again while somebody waits, without and with news, and how much of a core looking
may take: with 20,000 pods that wait one look takes 0.1 s.  Chosen by this project."""
LIST_AGAIN_SECONDS, REFUSED_SECONDS = 1.0, 30.0
WAY_OUT = "upgrade the chart, which brings the right, or set giveWay.enabled to false"
HOLDERS = tuple(kind.name for kind in KINDS.values() if kind.holds_gpus)


class Waiting:
    """`problem`: why it is not known who waits; empty if it is, or if it is switched off."""

    def __init__(
        self,
        *,
        client: Client,
        cache: Cache,
        gpu_names: Iterable[str],
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self.on_change: Callable[[], None] = lambda: None
        """Called when `take_to_wake` has something to say soon."""
        self.gpu_names = frozenset(gpu_names)
        self.problem = "the pods that wait are not listed yet" if self.gpu_names else ""
        self._refused = dict.fromkeys(("pods", "claims"), "")
        """What the API server says where a right is missing; empty for nothing."""
        self._client = client
        self._cache = cache
        self._clock, self._monotonic = clock, monotonic
        self._listed = not self.gpu_names
        self._current = False
        """A watch is open since the last list."""
        self._pods: dict[str, WaitingPod] = {}
        self._demand_of: dict[str, Demand] = {}
        self._demands: Counter[Demand] = Counter()
        self._claims: dict[str, int] = {}
        """GPUs that a claim asks for, by its key."""
        self._of_claim: dict[str, set[str]] = {}
        """UIDs of the pods that refer to a claim, by its key."""
        self._to_read: dict[str, ClaimName] = {}
        self._unread = asyncio.Event()
        self.ends: dict[str, str] = {}
        """UID of a run's pod to the name of the pod for which it ends."""
        self._served: dict[str, tuple[str, float]] = {}
        """UID of a pod to the node where a run ended for it, and when that was last seen there, monotonic."""
        self._ended_for: set[str] = set()
        """UIDs of pods that wait and for which a run has ended."""
        self._in_vain: set[str] = set()
        """Those of them that something else kept waiting all the same: only a clear sign counts of them, or
        each run would change the scheduler's words, and end."""
        self._held_back: set[str] = set()
        """Nodes where a run was due and could not start."""
        self._dirty, self._freed, self._any_run, self._looked_at = False, False, False, monotonic()
        self._cost = 0.0
        """Seconds that the last look took."""

    def refusal(self) -> str:
        """Which right is missing, and the way out; empty for none."""
        return next(filter(None, self._refused.values()), "")

    def count(self) -> int:
        """Pods of others that wait for GPUs."""
        return len(self._demand_of)

    def keeps_off(self, node: NodeView) -> bool:
        """Whether somebody waits for GPUs that this node could serve, so that no run starts; the node is
        woken when that may have changed.  While nobody knows who waits, only a device plugin's GPUs are held:
        those the scheduler can take back."""
        demands = self._demands
        unreadable = not self._listed or (bool(self.problem) and not node.gpu_capacity)
        waits = unreadable or len(demands) > MOST_DEMANDS or any(d.fits(node) for d in demands)
        if waits:
            self._held_back.add(node.name)
        return waits

    def changed(self) -> None:
        """Somebody waits or no longer does, or a run of ours began or ended."""
        if not self._dirty:
            self._dirty = True
            self.on_change()

    def due_in(self) -> float:
        """Seconds until it is to be looked at; infinity while nothing has changed, and nobody waits or no run
        holds a GPU."""
        if not (self._dirty or (self._demand_of and self._any_run)):
            return float("inf")
        pause = max(GATHER_SECONDS if self._dirty else LOOK_SECONDS, self._cost / MOST_OF_A_CORE)
        return self._looked_at + pause - self._monotonic()

    def look(self) -> set[str]:
        """Decide which runs end; nodes where one ends, or where one may start again."""
        now, woken = self._monotonic(), set[str]()
        self._dirty, self._looked_at = False, now
        if self._freed:
            woken, self._held_back, self._freed = self._held_back, set(), False
        woken |= set(self._decide(now))
        self._cost = self._monotonic() - now
        return woken

    def _decide(self, now: float) -> Iterator[str]:
        """Names of nodes where a run ends from now on."""
        runs = {run.pod.uid: run for run in self._runs()}
        for uid in self.ends.keys() - runs.keys():
            del self.ends[uid]
        waits = self._demand_of.keys()
        holding = {run.node.name for run in runs.values() if not run.late}
        self._served = {
            uid: (node, now if node in holding else at)
            for uid, (node, at) in self._served.items()
            if uid in waits and (node in holding or now < at + RETRY_SECONDS)
        }
        self._any_run = bool(runs)
        if not (runs and self._current):
            return
        sure = (self._pods[uid] for uid in waits)
        waiting = [
            (pod, self._demand_of[pod.uid]) for pod in sure if all(c.key in self._claims for c in pod.claims)
        ]
        served = {uid: node for uid, (node, _) in self._served.items()}
        for uid, pod in runs_to_end(waiting, runs.values(), served=served).items():
            node = runs[uid].node.name
            self._served[pod.uid] = node, now
            self._ended_for.add(pod.uid)
            self.ends[uid] = pod.name
            log.info("node %s: a run ends: pod %s waits for GPUs", node, pod.name, extra={"node": node})
            yield node

    def _runs(self) -> Iterator[HoldingRun]:
        for name in self._cache.nodes_with_pods(*HOLDERS):
            node = self._cache.nodes.get(name)
            for pod in self._cache.pods_of(name) if node is not None else ():
                if pod.probe in HOLDERS and pod.owner_uid and not pod.gone:
                    assert node is not None
                    late = bool(pod.deleting_since) and self._clock() > pod.deleting_since + LATE_SECONDS
                    yield HoldingRun(node=node, pod=pod, ending=pod.uid in self.ends, late=late)

    async def follow(self) -> None:
        """List and watch, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read_claims())
            while True:
                try:
                    since = await self._list()
                    self._current = True
                    while True:
                        async for waits, body in kube.changes(self._client, since=since):
                            since = body["metadata"].get("resourceVersion") or since
                            if body["metadata"].get("uid"):
                                self.put(body, waits=waits)
                except KubeError as error:
                    was_current, self._current = self._current, False
                    await self._failed(error, pause=0.0 if was_current else LIST_AGAIN_SECONDS)

    async def _list(self) -> str:
        seen, version = set(), ""
        async for bodies, at in kube.listed(self._client):
            version = version or at
            for body in bodies:
                seen.add(body["metadata"]["uid"])
                self.put(body)
        for uid in self._pods.keys() - seen:
            self._drop(uid)
        if not self._listed or self.problem:
            self._listed, self.problem, self._freed = True, "", True
            self._refused["pods"] = ""
        self.changed()
        return version

    async def _failed(self, error: KubeError, *, pause: float) -> None:
        """A refusal leaves it to the scheduler who gets GPUs; an outage changes nothing that is known, and
        ends no run.  `pause`: seconds until the next try."""
        refused = isinstance(error, Forbidden | NotFound)
        if refused:
            text = f"it is not known who waits for GPUs, and no run ends for them: {error}; {WAY_OUT}"
            log.log(logging.DEBUG if self.problem == text else logging.WARNING, text)
            self.problem, self._listed, self._freed = text, True, True
            self._refused["pods"] = text
            for uid in list(self._pods):
                self._drop(uid)
            self.changed()
        else:
            log.log(error.log_level, "the watch of pods that wait ended: %s", error)
        await asyncio.sleep(REFUSED_SECONDS if refused else pause)

    def put(self, body: dict[str, Any], *, waits: bool = True) -> None:
        """A pod as it is now; `waits`: it is not placed."""
        uid = body["metadata"]["uid"]
        pod = waiting_pod(body, gpu_names=self.gpu_names) if waits else None
        if pod is None:
            self._drop(uid)
            return
        self._pods[uid] = pod
        if pod.sign is Sign.OTHER and uid in self._ended_for:
            self._in_vain.add(uid)
        for claim in pod.claims:
            self._of_claim.setdefault(claim.key, set()).add(uid)
            if claim.key not in self._claims and claim.name:
                self._to_read[claim.key] = claim
                self._unread.set()
        self._count(uid)

    def _count(self, uid: str) -> None:
        """Take the pod's demand as it is known now."""
        pod, before = self._pods.get(uid), self._demand_of.pop(uid, None)
        vain = pod is not None and uid in self._in_vain and pod.sign is not Sign.DEVICES
        wanted = demand(pod, self._claims) if pod is not None and not vain else None
        if wanted is not None:
            self._demand_of[uid] = wanted
            self._demands[wanted] += 1
        if before is not None:
            self._demands[before] -= 1
            if not self._demands[before]:
                del self._demands[before]
                self._freed = True
        if before is not None or wanted is not None:
            self.changed()

    def _drop(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is None:
            return
        self._ended_for.discard(uid)
        self._in_vain.discard(uid)
        for claim in pod.claims:
            users = self._of_claim.get(claim.key, set())
            users.discard(uid)
            if not users:
                self._of_claim.pop(claim.key, None)
                self._claims.pop(claim.key, None)
                self._to_read.pop(claim.key, None)
        self._count(uid)

    async def _read_claims(self) -> None:
        """Read each claim once that a pod waits for: claims of one template as one."""
        while True:
            await self._unread.wait()
            self._unread.clear()
            while self._to_read:
                key = next(iter(self._to_read))
                claim = self._to_read.pop(key)
                try:
                    body = await kube.claim(self._client, claim)
                except NotFound:
                    continue  # the pod's next event names another one
                except KubeError as error:
                    log.log(error.log_level, "claim %s cannot be read: %s", key, error)
                    if isinstance(error, Forbidden):
                        text = f"no run ends for pods that wait by claim: {error}; {WAY_OUT}"
                        self._refused["claims"] = text
                    self._to_read.setdefault(key, claim)
                    await asyncio.sleep(LIST_AGAIN_SECONDS)
                    continue
                self._claim_read(key, body)

    def _claim_read(self, key: str, body: dict[str, Any]) -> None:
        """One of a template stands for all: whether this one has its devices says nothing of the others."""
        self._refused["claims"] = ""
        of_template = key.startswith("template/")
        if users := self._of_claim.get(key):
            asked = claimed_gpus(body | {"status": {}} if of_template else body, gpu_names=self.gpu_names)
            self._claims[key] = asked
            for uid in users:
                self._count(uid)
