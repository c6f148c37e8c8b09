"""Mounts and addresses inside the namespaces; refused in the machine's own."""

import os
from pathlib import Path

from testbed.errors import TestbedError
from testbed.processes import output_of

SERVICE_ADDRESS, NODE_ADDRESS = "10.0.0.1", "10.23.0.1"
FIRST_PID = 1
SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What a kubelet writes (setupKernelTunables in pkg/kubelet/cm/container_manager_linux.go) and all of the
machine would feel: plain files with the values that it wants stand there instead."""


def prepare(directory: Path) -> None:
    """Give the namespace a /var, a /run and sysctls of its own, and addresses on `lo`."""
    _refuse_outside()
    mounts(directory)
    output_of(["ip", "link", "set", "lo", "up"])
    for address in (SERVICE_ADDRESS, NODE_ADDRESS):
        output_of(["ip", "address", "add", f"{address}/32", "dev", "lo"])


def mounts(directory: Path) -> None:
    own = directory / "node"
    for folder in ("var/log", "var/lib", "var/tmp", "run", "sysctls"):
        (own / folder).mkdir(parents=True, mode=0o755)
    (own / "var/run").symlink_to("/run")
    output_of(["mount", "--bind", str(own / "var"), "/var"])
    output_of(["mount", "--bind", str(own / "run"), "/run"])
    for name, value in SYSCTLS.items():
        file = own / "sysctls" / name.replace("/", ".")
        file.write_text(f"{value}\n")
        output_of(["mount", "--bind", str(file), f"/proc/sys/{name}"])
    # A kubelet wants its volumes' mounts to reach containers; the peers are all in this namespace.
    output_of(["mount", "--make-rshared", "/"])


def _refuse_outside() -> None:
    """Raises where process 1 is not this program's own parent: then this is the machine itself."""
    first = Path(f"/proc/{FIRST_PID}/cmdline").read_bytes().split(b"\0")
    if os.getppid() != FIRST_PID or not any(word.endswith(b"init.py") for word in first):
        raise TestbedError("this is not the inside of a run's namespaces: start `make e2e` instead")
