"""One container of one pod: wait for image and configuration, run, restart as the policy says."""

import asyncio
import contextlib
import logging
import os
import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import aiohttp

from testbed.errors import ApiError
from testbed.kubelet import claims, environment, images, status, volumes
from testbed.kubelet.context import NodeContext, pod_address
from testbed.kubelet.errors import ConfigMissing, ContainerWaits, EndedBeforeStart, NotSimulated, StartFailed
from testbed.kubelet.process import ContainerProcess
from testbed.kubelet.status import Record
from testbed.kubelet.volumes import Credentials, token_mounts
from testbed.rest import Object
from testbed.scripted import stamp

log = logging.getLogger(__name__)

VOLUMES = frozenset({"secret", "emptyDir", "projected", "downwardAPI"})
"""Kinds that are written, or whose absence a program can live with."""
CHECKS = ("readinessProbe", "livenessProbe")
PORT_VARIABLE, HOST_VARIABLE = "NODEGAUGE_HTTP_PORT", "NODEGAUGE_HTTP_HOST"
"""Who has the first is told in the second its pod's own loopback address: two operators may serve on 8080."""
MESSAGE_BYTES = 4096
"""Of a termination message, as Kubernetes has it (MaxContainerTerminationMessageLength)."""
CALM_SECONDS = 20.0
"""After so long a container is started again at once: twice the longest back-off, as with a kubelet."""
UNREADY_SECONDS = 1.0
"""Longest period of a readiness check that has not succeeded yet: `helm install --wait` does not sit through
a period of ten."""


