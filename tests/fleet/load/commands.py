"""What the commands for people cost on the fleet: time, requests and memory, with the role nodegauge-view."""

from __future__ import annotations

import os
import re
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from fleet.load.figures import Rows
from fleet.load.release import NAMESPACE, NAMESPACED, RELEASE
from support.cluster_under_test import RBAC
from testbed.audit import AuditTrail, service_account
from testbed.binaries import build_kubectl
from testbed.controlplane import ControlPlane
from testbed.errors import TestbedError
from testbed.processes import output_of

PERSON, TIMES = "person", 5
PROGRAM = """
import atexit, pathlib, sys
atexit.register(lambda: sys.stderr.write(pathlib.Path("/proc/self/status").read_text()))
from nodegauge_cli.__main__ import start
start()
"""
"""The program, and what the kernel knows of it at its end: ru_maxrss would also hold its parent's memory."""
WITH_NODES = f"{RELEASE}-person-of-nodes"
"""A role to list nodes: with it the commands read the most."""


def cost(plane: ControlPlane, *, node: str) -> Rows:
    """Each command some times, as a process of its own through kubectl: the median counts, and memory at its
    highest."""
    environ = _environ(plane)
    rows: Rows = {}
    for command in (f"explain {node}", "status", "nodes"):
        arguments = [sys.executable, "-c", PROGRAM, *command.split()]
        output_of(arguments, env=environ)  # files are read from the disk once
        trail = AuditTrail(plane.audit_log, plane.rest())
        looks = [_once(arguments, environ) for _ in range(TIMES)]
        user = service_account(NAMESPACE, PERSON)
        calls = sum(1 for entry in trail.entries() if entry.user == user)
        seconds, cpu, memory = zip(*looks, strict=True)
        name = f"nodegauge {command.split()[0]}"
        rows[f"{name}: median, ms"] = f"{1000 * statistics.median(seconds):,.0f}"
        rows[f"  CPU of it and its kubectl, ms: {name}"] = f"{1000 * statistics.median(cpu):,.0f}"
        rows[f"  requests: {name}"] = f"{calls / TIMES:g}"
        rows[f"  memory, highest, MiB: {name}"] = f"{max(memory):.0f}"
    return rows


def _once(arguments: list[str], environ: dict[str, str]) -> tuple[float, float, float]:
    """Seconds, CPU seconds with its children's, and MiB at its highest."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        arguments, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise TestbedError(f"{' '.join(arguments[3:])} ended with {done.returncode}: {done.stderr}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    highest = re.search(r"VmHWM:\s+(\d+) kB", done.stderr)
    assert highest is not None, done.stderr
    return seconds, cpu, int(highest[1]) / 1024


def _environ(plane: ControlPlane) -> dict[str, str]:
    """Of somebody who may read what nodegauge writes, and list nodes."""
    api = plane.rest()
    api.create(f"{NAMESPACED}/serviceaccounts", {"metadata": {"name": PERSON}})
    rule = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}
    api.create(f"{RBAC}/clusterroles", {"metadata": {"name": WITH_NODES}, "rules": [rule]})
    subjects = [{"kind": "ServiceAccount", "namespace": NAMESPACE, "name": PERSON}]
    for role in (f"{RELEASE}-view", WITH_NODES):
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
        bound = {"metadata": {"name": f"{PERSON}-{role}"}, "roleRef": reference, "subjects": subjects}
        api.create(f"{RBAC}/clusterrolebindings", bound)
    token = plane.service_account_token(NAMESPACE, PERSON)
    path = os.pathsep.join((str(Path(build_kubectl()).parent), os.environ["PATH"]))
    return {**os.environ, "KUBECONFIG": str(plane.user_kubeconfig(PERSON, token=token)), "PATH": path}
