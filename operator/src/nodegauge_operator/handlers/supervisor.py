"""Keep kopf running: an outage of any length and kind is waited out, never the end of the process.

kopf gives up when a request has failed a few times, when credentials are refused twice, and when a resource
that it watches is gone (404); it also ends at a watch event that it cannot read.  Each of these ends all its
watches.  Here it is started anew, once the API server serves our CRDs again.  While it runs, a small call at
an interval notices what kopf does not report: connections that hang, and a CRD that was deleted.

kopf may not scan for resources: when a CRD comes back it sometimes misses that.

The storages for kopf keep nothing: each watch event is handled by itself.  kopf builds the "essence" of an
object at every event, by copying it deeply several times, even if nothing asks for a difference: for nodes
of 20 KB that was a third of the operator's CPU time.  Storages that keep nothing also cannot write
annotations.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import kopf
from kopf._cogs.structs.references import Insights
from kopf._core.reactor.inventory import ResourceMemories, ResourceMemory
from msgspec.structs import asdict

from nodegauge_operator import names
from nodegauge_operator.core import device_rule
from nodegauge_operator.handlers import watches
from nodegauge_operator.kube import device_rules, slices
from nodegauge_operator.kube.client import CALL_TIMEOUT, LIST_TIMEOUT, Client, access
from nodegauge_operator.kube.errors import KubeError, NotFound, Refused, Unavailable
from nodegauge_operator.kube.tokens import nodeless
from nodegauge_operator.kube.workloads import missing, missing_crds
from nodegauge_operator.reconcile.resync import SHORTEST, Jitter, backoff
from nodegauge_operator.reconcile.sweep import Sweep
from nodegauge_operator.settings import Settings

log = logging.getLogger("nodegauge.watches")

START_SECONDS = 20.0
"""How long CRDs may be missing at the start: Helm creates them moments before the operator."""
LOOK_SECONDS = 15.0
"""How often the API server is asked whether it serves our CRDs."""
STEADY_SECONDS = 30.0
"""kopf has recovered once it ran for so long, which is longer than its own tries of a request take."""
RETRIES = (1.0, 2.0, 4.0, 8.0)
"""Seconds between kopf's tries of one request."""
STREAMS = ("watcher for ", "pause-waiter for ")
"""How the names of kopf's tasks begin that stream events."""
END_SECONDS = 5.0
"""How long kopf may take to end its watches by itself."""
MOST_CANCELLATIONS, CANCEL_SECONDS = 20, 0.1
"""Chosen by this project: two seconds in all."""
WATCHED = frozenset(
    {"nodes", "pods", "daemonsets", names.POLICY_PLURAL, names.REPORT_PLURAL, names.READING_PLURAL}
)


