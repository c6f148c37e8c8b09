"""What a run could change of the machine, read before and after: it must be the same.

Interfaces with their addresses, routes, sysctls, mounts, namespaces, cgroups of containers, processes.  What
a living machine changes by itself (counters, random numbers) is left out by name.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass, fields
from pathlib import Path

VOLATILE = re.compile(
    r"^(fs/(dentry-state|file-nr|inode-nr|inode-state|aio-nr|quota/.*|binfmt_misc/.*)"
    r"|kernel/(random/.*|ns_last_pid|pty/nr|perf_event_max_sample_rate|sched_domain/.*|tainted)"
    r"|net/netfilter/nf_conntrack_count|net/ipv[46]/route/flush|vm/stat_refresh)$"
)
"""Sysctls that change without anybody setting them, or that do something when they are read."""

CONTAINER_CGROUPS = ("k8s.io", "kubepods")
SYSCTLS = Path("/proc/sys")
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, kw_only=True)
class HostState:
    """Everything as sets of lines, so that a difference can be read."""

    interfaces: frozenset[str]
    routes: frozenset[str]
    sysctls: frozenset[str]
    mounts: frozenset[str]
    network_namespaces: frozenset[str]
    container_cgroups: frozenset[str]
    processes: frozenset[str]

    def differences(self, later: HostState) -> list[str]:
        """What came and what went, one a line."""
        result = []
        for one in fields(self):
            before, after = getattr(self, one.name), getattr(later, one.name)
            result += [f"{one.name}: gone: {line}" for line in sorted(before - after)]
            result += [f"{one.name}: new: {line}" for line in sorted(after - before)]
        return result


def read(*, marker: str) -> HostState:
    """The machine now; of processes only those that `marker`, a run's folder, is named by."""
    return HostState(
        interfaces=_output("ip", "-o", "address", "show") | _output("ip", "-o", "link", "show"),
        routes=_output("ip", "route", "show", "table", "all"),
        sysctls=frozenset(_sysctls()),
        mounts=frozenset(Path("/proc/self/mountinfo").read_text().splitlines()),
        network_namespaces=frozenset(namespaces("net")),
        container_cgroups=frozenset(_cgroups()),
        processes=frozenset(_processes(marker)),
    )


def namespaces(kind: str) -> set[str]:
    """Every namespace of a kind that a process of the machine lives in, such as net:[4026531840]."""
    result = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            result.add(str((entry / "ns" / kind).readlink()))
        except OSError:  # it has just ended
            continue
    return result


def _output(*command: str) -> frozenset[str]:
    """Lines that a program prints, without the counters of time that `ip` prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return frozenset(
        re.sub(r"(valid_lft|preferred_lft|expires) \S+", "", line) for line in done.stdout.splitlines()
    )


def _sysctls() -> list[str]:
    result = []
    for folder, _, names in os.walk(SYSCTLS):
        for name in names:
            path = Path(folder, name)
            relative = path.relative_to(SYSCTLS).as_posix()
            if VOLATILE.match(relative) or not path.stat().st_mode & 0o444:
                continue
            try:
                result.append(f"{relative} = {path.read_text().strip()}")
            except (OSError, ValueError):
                continue  # some can only be written, whatever their mode says
    return result


def _cgroups() -> list[str]:
    """Folders that container runtimes make at the top of a hierarchy, and what is below them."""
    tops = [top for name in CONTAINER_CGROUPS for top in (*CGROUPS.glob(f"*/{name}"), *CGROUPS.glob(name))]
    return [folder for top in tops for folder, _, _ in os.walk(top)]


def _processes(marker: str) -> list[str]:
    needle = os.fsencode(marker)
    result = []
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) == os.getpid():
            continue
        try:
            message = (entry / "cmdline").read_bytes()
            if needle in message or needle in (entry / "environ").read_bytes():
                command = message.replace(b"\0", b" ").decode(errors="replace")
                result.append(f"{entry.name}: {command[:200]}")
        except OSError:
            continue
    return result
