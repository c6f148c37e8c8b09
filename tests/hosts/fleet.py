"""Simulated GPU hosts of a folder, each behind an sshd of its own on loopback, with inventory, ansible.cfg,
this checkout's collection and the play.  An idle host is one sleeping sshd."""

import contextlib
import getpass
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from hosts.sshd import Sshd, find_sshd, make_key
from support.playbook import stage
from testbed import daemon
from testbed.binaries import Progress
from testbed.errors import TestbedError
from testbed.hardware import plug
from testbed.hostarchive import host_archive
from testbed.kubelet.desired import DesiredFile, NodeSpec
from testbed.kubelet.shim import descendants
from testbed.loopback import LOOPBACK, reserve_port
from testbed.nodes import Nodes
from testbed.processes import Process, Running
from testbed.wait import wait_for

PARTS = (
    "hosts",
    "hardware",
    "kubelet",
    "ssh",
    "cp",
    "ansible",
    "ansible_collections",
    "report",
    "hosts.yml",
    "ansible.cfg",
    "accept.yml",
    "tasks.jsonl",
)
"""What the hosts put into their folder, besides `testbed.lock`."""
MACHINES = ("h100-sxm-8", "a100-sxm-8", "l40s-4", "titan-rtx-nv2")
SOCKET_PATH = 108 - 1 - 10 - 1 - 17
"""Longest folder of ssh's sockets: Linux' sun_path without a slash, Ansible's name of ten characters, a
zero, and the 17 characters that ssh appends while it makes the socket."""
HERE = Path(__file__).parent


def named(count: int) -> dict[str, str]:
    digits = max(2, len(str(count)))
    return {f"gpu-{n + 1:0{digits}}": MACHINES[n % len(MACHINES)] for n in range(count)}


