"""What the commands for people cost on the fleet: time, requests and memory, with the role nodegauge-view."""

from __future__ import annotations

import os
import statistics
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
WITH_NODES = f"{RELEASE}-person-of-nodes"
"""A role to list nodes: with it the commands read the most."""


def cost(plane: ControlPlane, *, node: str) -> Rows:
    """Each command some times, as a process of its own through kubectl: the median counts, and memory at its
    highest."""
    environ = _environ(plane)
    rows: Rows = {}
    for command in (f"explain {node}", "status", "nodes"):
        arguments = [sys.executable, "-m", "nodegauge_cli", *command.split()]
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
        rows[f"  memory, highest, MiB: {name}"] = f"{max(memory) / 1024:.0f}"
    return rows


def _once(arguments: list[str], environ: dict[str, str]) -> tuple[float, float, int]:
    """Seconds, CPU seconds with its children's, and KiB at its highest."""
    began = time.monotonic()
    nowhere = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    pid = os.posix_spawn(arguments[0], arguments, environ, file_actions=nowhere)
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise TestbedError(f"{' '.join(arguments)} ended with {os.waitstatus_to_exitcode(status)}")
    return time.monotonic() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss


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