class Runner:
    def __init__(
        self,
        spec: Object,
        record: Record,
        *,
        pod: Object,
        node: NodeContext,
        directory: Path,
        credentials: Credentials | None,
        changed: Callable[[], None],
    ) -> None:
        self.spec = spec
        self.record = record
        self._pod = pod
        self._name = f"{pod['metadata']['name']}/{record.name}"
        self._restarts = pod["spec"].get("restartPolicy", "Always") == "Always"
        self._node = node
        self._directory = directory
        self._message_file = directory / "termination-log"
        self._credentials = credentials
        self._changed = changed
        self._process: ContainerProcess | None = None
        self._ending = asyncio.Event()
        self._address = pod_address(pod["metadata"]["uid"])
        self._began = stamp()
        self._env: dict[str, str]
        self._exec_argv: Callable[[list[str]], list[str]]
        """A command's argv in the container that runs."""

    def end(self, number: signal.Signals) -> None:
        """Signal the container, if it runs, and never start it again."""
        self._ending.set()
        if self._process is not None:
            self._process.signal(number)

    async def run(self) -> None:
        attempt = 0
        while not self._ending.is_set():
            try:
                process = await self._launch_when_possible()
            except EndedBeforeStart:
                return
            except StartFailed as error:
                self._rest(code=128, reason="StartError", message=str(error))
            else:
                began = time.monotonic()
                await self._live(process)
                attempt = 0 if time.monotonic() - began >= CALM_SECONDS else attempt
            self._changed()
            if self._ending.is_set() or not self._restarts:
                return
            if attempt:  # the first restart is at once
                self.record.last, pause = self.record.state, backoff(attempt - 1)
                which = f"container={self.record.name} pod={self._pod['metadata']['name']}"
                text = f"back-off {pause:g}s restarting failed {which}"
                await self._waits(status.CRASH_LOOP, text, pause)
                if self._ending.is_set():
                    self.record.state = self.record.last or self.record.state
                    return
            if self.record.ended:
                self.record.last = self.record.state
            self.record.state = status.waiting()
            self.record.restarts += 1
            attempt += 1

    async def _waits(self, reason: str, text: str, seconds: float) -> None:
        if self._ending.is_set():
            return
        self.record.state = status.waiting(reason, text)
        self._changed()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()

    async def _launch_when_possible(self) -> ContainerProcess:
        attempt = 0
        while not self._ending.is_set():
            try:
                return await self._launch()
            except ContainerWaits as error:
                await self._waits(error.reason, str(error), backoff(attempt))
                attempt += 1
        raise EndedBeforeStart

    async def _launch(self) -> ContainerProcess:
        image = images.find(
            self._node.images, self.spec["image"], pull_policy=self.spec.get("imagePullPolicy", "Always")
        )
        refuse_unknown(self._pod, self.spec)
        folder = self._directory.parent
        behind = await volumes.mounted(self.spec, self._pod, self._node, below=folder / "volumes")
        if self._credentials:
            behind |= dict.fromkeys(token_mounts(self._pod, self.spec), self._credentials.directory)
        env = await self._environment(image, behind)
        command, args = (
            [environment.expand(word, env) for word in self.spec.get(key, [])] for key in ("command", "args")
        )
        self._directory.mkdir(parents=True, exist_ok=True)
        self._message_file.write_bytes(b"")
        argv = image.argv(command, [volumes.moved(word, behind) for word in args])
        self._exec_argv = lambda line: image.argv(
            line[:1], [volumes.moved(word, behind) for word in line[1:]]
        )
        self._env = env
        log_file = self._directory / f"{self.record.restarts}.log"
        process = await ContainerProcess.launch(argv=argv, env=env, cwd=folder, log=log_file)
        if not image.stands_in:
            self._node.devices.computes(self._pod["metadata"]["uid"], self.spec, pid=process.pid)
        return process

    async def _environment(self, image: images.Image, behind: dict[str, Path]) -> dict[str, str]:
        metadata, node = self._pod["metadata"], self._node
        home = self._directory.parent / "tmp"
        home.mkdir(parents=True, exist_ok=True)
        env = environment.system_environment(node, hostname=metadata["name"], home=home) | dict(image.env)
        env |= node.devices.allocate(metadata["uid"], self.spec)
        given = await claims.prepare(self._pod, self.spec, node.api)
        own = environment.pod_environment(self.spec, self._pod, node, known=env)
        env |= {name: volumes.moved(value, behind) for name, value in own.items()}
        if PORT_VARIABLE in env:
            env[HOST_VARIABLE] = self._address
        if self._credentials:
            try:
                await self._credentials.write()
            except ApiError as error:
                raise ConfigMissing(f"no token for the pod's service account: {error}") from error
            env["KUBECONFIG"] = str(self._credentials.kubeconfig)
        driver, by_claim = environment.sees_driver(self.spec, self._pod, env), {}
        if node.hardware is not None and node.hardware.devices:  # no runtime class on such a node
            driver = bool(given.devices)
            by_claim = node.devices.claimed(metadata["uid"], self.spec, given) if driver else {}
        hooks = environment.hook_environment(
            node.hardware, driver=driver, env=env, termination_log=self._message_file
        )
        return env | hooks | (by_claim or (node.devices.given(env) if driver else {}))

    async def _live(self, process: ContainerProcess) -> None:
        self._process = process
        self._began = stamp()
        self.record.container_id = f"testbed://{uuid.uuid4().hex}"
        self.record.state = status.running(self._began)
        (self._directory / "pid").write_text(f"{process.pid}\n")
        checks = asyncio.ensure_future(self._check())
        if self._ending.is_set():
            process.signal(signal.SIGKILL)
        self._changed()
        try:
            code = await process.wait()
        finally:
            process.abandon()
            await process.wait()  # also when this is cancelled: who stops a kubelet waits for its containers
            self._process = None
            (self._directory / "pid").unlink(missing_ok=True)
            checks.cancel()
            [ended] = await asyncio.gather(checks, return_exceptions=True)
            if isinstance(ended, Exception):
                log.error("checks of %s broke", self._name, exc_info=ended)
        reason = "Error" if code else "Completed"
        self._rest(code=code, reason=reason, message=last_words(self._message_file))

    def _rest(self, *, code: int, reason: str, message: str) -> None:
        self.record.ready = self.record.started = False
        times = {"startedAt": self._began, "finishedAt": stamp(), "containerID": self.record.container_id}
        self.record.state = status.terminated(code, reason, message, **times)

    async def _check(self) -> None:
        readiness, liveness = (self.spec.get(kind) for kind in CHECKS)
        self.record.started = True
        self._set_ready(not readiness)
        async with asyncio.TaskGroup() as group:
            if readiness:
                group.create_task(self._ask(readiness, self._set_ready, hurry=True))
            if liveness:
                group.create_task(self._ask(liveness, lambda good: None if good else self._unalive()))

    async def _ask(self, check: Object, report: Callable[[bool], None], *, hurry: bool = False) -> None:
        period = float(check.get("periodSeconds") or 10)
        needed = int(check.get("failureThreshold") or 3), int(check.get("successThreshold") or 1)
        await asyncio.sleep(float(check.get("initialDelaySeconds") or 0))
        reported: bool | None = None
        last, streak = None, 0
        while True:
            good = await self._passes(check, within=float(check.get("timeoutSeconds") or 1))
            last, streak = good, streak + 1 if good is last else 1
            if streak >= needed[good] and good is not reported:
                reported = good
                report(good)
            await asyncio.sleep(min(period, UNREADY_SECONDS) if hurry and not reported else period)

    async def _passes(self, check: Object, *, within: float) -> bool:
        if "exec" in check:
            argv = self._exec_argv(check["exec"]["command"])
            return await _succeeds(argv, self._env, folder=self._directory.parent, within=within)
        request = check["httpGet"]
        named = {port.get("name"): port["containerPort"] for port in self.spec.get("ports", [])}
        port = int(named.get(request["port"], request["port"]))
        url = f"http://{self._address}:{port}/{request.get('path', '/').lstrip('/')}"
        try:
            async with asyncio.timeout(within), self._node.http.get(url) as response:
                return 200 <= response.status < 400
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    def _set_ready(self, good: bool) -> None:
        self.record.ready = good
        self._changed()

    def _unalive(self) -> None:
        if self._process is None:
            return
        log.info("%s failed its liveness check", self._name)
        grace = float(self._pod["spec"].get("terminationGracePeriodSeconds", 30))
        task = asyncio.ensure_future(self._process.stop(grace=grace))
        task.add_done_callback(lambda t: t.cancelled() or t.exception())


