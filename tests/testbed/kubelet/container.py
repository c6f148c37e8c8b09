"""One container of one pod: wait for image and configuration, run, restart as the policy says.

`Runner.run()` returns when the container rests for good.  It changes its `record` and calls `changed()`;
writing to the API is the pod's business, and so is deciding when a container has to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.errors import ApiError
from testbed.kubelet import environment, images, scratch, secrets, status
from testbed.kubelet.checks import HOST_VARIABLE, PORT_VARIABLE, Check, refuse_unknown
from testbed.kubelet.context import NodeContext, pod_address
from testbed.kubelet.errors import ConfigMissing, ContainerWaits, EndedBeforeStart, NotSimulated, StartFailed
from testbed.kubelet.process import ContainerProcess, ProcessSpec
from testbed.kubelet.status import Record, Running, Terminated, Waiting
from testbed.kubelet.tokens import Credentials
from testbed.scripted import stamp

Object = dict[str, Any]

log = logging.getLogger(__name__)

WRITTEN_VOLUMES = frozenset({"secret"})
IGNORED_VOLUMES = frozenset({"emptyDir", "projected", "downwardAPI"})
"""Volumes whose absence a program can live with: scratch space, and the service account's token."""
MESSAGE_BYTES = 4096
LOG_BYTES, LOG_LINES = 2048, 80
"""Limits of a termination message, and of the log that stands for it (FallbackToLogsOnError), as Kubernetes
has them (MaxContainerTerminationMessageLength and beside it)."""
CALM_SECONDS = 20.0
"""After so long a container is started again at once: twice the longest back-off, as with a kubelet."""
UNREADY_SECONDS = 1.0
"""Longest period of a readiness or startup check while it has not succeeded yet."""