class Hosts(Running):
    def __init__(self, directory: Path, machines: Mapping[str, str], progress: Progress) -> None:
        self.directory = directory.absolute()
        self._machines, self._progress = dict(machines), progress
        self._started: list[Process] = []

    def start(self) -> None:
        if any(character in str(self.directory) for character in '"\n%$\\'):
            raise TestbedError(f"sshd cannot read the path {self.directory}: choose another with --dir")
        if not self._machines:
            raise TestbedError("no hosts: --hosts takes a number above 0")
        sshd = find_sshd(self._progress)
        self._progress("building the archive for hosts, where this checkout's is not in the cache")
        archive = host_archive()
        self._progress(f"plugging {len(self._machines)} machines")
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        stage(self.directory, archive=archive)
        (self.directory / "ssh").mkdir(mode=0o700)
        public = make_key(self.directory / "ssh" / "key")
        (self.directory / "ssh" / "authorized_keys").write_text(f"{public}\n", encoding="utf-8")
        port_of = {name: self._start_host(name, sshd) for name in self._machines}
        self._write_testbed()
        self._write_controller(port_of)
        for process, port in zip(self._started, port_of.values(), strict=True):
            wait_for(lambda: _greets(port) or not process.running, what=f"sshd of {process.name}")  # noqa: B023
            if not process.running:
                raise TestbedError(f"sshd of {process.name} ended:\n{process.last_words()}")
        self._log_in(*next(iter(port_of.items())))

    def stop(self) -> None:
        """End the sessions first, whose sshds are children of the listening ones."""
        for pid in descendants(*(process.pid for process in self._started)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.stop(grace=0)  # it holds nothing
        self._started.clear()

    def _start_host(self, name: str, sshd: Sshd) -> int:
        folder, port = self.directory / "hosts" / name, reserve_port()
        for part in ("home", "tmp"):
            (folder / part).mkdir(parents=True)
        hardware = plug(self._machines[name], self.directory / "hardware" / name, seed=name)
        own = {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), **hardware.env()}
        public = make_key(folder / "host_key")
        with (self.directory / "ssh" / "known_hosts").open("a", encoding="utf-8") as known:
            known.write(f"[{LOOPBACK}]:{port} {public}\n")
        authorized = self.directory / "ssh" / "authorized_keys"
        config = folder / "sshd_config"
        config.write_text(
            sshd.config(folder, port=port, authorized=authorized, environment=own), encoding="utf-8"
        )
        command: list[str | Path] = [sshd.program, "-D", "-e", "-f", config]
        environ = {"PATH": os.environ.get("PATH", os.defpath), **sshd.environ}
        process = Process(name, command, log=folder / "sshd.log", environ=environ)
        process.start()
        self._started.append(process)
        return port

    def _write_testbed(self) -> None:
        """For `python -m testbed`, whose commands break and heal them: nodes of which no kubelet runs."""
        (self.directory / "kubelet").mkdir()
        with DesiredFile(self.directory / "kubelet").change() as nodes:
            nodes.update({name: NodeSpec(profile=profile) for name, profile in self._machines.items()})

    def _write_controller(self, port_of: Mapping[str, int]) -> None:
        sockets = self.directory / "cp"
        options = [*self.options]
        if len(os.fsencode(sockets)) > SOCKET_PATH:
            options += ["-o", "ControlPath=none"]
        hosts: dict[str, dict[str, Any]] = {
            name: {
                "ansible_port": port,
                "validate_expected_gpus": Nodes(self.directory).hardware(name).gpu_count,
            }
            for name, port in port_of.items()
        }
        variables = {
            "ansible_host": LOOPBACK,
            "ansible_user": getpass.getuser(),
            "ansible_ssh_private_key_file": str(self.directory / "ssh" / "key"),
            "ansible_ssh_common_args": shlex.join(options),
            "ansible_python_interpreter": sys.executable,
        }
        files = {
            "hosts.yml": yaml.safe_dump(
                {"all": {"hosts": hosts, "vars": variables}}, sort_keys=False, width=200
            ),
            "ansible.cfg": (HERE / "ansible.cfg").read_text("utf-8").format(sockets=sockets),
            "accept.yml": (HERE / "accept.yml").read_text("utf-8"),
        }
        for name, text in files.items():
            (self.directory / name).write_text(text, encoding="utf-8")

    @property
    def options(self) -> list[str]:
        """Of ssh: it reads no configuration of yours, and trusts exactly the hosts' own keys."""
        messages = (
            f'UserKnownHostsFile="{self.directory}/ssh/known_hosts"',
            "GlobalKnownHostsFile=none",
            "StrictHostKeyChecking=yes",
            "IdentitiesOnly=yes",
            "IdentityAgent=none",
        )
        return ["-F", "none", *(word for option in messages for word in ("-o", option))]

    def _log_in(self, name: str, port: int) -> None:
        """Into the first host: a user who may not log in is best known now."""
        log = self.directory / "hosts" / name / "sshd.log"
        key = str(self.directory / "ssh" / "key")
        to = ["-i", key, "-p", str(port), "-o", "BatchMode=yes", f"{getpass.getuser()}@{LOOPBACK}", "true"]
        command = ["ssh", *self.options, *to]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise TestbedError(
                f"nobody can log in to {name}, see {log}:\n{done.stderr}{self._started[0].last_words()}"
            )


@contextlib.contextmanager
def serving(directory: Path, machines: Mapping[str, str], progress: Progress) -> Iterator[Hosts]:
    """Hosts of a folder that other processes find; it is empty, or gone, after the block."""
    with daemon.holding(directory, PARTS) as ready:
        try:
            with Hosts(directory, machines, progress) as hosts:
                ready()
                yield hosts
        finally:
            daemon.clear(directory, (*PARTS, "testbed.lock"))
            with contextlib.suppress(OSError):  # something else is in it
                directory.rmdir()


def _greets(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=5) as connection:
        return connection.recv(4) == b"SSH-"
    return False