async def _succeeds(argv: list[str], env: dict[str, str], *, folder: Path, within: float) -> bool:
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*argv, env=env, cwd=folder, stdout=quiet, stderr=quiet)
    try:
        async with asyncio.timeout(within):
            return await process.wait() == 0
    except TimeoutError:
        return False
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def backoff(attempt: int) -> float:
    """Seconds after attempt 0, 1, 2, ... to start a container: 1, doubling to 10 (a kubelet's: 10 to 300)."""
    return min(10.0, float(2**attempt))


def last_words(message: Path) -> str:
    try:
        with message.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MESSAGE_BYTES))
            return file.read(MESSAGE_BYTES).decode(errors="replace")
    except OSError:
        return ""


def refuse_unknown(pod: Object, container: Object) -> None:
    if pod["spec"].get("initContainers") or pod["spec"].get("restartPolicy") == "OnFailure":
        raise NotSimulated("the simulated kubelet knows no init containers, sidecars, and restarts OnFailure")
    checks = [container.get(kind, {"httpGet": {}}) for kind in CHECKS]
    if "startupProbe" in container or not all({"httpGet", "exec"} & check.keys() for check in checks):
        raise NotSimulated(
            f"{container['name']}: the simulated kubelet knows only {CHECKS} with httpGet or exec"
        )
    mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
    for volume in pod["spec"].get("volumes", []):
        kinds = volume.keys() - {"name"}
        if volume["name"] in mounted and not kinds <= VOLUMES:
            raise NotSimulated(
                f"volume {volume['name']}: the simulated kubelet mounts nothing ({', '.join(kinds)}); "
                "processes share the host's file system"
            )
