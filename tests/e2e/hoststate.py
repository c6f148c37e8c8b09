"""What a run could change of the machine, read before and after: it must be the same.  Cgroups that a killed
runc left are removed here: cgroupfs refuses to remove one with a process in it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VOLATILE = re.compile(
    r"^(fs/(dentry-state|file-nr|inode-nr|inode-state|aio-nr|quota/.*|binfmt_misc/.*)"
    r"|kernel/(random/.*|ns_last_pid|pty/nr|perf_event_max_sample_rate|sched_domain/.*|tainted)"
    r"|net/netfilter/nf_conntrack_count|net/ipv[46]/route/flush|vm/stat_refresh)$"
)
"""Sysctls that change without anybody setting them, or that do something when they are read."""

PARENT = "k8s.io"
CONTAINER_CGROUPS = (PARENT, "kubepods")
SYSCTLS = Path("/proc/sys")
CGROUPS = Path("/sys/fs/cgroup")
TASKS = "node/run/containerd/io.containerd.runtime.v2.task/k8s.io"


@dataclass(frozen=True)
class HostState:
    lines: dict[str, frozenset[str]]

    def differences(self, later: HostState) -> list[str]:
        result = []
        for kind, before in self.lines.items():
            result += [f"{kind}: gone: {line}" for line in sorted(before - later.lines[kind])]
            result += [f"{kind}: new: {line}" for line in sorted(later.lines[kind] - before)]
        return result


def read(*, marker: str) -> HostState:
    """The machine now; of processes only those that `marker`, a run's folder, is named by."""
    addresses, links = ("ip", "-o", "address", "show"), ("ip", "-o", "link", "show")
    lines = {
        "interfaces": [*_output(*addresses), *_output(*links)],
        "routes": _output("ip", "route", "show", "table", "all"),
        "sysctls": _sysctls(),
        "mounts": Path("/proc/self/mountinfo").read_text().splitlines(),
        "network namespaces": _network_namespaces(),
        "containers' cgroups": _cgroups(),
        "processes of the run": _processes(os.fsencode(marker)),
    }
    return HostState({kind: frozenset(result) for kind, result in lines.items()})


def cgroup_parents() -> set[Path]:
    return {*CGROUPS.glob(f"*/{PARENT}"), *CGROUPS.glob(PARENT)}


def remove_cgroups(directory: Path, *, there_before: set[Path]) -> None:
    """Remove the folders of containers that the run in `directory` had left when it ended, and parents that
    were not there before the run and are empty."""
    tasks = directory / TASKS
    ids = [entry.name for entry in tasks.iterdir()] if tasks.exists() else []
    for parent in cgroup_parents():
        folders = [Path(folder) for name in ids for folder, _, _ in os.walk(parent / name, topdown=False)]
        for folder in [*folders, *([] if parent in there_before else [parent])]:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _network_namespaces() -> Iterator[str]:
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            yield str((entry / "ns" / "net").readlink())


def _output(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return re.sub(r"(valid_lft|preferred_lft|expires) \S+", "", done.stdout).splitlines()


def _sysctls() -> Iterator[str]:
    for folder, _, names in os.walk(SYSCTLS):
        for path in (Path(folder, name) for name in names):
            relative = path.relative_to(SYSCTLS).as_posix()
            if VOLATILE.match(relative) or not path.stat().st_mode & 0o444:
                continue
            with contextlib.suppress(OSError, ValueError):  # some can only be written
                yield f"{relative} = {path.read_text().strip()}"


def _cgroups() -> list[str]:
    tops = [top for name in CONTAINER_CGROUPS for top in (*CGROUPS.glob(f"*/{name}"), *CGROUPS.glob(name))]
    return [folder for top in tops for folder, _, _ in os.walk(top)]


def _processes(marker: bytes) -> Iterator[str]:
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            named = marker in command or marker in (entry / "environ").read_bytes()
            if named and int(entry.name) != os.getpid():
                text = command.replace(b"\0", b" ").decode(errors="replace")
                yield f"{entry.name}: {text[:200]}"
