"""A real sshd on 127.0.0.1 with keys and a configuration of its own, for hosts that Ansible reaches over SSH.

Must not change the system: it writes to one folder.  Where root lacks sshd's /run/sshd, sshd gets one in a
mount namespace of its own.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.wait import wait_for

RUN = Path("/run/sshd")
IN_NAMESPACE = 'mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd && exec "$@"'
CONFIGURATION = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
Subsystem sftp internal-sftp
"""


class NoSshd(Exception):
    """There is none here, or it takes no login; the message says why."""


@dataclass(frozen=True)
class Sshd:
    """A running sshd."""

    folder: Path
    port: int
    pid: int

    @property
    def options(self) -> list[str]:
        """What `ssh` needs to log in without a question, and to leave nothing."""
        settings = {
            "UserKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "no",
            "IdentitiesOnly": "yes",
            "ControlMaster": "no",
            "LogLevel": "ERROR",
        }
        return ["-F", "none", *(f"-o{name}={value}" for name, value in settings.items())]

    @property
    def variables(self) -> dict[str, Any]:
        """A host of an inventory that is reached through it."""
        return {
            "ansible_connection": "ssh",
            "ansible_host": "127.0.0.1",
            "ansible_port": self.port,
            "ansible_user": getpass.getuser(),
            "ansible_ssh_private_key_file": str(self.folder / "user"),
            "ansible_ssh_args": " ".join(self.options),
        }

    def drop(self) -> int:
        """Kill every session; how many processes of sshd that were."""
        sessions = [pid for pid in _descendants(self.pid) if _name(pid).startswith("sshd")]
        for pid in sessions:
            os.kill(pid, signal.SIGKILL)
        return len(sessions)


@contextmanager
def running(folder: Path) -> Iterator[Sshd]:
    """An sshd until the end of the block.  Raises `NoSshd`."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    program = shutil.which("sshd", path=path)
    if program is None or shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        raise NoSshd("needs sshd, ssh and ssh-keygen (Debian: openssh-server)")
    folder.mkdir(parents=True)
    for key in ("host", "user"):
        options = ["-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
        subprocess.run(["ssh-keygen", *options], check=True, timeout=60)
    port = _free_port()
    (folder / "sshd_config").write_text(CONFIGURATION.format(port=port, folder=folder), encoding="utf-8")
    command = [program, "-D", "-e", "-f", str(folder / "sshd_config")]
    if os.geteuid() == 0 and not RUN.is_dir():
        command = ["unshare", "--mount", "sh", "-c", IN_NAMESPACE, "sh", *command]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log, stdout=log) as process:
        sshd = Sshd(folder, port, process.pid)
        try:
            _wait_for_login(sshd, process)
            yield sshd
        finally:
            sshd.drop()
            process.terminate()


def _wait_for_login(sshd: Sshd, process: subprocess.Popen[bytes]) -> None:
    wait_for(lambda: process.poll() is not None or _listens(sshd.port), what="sshd to listen")
    user = f"{getpass.getuser()}@127.0.0.1"
    login = ["ssh", *sshd.options, "-i", str(sshd.folder / "user"), "-p", str(sshd.port), user, "true"]
    done = subprocess.run(login, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        log = (sshd.folder / "log").read_text(encoding="utf-8", errors="replace")
        raise NoSshd(f"sshd takes no login here: {done.stderr.strip()} {log.strip()[-400:]}")


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _descendants(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    except OSError:
        return []
    return [one for child in map(int, children) for one in (child, *_descendants(child))]
