"""One node: containerd with runc, Debian's bridge, a stock kubelet; what differs has its reason.  The driver
comes by a runtime class, or by DRA alone: then by claims, through CDI."""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from e2e import mounts
from e2e.node_parts import PAUSE, Runtime
from testbed.errors import TestbedError
from testbed.hardware import Hardware, dra
from testbed.processes import Process, output_of
from testbed.wait import DEADLINE_SECONDS

SOCKET = "/run/containerd/containerd.sock"
NAMESPACE = "k8s.io"
POD_LOGS = Path("/var/log/pods")
DRIVER_INSIDE = "/usr/local/nvidia"
HERE = Path(__file__).parent
FLAGS = Path("/run/e2e/kubelet.env")
"""What a host's administrator sets: KUBELET_EXTRA_ARGS, as systemd reads it for a kubelet of kubeadm."""

CDI = Path("/run/e2e/cdi")
WITH_CDI = f'enable_cdi = true\n  cdi_spec_dirs = ["{CDI}"]'


class Node:
    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        runtime: Runtime,
        kubelet: Path,
        images: Sequence[str],
        plugin: Path | None = None,
    ) -> None:
        """`plugin`: the DRA driver of a node that has no runtime class."""
        self.name, self._directory = name, directory / "node"
        self._runtime, self._kubelet_program, self._images = runtime, kubelet, images
        self._plugin = plugin
        self._dra_driver: Process | None = None
        self._containerd: Process | None = None
        self._kubelet: Process | None = None
        self._runtime_settings: dict[str, Any] = {}

    def start_containerd(self, hardware: Hardware, *, wait: Callable[..., object]) -> None:
        self._write(hardware)
        settings = "/run/e2e/containerd.toml"
        self._containerd = self._process("containerd", [self._runtime.containerd, "--config", settings])
        self._containerd.start()
        wait(lambda: self._ctr("version"), what=f"containerd, see {self._directory}/containerd.log")
        for image in self._images:
            if not self._ctr("images", "import", image):
                message = (self._directory / "ctr.log").read_text()
                raise TestbedError(f"{image} cannot be imported: {message}")

    def start_kubelet(self, kubeconfig: Path) -> None:
        flags = ["--config=/run/e2e/kubelet.json", f"--kubeconfig={kubeconfig}"]
        flags += [f"--hostname-override={self.name}", f"--node-ip={mounts.NODE_ADDRESS}", *_extra_flags()]
        self._kubelet = self._process("kubelet", [self._kubelet_program, *flags])
        self._kubelet.start()

    def start_dra_driver(self, kubeconfig: Path, hardware: Hardware) -> None:
        """With the rights of the node's own user, as the Node authorizer has them."""
        assert self._plugin is not None
        driver = {key: self._runtime_settings[key] for key in ("mounts", "env")}
        where = {"driver": dra.DRIVER, "node": self.name, "kubeconfig": str(kubeconfig), "cdi": str(CDI)}
        settings = Path("/run/e2e/draplugin.json")
        nodes = {"/dev/nvidiactl": "/dev/null"}
        settings.write_text(json.dumps({**where, **driver, "nodes": nodes, "devices": dra.devices(hardware)}))
        self._dra_driver = self._process("draplugin", [self._plugin, settings])
        self._dra_driver.start()

    def stop_kubelet(self) -> None:
        """SIGKILL: containers go on, nobody tells the API server."""
        if self._kubelet is not None:
            self._kubelet.stop(grace=0)

    def tell_gpu_containers(self, **env: str) -> None:
        file = Path("/run/e2e/nvidia.json")
        file.write_text(json.dumps(self._runtime_settings | {"env": self._runtime_settings["env"] | env}))

    def logs(self, namespace: str, pod: str) -> str:
        files = sorted(POD_LOGS.glob(f"{namespace}_{pod}*/*/*.log"), key=lambda file: file.stat().st_mtime)
        return "".join(file.read_text(errors="replace") for file in files)

    def last_words(self) -> str:
        return "".join(
            f"\n{p.name}:\n{p.last_words()}"
            for p in (self._containerd, self._kubelet, self._dra_driver)
            if p is not None
        )

    def _process(self, name: str, command: Sequence[str | Path]) -> Process:
        log = self._directory / f"{name}.log"
        return Process(name, command, log=log, environ={"PATH": self._runtime.path}, cwd=Path("/run/e2e"))

    def _ctr(self, *arguments: str) -> bool:
        (self._directory / "ctr.log").write_bytes(b"")
        options = ["--address", SOCKET, "--namespace", NAMESPACE]
        run = self._process("ctr", [self._runtime.ctr, *options, *arguments])
        run.start()
        run.wait(DEADLINE_SECONDS)
        return run.exit_code == 0

    def _snapshotter(self) -> str:
        """An overlay cannot lie on an overlay, as the files of a machine that is a container itself do."""
        command = ["stat", "--file-system", "--format=%T", str(self._directory)]
        return "native" if output_of(command).strip() == "overlayfs" else "overlayfs"

    def _write(self, hardware: Hardware) -> None:
        folder = Path("/run/e2e")
        (folder / "net.d").mkdir(parents=True, exist_ok=True)
        cdi, handler = (WITH_CDI, "") if self._plugin else ("", _settings("nvidia-runtime.toml"))
        containerd = _settings("containerd.toml").format(
            pause=PAUSE, snapshotter=self._snapshotter(), cdi=cdi
        )
        (folder / "containerd.toml").write_text(containerd + handler)
        network = yaml.safe_load(_settings("network.yaml"))
        (folder / "net.d/10-e2e.conflist").write_text(json.dumps(network))
        (folder / "cni").symlink_to(self._runtime.plugins)
        v1 = {} if Path("/sys/fs/cgroup/cgroup.controllers").exists() else {"failCgroupV1": False}
        (folder / "kubelet.json").write_text(json.dumps(yaml.safe_load(_settings("kubelet.yaml")) | v1))
        settings = folder / "nvidia.json"
        self._runtime_settings = driver_settings(hardware)
        settings.write_text(json.dumps(self._runtime_settings))
        shutil.copy(HERE / "runtime.py", folder / "runtime.py")
        hook = shlex.join([sys.executable, "-I", "-S", str(folder / "runtime.py"), str(settings)])
        _script(folder / "runc", self._runtime.runc)
        # Most calls of containerd's create nothing.
        first = f'case " $* " in *" create "*) {hook} "$@";; esac'
        _script(folder / "nvidia", self._runtime.runc, first=first)