class Supervisor:
    """Runs until `stop`.  `signals` is called after each start of kopf, which sets signal handlers itself."""

    def __init__(
        self,
        *,
        client: Client,
        sweep: Sweep,
        settings: Settings,
        environ: Mapping[str, str],
        signals: Callable[[], None] = lambda: None,
        jitter: Jitter = random.random,
    ) -> None:
        self.down = ""
        """Why the watches do not run; empty while they do."""
        self._client = client
        self._sweep = sweep
        self._settings = settings
        self._environ = environ
        self._slices = False
        """Whether ResourceSlices are watched."""
        self._rules = ""
        """The API version in which DeviceTaintRules are watched; empty while they are not."""
        self._crds = names.CRD_NAMES + ((names.CHASSIS_CRD,) if settings.bmc else ())
        self._signals = signals
        self._jitter = jitter
        self._stop = asyncio.Event()
        self._kopf_stop = asyncio.Event()
        self._ended = 0
        """How often in a row kopf ended before it was steady."""

    def stop(self) -> None:
        """End soon, and with it `run`."""
        self._stop.set()
        self._kopf_stop.set()

    async def run(self) -> None:
        """Watch until `stop`.  Raises `KubeError` if our CRDs are not there at the start, or the API server
        is too old."""
        asyncio.get_running_loop().set_exception_handler(_without_tasks_of_kopf)
        await self._until_served(at_most=START_SECONDS)
        with contextlib.suppress(Unavailable):  # it has just answered; what follows waits for it
            if why := await nodeless(self._client):
                raise Refused(why)
        self.down = ""
        while not self._stop.is_set():
            why = await self._watch()
            if self._stop.is_set():
                return
            self.down = why
            self._client.outage.waiting(f"the watches ended: {why}")
            await self._pause(backoff(self._ended, self._jitter))
            self._ended += 1
            await self._until_served()

    async def _until_served(self, *, at_most: float = float("inf")) -> None:
        """Wait until the API server answers and serves our CRDs; `NotFound` if it answers without them."""
        give_up_at: float | None = None
        while (error := await self._hindrance()) and not self._stop.is_set():
            if isinstance(error, NotFound):
                give_up_at = give_up_at or time.monotonic() + at_most
                if time.monotonic() >= give_up_at:
                    raise error
            self.down = str(error)
            await self._pause(SHORTEST)

    async def _hindrance(self) -> KubeError | None:
        """Why nothing can be watched: `NotFound` if it is the CRDs; None if everything can."""
        try:
            crds = await missing_crds(self._client, self._crds)
        except KubeError as error:
            self._client.outage.waiting(str(error))
            return error
        if not crds:
            return None
        self._client.outage.waiting(missing(crds))
        return NotFound(missing(crds), status=404)

    async def _watch(self) -> str:
        """Run kopf until it ends, or cannot go on; why, in words."""
        self._kopf_stop = asyncio.Event()  # set at the end: kopf leaves a task that waits for it
        insights = Insights()
        self._slices = await slices.served(self._client)
        self._rules = await device_rules.listable(self._client)
        registry = registry_of(
            self._sweep,
            environ=self._environ,
            bmc=self._settings.bmc,
            slices=self._slices,
            rules=self._rules,
        )
        tasks = await kopf.spawn_tasks(
            registry=registry,
            settings=kopf_settings(self._settings),
            insights=insights,
            standalone=True,
            namespaces=[self._settings.probe.namespace],
            stop_flag=self._kopf_stop,
            memo=_NoMemo(),
            memories=NoMemories(),
        )
        self._signals()
        running = asyncio.create_task(kopf.run_tasks(tasks, ignored=_EveryTask()), name="kopf")
        looking = asyncio.create_task(self._until_unfit(insights), name="look after kopf")
        await asyncio.wait({running, looking}, return_when=asyncio.FIRST_COMPLETED)
        self._kopf_stop.set()
        looking.cancel()
        await asyncio.wait({running}, timeout=END_SECONDS)
        await _end_streams()
        error, why = await asyncio.gather(running, looking, return_exceptions=True)
        if isinstance(why, Exception):
            raise why
        log.debug("kopf ended", exc_info=error)
        cause = error and (error.__cause__ or error)
        return why if isinstance(why, str) else f"{type(cause).__name__}: {cause}"[:300]

    async def _until_unfit(self, insights: Insights) -> str:
        """Look after kopf until it watches what is no longer there, or does not watch all that is; why."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await insights.ready_resources.wait()
        began, failed = time.monotonic(), False
        while True:
            absent = self._watched() - {resource.plural for resource in insights.watched_resources}
            if insights.ready_resources.is_set() and absent:
                return f"not served yet: {', '.join(sorted(absent))}"
            await asyncio.sleep(LOOK_SECONDS)
            if self._sweep.cache.slices_served not in (None, self._slices):
                return f"{names.SLICE_PLURAL} are {'no longer ' if self._slices else ''}served"
            if self._sweep.listed and self._sweep.cache.rules_api != self._rules:
                return f"{device_rule.PLURAL} are served as {self._sweep.cache.rules_api or 'nothing'}"
            error = await self._hindrance()
            if isinstance(error, NotFound):
                return str(error)
            failed = failed or error is not None
            if error is None and time.monotonic() >= began + STEADY_SECONDS:
                if failed or self.down:
                    self._sweep.interrupted()
                failed, self.down, self._ended = False, "", 0

    def _watched(self) -> frozenset[str]:
        chassis = {names.CHASSIS_PLURAL} if self._settings.bmc else set()
        rules = {device_rule.PLURAL} if self._rules else set()
        return WATCHED | chassis | rules | ({names.SLICE_PLURAL} if self._slices else set())

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()


def _without_tasks_of_kopf(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Errors that asyncio finds in tasks which nobody awaited.

    kopf leaves such tasks when its watches end, and why they ended is logged already.
    """
    error = context.get("exception")
    frames = traceback.walk_tb(error.__traceback__ if isinstance(error, BaseException) else None)
    if any(frame.f_globals.get("__name__", "").startswith("kopf.") for frame, _ in frames):
        log.debug("kopf left a task: %s", error)
    else:
        loop.default_exception_handler(context)