class Runner:
    """Runs one container until its restart policy lets it rest."""

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
        self._policy = pod["spec"].get("restartPolicy", "Always")
        self._node = node
        self._directory = directory
        self._credentials = credentials
        self._changed = changed
        self._process: ContainerProcess | None = None
        self._ending = asyncio.Event()
        self._address = pod_address(pod["metadata"]["uid"])
        self._began = stamp()

    def end(self, number: signal.Signals) -> None:
        """Signal the container, if it runs, and never start it again."""
        self._ending.set()
        if self._process is not None:
            self._process.signal(number)

    async def run(self) -> None:
        """Start, watch, restart; cancelling it kills the container."""
        attempt = 0
        if isinstance(self.record.state, Terminated):  # found dead by a kubelet that has just started
            if not self._restarts():
                return
            self._next_life()
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
            if self._ending.is_set() or not self._restarts():
                return
            if attempt:  # the first restart is at once
                await self._crash_loop(backoff(attempt - 1))
                if self._ending.is_set():
                    self.record.state = self.record.last or self.record.state
                    return
            self._next_life()
            attempt += 1

    def _restarts(self) -> bool:
        state = self.record.state
        if self._policy == "OnFailure":
            return not (isinstance(state, Terminated) and state.code == 0)
        return bool(self._policy == "Always")

    def _next_life(self) -> None:
        if isinstance(self.record.state, Terminated):
            self.record.last = self.record.state
        self.record.state = Waiting()
        self.record.restarts += 1

    async def _crash_loop(self, pause: float) -> None:
        assert isinstance(self.record.state, Terminated)
        self.record.last = self.record.state
        pod = self._pod["metadata"]["name"]
        text = f"back-off {pause:g}s restarting failed container={self.record.name} pod={pod}"
        self.record.state = Waiting(status.CRASH_LOOP, text)
        self._changed()
        await self._pause(pause)

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not beyond the order to end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()

    async def _launch_when_possible(self) -> ContainerProcess:
        """Launch, and try again for as long as the image or the configuration is missing."""
        attempt = 0
        while not self._ending.is_set():
            try:
                return await self._launch()
            except ContainerWaits as error:
                self.record.state = Waiting(error.reason, str(error))
                self._changed()
                pause = backoff(attempt)
                await self._pause(pause / 2)
                if error.reason == "ErrImagePull":
                    text = f'Back-off pulling image "{self.spec["image"]}": {error}'
                    self.record.state = Waiting("ImagePullBackOff", text)
                    self._changed()
                await self._pause(pause / 2)
                attempt += 1
        raise EndedBeforeStart

    async def _launch(self) -> ContainerProcess:
        image = images.find(
            self._node.images, self.spec["image"], pull_policy=self.spec.get("imagePullPolicy", "Always")
        )
        refuse_unknown(self.spec)
        refuse_unmounted(self._pod, self.spec)
        env = await self._environment(image)
        expanded = {
            key: [environment.expand(word, env) for word in self.spec.get(key, [])]
            for key in ("command", "args")
        }
        self._directory.mkdir(parents=True, exist_ok=True)
        behind = scratch.folders(self._pod, self.spec, below=self._directory.parent)
        argv = image.argv(expanded["command"], scratch.relocated(expanded["args"], behind))
        self._message_file.write_bytes(b"")
        process = await ContainerProcess.launch(
            ProcessSpec(argv=argv, env=env, cwd=self._directory.parent, log=self._log_file)
        )
        if not image.stands_in:
            self._node.devices.computes(self._pod["metadata"]["uid"], self.spec, pid=process.pid)
        return process

    async def _environment(self, image: images.Image) -> dict[str, str]:
        metadata = self._pod["metadata"]
        home = self._directory.parent / "tmp"
        home.mkdir(parents=True, exist_ok=True)
        env = environment.system_environment(self._node, hostname=metadata["name"], home=home) | dict(
            image.env
        )
        env |= self._node.devices.allocate(metadata["uid"], self.spec)
        env |= await environment.pod_environment(self.spec, self._pod, self._node, known=env)
        volumes = self._directory.parent / "volumes"
        env = await secrets.mounted(self.spec, self._pod, self._node, env=env, directory=volumes)
        if PORT_VARIABLE in env:
            env[HOST_VARIABLE] = self._address
        if self._credentials:
            try:
                await self._credentials.write()
            except ApiError as error:
                raise ConfigMissing(f"no token for the pod's service account: {error}") from error
            env["KUBECONFIG"] = str(self._credentials.kubeconfig)
        driver = environment.sees_driver(self.spec, self._pod, env)
        hooks = environment.hook_environment(
            self._node.hardware, driver=driver, env=env, termination_log=self._message_file
        )
        return env | hooks | (self._node.devices.given(env) if driver else {})

    @property
    def _message_file(self) -> Path:
        return self._directory / "termination-log"

    @property
    def _log_file(self) -> Path:
        return self._directory / f"{self.record.restarts}.log"

    async def _live(self, process: ContainerProcess) -> None:
        """Follow one process from start to end."""
        self._process = process
        self._began = stamp()
        self.record.container_id = f"testbed://{uuid.uuid4().hex}"
        self.record.state = Running(self._began)
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
                log.error(
                    "checks of %s/%s broke", self._pod["metadata"]["name"], self.record.name, exc_info=ended
                )
        message = last_words(
            self._message_file,
            self._log_file,
            code=code,
            policy=self.spec.get("terminationMessagePolicy", "File"),
        )
        reason = "Error" if code else "Completed"
        self._rest(code=code, reason=reason, message=message)

    def _rest(self, *, code: int, reason: str, message: str) -> None:
        self.record.ready = self.record.started = False
        self.record.state = Terminated(
            code=code,
            reason=reason,
            message=message,
            started=self._began,
            finished=stamp(),
            container_id=self.record.container_id,
        )

    async def _check(self) -> None:
        """Keep `ready` and `started` up to date, and kill the container when it is no longer alive."""
        if startup := self.spec.get("startupProbe"):
            passed = asyncio.Event()
            asking = asyncio.ensure_future(
                self._make(startup).run(
                    lambda good: passed.set() if good else self._unalive(), hurry=UNREADY_SECONDS
                )
            )
            try:
                await passed.wait()
            finally:
                asking.cancel()
        self.record.started = True
        readiness, liveness = self.spec.get("readinessProbe"), self.spec.get("livenessProbe")
        self.record.ready = not readiness
        self._changed()
        async with asyncio.TaskGroup() as group:
            if readiness:
                group.create_task(self._make(readiness).run(self._set_ready, hurry=UNREADY_SECONDS))
            if liveness:
                group.create_task(self._make(liveness).run(lambda good: None if good else self._unalive()))

    def _make(self, check: Object) -> Check:
        return Check(check, self.spec, address=self._address, http=self._node.http)

    def _set_ready(self, good: bool) -> None:
        self.record.ready = good
        self._changed()

    def _unalive(self) -> None:
        """End the process with the pod's grace period; the restart policy does the rest."""
        process = self._process
        if process is None:
            return
        log.info("%s/%s failed its liveness check", self._pod["metadata"]["name"], self.record.name)
        grace = float(self._pod["spec"].get("terminationGracePeriodSeconds", 30))
        task = asyncio.ensure_future(process.stop(grace=grace))
        task.add_done_callback(lambda t: t.cancelled() or t.exception())


def backoff(attempt: int) -> float:
    """Seconds after attempt 0, 1, 2, ... to start a container: 1, doubling to 10 (a kubelet's: 10 to 300)."""
    return min(10.0, float(2**attempt))


def last_words(message: Path, output: Path, *, code: int, policy: str) -> str:
    """The last bytes of the message file, or the end of the log after a failure if asked for.

    Of a longer message a kubelet keeps the end (getTerminationMessage in pkg/kubelet/kuberuntime calls
    tail.ReadAtMost).
    """
    try:
        with message.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MESSAGE_BYTES))
            text = file.read(MESSAGE_BYTES)
    except OSError:
        text = b""
    if not text and code and policy == "FallbackToLogsOnError":
        lines = output.read_bytes()[-LOG_BYTES:].splitlines(keepends=True)
        text = b"".join(lines[-LOG_LINES:])
    return text.decode(errors="replace")


def refuse_unmounted(pod: Object, container: Object) -> None:
    """NotSimulated when the pod has init containers, or the container mounts something that it would miss."""
    if pod["spec"].get("initContainers"):
        raise NotSimulated("the simulated kubelet runs no init containers and no sidecars")
    mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
    for volume in pod["spec"].get("volumes", []):
        kinds = volume.keys() - {"name"}
        if volume["name"] in mounted and not kinds <= IGNORED_VOLUMES | WRITTEN_VOLUMES:
            raise NotSimulated(
                f"volume {volume['name']}: the simulated kubelet mounts nothing ({', '.join(kinds)}); "
                "processes share the host's file system"
            )
