"""A real control plane: etcd, kube-apiserver, kube-scheduler and kube-controller-manager on loopback.  Data
stays below `directory`; no process outlives the Python process that started it."""

import contextlib
import csv
import io
import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path

from testbed import controlplane_config as config
from testbed.binaries import Binaries, find_or_build
from testbed.errors import ApiError, ControlPlaneError
from testbed.kubeconfig import write_kubeconfig, write_private
from testbed.loopback import LOOPBACK, reserve_port
from testbed.processes import Process, Running, output_of
from testbed.rest import Rest
from testbed.wait import DEADLINE_SECONDS, wait_for

STOP_SECONDS = 10.0
READY_SECONDS = DEADLINE_SECONDS
LOOK_SECONDS = 0.02
TOKEN_SECONDS = 86_400
"""For how long tokens of service accounts are good: for longer than a load test takes."""
CHEAPLY = {"GOGC": "400", "GOMAXPROCS": "1"}
"""Of every program; Go's defaults are 100 and all cores.  Memory is cheaper here than CPU time, and threads
that look for work wake each other: with 200 and two cores a start and two tests of the chart took a quarter
more CPU time."""
PORT_TAKEN = "address already in use"
APISERVER = "kube-apiserver"
Program = tuple[Path, Sequence[str]]
FIRST_OBJECTS = ("serviceaccounts/default", "configmaps/kube-root-ca.crt")
"""What the controller manager makes in every namespace; admission refuses pods that come earlier."""