def driver_settings(hardware: Hardware) -> dict[str, Any]:
    """What `runtime.py` adds: the machine's folder and the driver's, and variables that name them inside."""
    outside, machine = hardware.env(), str(hardware.directory)
    mounts = {f"{DRIVER_INSIDE}/machine": machine}
    env = {name: value.replace(machine, f"{DRIVER_INSIDE}/machine") for name, value in outside.items()}
    if library := outside.get("LD_LIBRARY_PATH"):
        mounts[f"{DRIVER_INSIDE}/lib64"] = library
        env["LD_LIBRARY_PATH"] = f"{DRIVER_INSIDE}/lib64"
    return {"mounts": mounts, "env": env, "driver": outside["NODEGAUGE_SIM_HARDWARE"]}


def _extra_flags() -> list[str]:
    lines = FLAGS.read_text().splitlines()
    values = [line.partition("=")[2] for line in lines if line.startswith("KUBELET_EXTRA_ARGS=")]
    return [word for value in values[-1:] for whole in shlex.split(value) for word in whole.split()]


def _script(path: Path, program: Path, *, first: str = "") -> None:
    path.write_text(f'#!/bin/sh -e\n{first}\nexec {shlex.quote(str(program))} "$@"\n')
    os.chmod(path, 0o755)  # noqa: PTH101


def _settings(name: str) -> str:
    return HERE.joinpath(name).read_text("utf-8")