def registry_of(
    sweep: Sweep,
    *,
    environ: Mapping[str, str],
    bmc: bool = False,
    slices: bool = False,
    rules: str = "",
) -> kopf.OperatorRegistry:
    """All handlers, bound to one sweep."""
    registry = kopf.OperatorRegistry()
    watches.register(registry, sweep, bmc=bmc, slices=slices, rules=rules)

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        """The same access as our own client's; asked again when the token has expired."""
        return kopf.ConnectionInfo(**asdict(await access(environ=environ)))

    return registry


def kopf_settings(settings: Settings) -> kopf.OperatorSettings:
    """Settings measured at 5,000 nodes of 20 KB: small pages and short-lived workers save memory."""
    options = kopf.OperatorSettings()
    options.posting.enabled = False
    options.persistence.diffbase_storage = NoDiffBase()
    options.persistence.progress_storage = NoProgress()
    options.watching.server_timeout = 300
    options.watching.chunk_size = 100
    options.networking.error_backoffs = RETRIES
    options.networking.request_timeout = LIST_TIMEOUT
    options.networking.connect_timeout = CALL_TIMEOUT
    # It would kill this process ten minutes after kopf ended, although kopf has been started anew.
    options.process.ultimate_exiting_timeout = None
    # An idle worker of kopf keeps its object's last body, and the next objects wait for a free worker: with
    # 0.1 s the first list of 5,000 nodes took two minutes, with 0.01 s under twenty seconds.
    options.queueing.idle_timeout = 0.01
    options.queueing.worker_limit = 50
    options.scanning.disabled = True
    if settings.node_label_selector:
        options.watching.label_selectors["v1", "nodes"] = settings.node_label_selector
    options.watching.label_selectors["v1", "pods"] = names.POD_PROBE
    options.watching.label_selectors["apps", "v1", "daemonsets"] = names.WATCH_SET
    options.watching.label_selectors[device_rule.PLURAL] = names.DEVICE_RULE
    options.watching.field_selectors[names.SLICE_PLURAL] = f"spec.driver={names.DRA_DRIVER}"
    return options


async def _end_streams() -> None:
    """End what kopf may leave of its watches: it would wait for them, or they would go on beside the next
    ones and hold up the exit.

    One that is cancelled between two streams takes that for the end of its waiter, and goes on (kopf 1.45,
    `streaming_block`): it is cancelled until it has ended.
    """
    for _ in range(MOST_CANCELLATIONS):
        left = [task for task in asyncio.all_tasks() if task.get_name().startswith(STREAMS)]
        if not left:
            return
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=CANCEL_SECONDS)


class _EveryTask(Collection[asyncio.Task[Any]]):
    """kopf ends every task of the loop that began after it, and so ours, unless it is in here."""

    def __contains__(self, _: object) -> bool:
        return True

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(asyncio.all_tasks())

    def __len__(self) -> int:
        return len(asyncio.all_tasks())


class _NoMemo:
    """kopf copies the memo for each object that it sees; this one is empty, so the copies cost nothing."""

    def __copy__(self) -> _NoMemo:
        return self


class NoMemories(ResourceMemories):
    """kopf would keep a kilobyte for each object that it ever saw, for kinds of handlers that we lack."""

    async def recall(
        self,
        raw_body: kopf.RawBody,
        *,
        memobase: Any = None,
        noticed_by_listing: bool = False,
        ephemeral: bool = False,
    ) -> ResourceMemory:
        """A new memory for each event, which nobody keeps."""
        return await super().recall(
            raw_body, memobase=memobase, noticed_by_listing=noticed_by_listing, ephemeral=True
        )


class NoDiffBase(kopf.DiffBaseStorage):
    """Every object looks the same as before: like nothing."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """The essence of any object."""
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        """Never seen before."""
        return None

    def store(self, **_: Any) -> None:
        """Nothing is kept."""


class NoProgress(kopf.ProgressStorage):
    """No handler ever needs a second try."""

    def fetch(self, **_: Any) -> None:
        """No progress is known."""

    def store(self, **_: Any) -> None:
        """Nothing is kept."""

    def purge(self, **_: Any) -> None:
        """Nothing is there."""

    def touch(self, **_: Any) -> None:
        """Nothing is written."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        """Nothing of ours is in it."""
        return essence