class ControlPlane(Running):
    address = LOOPBACK

    def __init__(
        self,
        directory: Path,
        *,
        progress: Callable[[str], None] | None = None,
        environ: dict[str, str] = CHEAPLY,
    ) -> None:
        self.directory = directory.absolute()
        self.layout = config.Layout(self.directory)
        self.kubeconfig, self.audit_log = self.layout.admin_kubeconfig, self.layout.audit_log
        self.kubelet_kubeconfig = self.layout.kubeconfig(config.KUBELET)
        """As mighty, under another name: what simulated kubelets write can be told apart in the audit log."""
        self.ca_file = self.layout.ca_file
        """Verifies the API server (and the fault proxy)."""
        self._progress = progress or (lambda _: None)
        self._environ = environ | os.environ
        self._processes: dict[str, Process] = {}
        self._port = 0
        self._etcd_port = 0

    # What others need to know.

    @cached_property
    def binaries(self) -> Binaries:
        return find_or_build(self._progress)

    @property
    def server(self) -> str:
        return f"https://{self.address}:{self._port}"

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    # Its life.

    def start(self) -> None:
        """Return when pods can be created."""
        self._write_files()
        began = time.monotonic()
        self._etcd_port, self._port = reserve_port(), reserve_port()
        try:
            self._bring_up(self._stores())
            self._progress(f"kube-apiserver answers on {self.server} after {time.monotonic() - began:.1f} s")
            tokens = self.tokens()
            for user in config.USERS:
                self.user_kubeconfig(user, token=tokens[user])
            self.user_kubeconfig(config.ADMIN, token=tokens[config.ADMIN], path=self.kubeconfig)
            self._start_controllers()
            self.await_objects(namespace="default")
            self._progress(f"scheduler and controllers run after {time.monotonic() - began:.1f} s")
        except BaseException:
            self.stop(grace=0.0)
            raise

    def stop(self, *, grace: float = STOP_SECONDS) -> None:
        with contextlib.ExitStack() as stack:
            for name in list(self._processes):  # the last started ends first
                stack.callback(self._processes.pop(name).stop, grace=grace)

    @contextlib.contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """One of the programs is stopped by SIGSTOP: it holds its connections and answers nobody."""
        process = self._processes[name]
        process.send(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send(signal.SIGCONT)

    @contextlib.contextmanager
    def without_apiserver(self, *, grace: float = STOP_SECONDS) -> Iterator[None]:
        """Nothing listens on its port meanwhile: every watch breaks.  `grace`: seconds until SIGKILL."""
        self._processes.pop(APISERVER).stop(grace=grace)
        try:
            yield
        finally:
            self._bring_up({APISERVER: self._apiserver()})

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """What is written meanwhile is lost: etcd is restored from a copy, and its readers start again."""
        backup = self.directory / "etcd-backup"
        with self.frozen("etcd"):  # what lies on the disk is what a crash would leave
            shutil.copytree(self.layout.etcd_data, backup)
        yield
        self.stop()
        shutil.rmtree(self.layout.etcd_data)
        backup.rename(self.layout.etcd_data)
        self.resume()

    def resume(self) -> None:
        """After `stop`, on the same ports and with the same data."""
        self._bring_up(self._stores())
        self._start_controllers()

    def await_objects(self, *, namespace: str) -> None:
        for name in FIRST_OBJECTS:
            path = f"/api/v1/namespaces/{namespace}/{name}"
            self._wait_until(partial(self._answers, path), what=path)

    # Talking to it.

    def rest(self, token: str | None = None) -> Rest:
        authority = self.ca_file.read_text(encoding="ascii")
        return Rest(self.server, authority=authority, token=token or self.tokens()[config.ADMIN])

    def service_account_token(self, namespace: str, name: str) -> str:
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        token: str = self.rest().create(path, {"spec": {"expirationSeconds": TOKEN_SECONDS}})["status"][
            "token"
        ]
        return token

    def user_kubeconfig(
        self, name: str, *, token: str, server: str | None = None, path: Path | None = None
    ) -> Path:
        return write_kubeconfig(
            path or self.layout.kubeconfig(name),
            server=server or self.server,
            authority=self.ca_file.read_text(encoding="ascii"),
            user={"token": token},
        )

    def helm(self, *arguments: str) -> str:
        home = self.directory / "helm"
        own = {f"HELM_{kind}_HOME": str(home / kind) for kind in ("CACHE", "CONFIG", "DATA")}
        env = {"GOGC": "off", **os.environ, **own, "KUBECONFIG": str(self.kubeconfig)}
        return output_of([str(self.binaries.helm), *arguments], env=env)

    # Starting it.

    def _write_files(self) -> None:
        self.layout.log(APISERVER).parent.mkdir(parents=True, exist_ok=True)
        self.layout.etcd_data.mkdir(mode=0o700, exist_ok=True)
        if not self.layout.tokens.exists():
            lines = io.StringIO()
            for user, group in config.USERS.items():
                csv.writer(lines).writerow(
                    [secrets.token_urlsafe(24), user, user, *([group] if group else [])]
                )
            write_private(self.layout.tokens, lines.getvalue())
        write_private(self.layout.scheduler_config, config.scheduler_config(self.layout))
        if not self.ca_file.exists():
            self._make_certificate()

    def _make_certificate(self) -> None:
        """With a key on an elliptic curve: the API server's own would be two of RSA, half a second's work."""
        import trustme  # a tenth of a second, which commands on a running control plane need not take

        authority = trustme.CA()
        own = authority.issue_cert(self.address)
        chain = [*own.cert_chain_pems, authority.cert_pem]
        write_private(self.layout.key_file, own.private_key_pem.bytes().decode())
        write_private(self.ca_file, "".join(blob.bytes().decode() for blob in chain))

    def tokens(self) -> Mapping[str, str]:
        with self.layout.tokens.open(newline="", encoding="utf-8") as lines:
            return {row[1]: row[0] for row in csv.reader(lines)}

    def _stores(self) -> Mapping[str, Program]:
        etcd = self.binaries.etcd, config.etcd_flags(self.layout, port=self._etcd_port)
        return {"etcd": etcd, APISERVER: self._apiserver()}

    def _start_controllers(self) -> None:
        flags = config.scheduler_flags(self.layout)
        self._start("kube-scheduler", self.binaries.kube_scheduler, flags)
        flags = config.controller_manager_flags(self.layout)
        self._start("kube-controller-manager", self.binaries.kube_controller_manager, flags)

    def _apiserver(self) -> Program:
        return self.binaries.kube_apiserver, config.apiserver_flags(
            self.layout, port=self._port, etcd_port=self._etcd_port
        )

    def _bring_up(self, programs: Mapping[str, Program]) -> None:
        """Start these, again while one of their ports is somebody's local end."""
        until = time.monotonic() + READY_SECONDS
        while True:
            for name, (program, flags) in programs.items():
                if name not in self._processes or not self._processes[name].running:
                    self._start(name, program, flags)
            try:
                self._wait_until(lambda: self._answers("/readyz"), what=f"{APISERVER}'s /readyz")
            except ControlPlaneError as error:
                if PORT_TAKEN not in str(error) or time.monotonic() > until:
                    raise
            else:
                return

    def _answers(self, path: str) -> bool:
        try:
            self.rest().get(path)
        except (ApiError, OSError):
            return False
        return True

    def _start(self, name: str, program: Path, flags: Sequence[str]) -> None:
        log = self.layout.log(name)
        log.write_bytes(b"")
        self._processes[name] = Process(
            name, [program, *flags], log=log, cwd=self.directory, environ=self._environ
        )
        self._processes[name].start()

    def _wait_until(self, condition: Callable[[], bool], *, what: str) -> None:
        def holds() -> bool:
            for name, process in self._processes.items():
                if not process.running:
                    ended = f"{name} ended with exit code {process.exit_code}; the end of {process.log}"
                    raise ControlPlaneError(f"{ended}:\n{process.last_words()}")
            return condition()

        wait_for(holds, every=LOOK_SECONDS, what=f"{what}, see the logs in {self.layout.log('')}")
