"""The chart as tests render it: helm in a home of its own, values as dictionaries, objects as dictionaries.

Asserts nothing.  `VARIANTS` are sets of values that together switch everything on, off and to something else,
and those of clusters as people run them (tests/chart/values).
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "nodegauge"
RELEASE, NAMESPACE = "ng", "gpu-tools"
POLICY_API = "nodegauge.dev/v1alpha1/GPUValidationPolicy"

Object = dict[str, Any]

OFF: Object = {
    "crds": {"enabled": False},
    "policy": {"create": False},
    "cleanup": {"enabled": False},
    "test": {"enabled": False},
    "metrics": {"service": {"enabled": False}},
    "operator": {"serviceAccount": {"create": False, "name": "someone"}},
    "probe": {"serviceAccount": {"create": False, "name": "nobody"}, "priorityClass": {"create": False}},
    "nccl": {"enabled": False, "priorityClass": {"create": False}},
}
"""Everything that can be left out is."""

ALL: Object = {
    "nameOverride": "gauge",
    "fullnameOverride": "my-gauge",
    "namespaceOverride": NAMESPACE,
    "commonLabels": {"cost-center": "1234", "team": "hpc"},
    "imagePullSecrets": ["registry-a", "registry-b"],
    "operator": {
        "image": {
            "registry": "registry.example.com:5000",
            "repository": "op",
            "tag": "9.9",
            "pullPolicy": "Always",
        },
        "logLevel": "debug",
        "logFormat": "text",
        "httpPort": 9090,
        "nodeLabelSelector": "nvidia.com/gpu.present=true",
        "api": {"rate": 50, "burst": 75},
        "workers": 16,
        "sweepInterval": "2s",
        "relistInterval": "1m",
        "resources": {"requests": {"cpu": 1, "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
        "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "priorityClassName": "system-cluster-critical",
        "podLabels": {"team": "overruled", "tier": "infra"},
        "podAnnotations": {"example.com/owner": "me"},
        "terminationGracePeriodSeconds": 45,
        "serviceAccount": {"name": "gauge-operator", "annotations": {"example.com/a": "b"}},
    },
    "probe": {
        "image": {"repository": "pr", "digest": f"sha256:{'0' * 64}", "pullPolicy": "Never"},
        "runtimeClassName": "nvidia",
        "resources": {"requests": {"cpu": "20m"}, "limits": {"memory": "512Mi"}},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "podLabels": {"tier": "probe"},
        "podAnnotations": {"example.com/owner": "you"},
        "serviceAccount": {"name": "gauge-probe"},
        "priorityClass": {"name": "gauge-low", "value": -500},
    },
    "nccl": {
        "image": {"repository": "gpu/nccl"},
        "resources": {"requests": {"cpu": "4"}, "limits": {"memory": "32Gi"}},
        "priorityClass": {"name": "gauge-nccl", "value": -60},
    },
    "crds": {"keep": False},
    "policy": {
        "name": "fleet",
        "spec": {"mode": "Observe", "nodeSelector": {"matchLabels": {"gpu": "yes"}}},
        "apply": {
            "timeout": "45s",
            "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "64Mi"}},
        },
    },
    "metrics": {
        "service": {"port": 80, "annotations": {"example.com/scrape": "yes"}},
        "serviceMonitor": {"enabled": True, "interval": "15s", "labels": {"release": "prometheus"}},
    },
    "cleanup": {
        "timeout": "60s",
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "64Mi"}},
    },
    "test": {
        "timeout": "30s",
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "64Mi"}},
    },
}
"""Everything is set, and to something else than its default."""

FILES: dict[str, Object] = {
    path.stem: yaml.safe_load(path.read_text("utf-8"))
    for path in sorted((ROOT / "tests" / "chart" / "values").glob("*.yaml"))
}
"""Values for clusters as people run them."""

VARIANTS: dict[str, Object] = {"defaults": {}, "off": OFF, "all": ALL, **FILES}

variants = pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS.keys())
"""Marks a test that holds with each of them."""

KNOWN = ("--api-versions", POLICY_API)
"""Options of helm on a cluster that has our CRDs."""


class HelmFailed(Exception):
    """helm ended with an error; the text is what it said."""


@dataclass(frozen=True)
class Helm:
    """helm with caches and configuration below `home`, on the cluster of `kubeconfig` where one is given."""

    program: Path
    home: Path
    kubeconfig: Path | None = None

    def run(self, *arguments: str, values: Object | None = None) -> str:
        """Standard output of helm; `HelmFailed` with what it said otherwise."""
        command = [str(self.program), *arguments]
        if values:
            command += ["--values", "-"]
        text = None if values is None else json.dumps(values)
        done = subprocess.run(
            command, input=text, env=self._environment(), capture_output=True, text=True, timeout=100
        )
        if done.returncode != 0:
            raise HelmFailed(done.stdout + done.stderr)
        return done.stdout

    def template(self, values: Object | None = None, *options: str, release: str = RELEASE) -> str:
        """The rendered manifests, hooks included, as text."""
        return self.run("template", release, str(CHART), "--namespace", NAMESPACE, *options, values=values)

    def objects(self, values: Object | None = None, *options: str, release: str = RELEASE) -> list[Object]:
        """The rendered manifests."""
        return [o for o in yaml.safe_load_all(self.template(values, *options, release=release)) if o]

    def _environment(self) -> dict[str, str]:
        homes = {f"HELM_{kind}_HOME": str(self.home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        kubeconfig = str(self.kubeconfig or self.home / "no-cluster")
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), "KUBECONFIG": kubeconfig, **homes}


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    """The objects of one kind."""
    return [o for o in objects if o["kind"] == kind]


def only(objects: list[Object], kind: str) -> Object:
    """The only object of a kind."""
    (found,) = of_kind(objects, kind)
    return found


def pods(objects: list[Object]) -> dict[str, Object]:
    """The pods, and the pod templates of Deployments and Jobs, by kind and name."""
    return {
        f"{o['kind']}/{o['metadata']['name']}": o if o["kind"] == "Pod" else o["spec"]["template"]
        for o in objects
        if o["kind"] in ("Deployment", "Job", "Pod")
    }


def events(o: Object) -> list[str]:
    """The hook events of an object; none for an ordinary one."""
    hook = o["metadata"].get("annotations", {}).get("helm.sh/hook", "")
    return [event for event in hook.split(",") if event]
