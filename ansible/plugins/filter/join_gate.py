"""The filters of the role `join_gate`: what it writes into a kubelet's files, and which labels it refuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.nodegauge.gpu.plugins.plugin_utils.kubeadm_config import kubeadm_config_gate
from ansible_collections.nodegauge.gpu.plugins.plugin_utils.kubelet_config import kubelet_config_gate
from ansible_collections.nodegauge.gpu.plugins.plugin_utils.kubelet_flags import kubelet_flags_gate
from ansible_collections.nodegauge.gpu.plugins.plugin_utils.rancher_config import rancher_config_gate

# Kubernetes: staging/src/k8s.io/kubelet/pkg/apis/well_known_labels.go. A kubelet refuses to start with
# any other label of these domains.
ALLOWED_LABELS = frozenset(
    {
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "beta.kubernetes.io/os",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "kubernetes.io/arch",
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
    }
)
ALLOWED_DOMAINS = ("kubelet.kubernetes.io", "node.kubernetes.io")
LABEL_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
LABEL_DOMAIN = re.compile(
    r"(?=.{1,253}$)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*"
)


def refused_node_labels(labels: Mapping[str, Any] | None) -> list[str]:
    """Why a kubelet must not set these labels, one sentence each; empty if it may."""
    return [reason for key, value in (labels or {}).items() if (reason := _refusal(str(key), value))]


def _refusal(key: str, value: object) -> str:
    domain, _slash, name = key.rpartition("/")
    if not LABEL_NAME.fullmatch(name) or ("/" in key and not LABEL_DOMAIN.fullmatch(domain)):
        return f"{key} is no name of a label."
    if not isinstance(value, str) or len(value) > 63 or (value and not LABEL_NAME.fullmatch(value)):
        return f"{key}: {value!r} is no value of a label. Quote booleans and numbers."
    if domain == "nodegauge.dev" or domain.endswith(".nodegauge.dev") or key == "interconnect":
        return f"{key} is a label of the operator, which sets it from a reading. Leave it out."
    kubernetes = any(
        domain == parent or domain.endswith(f".{parent}") for parent in ("kubernetes.io", "k8s.io")
    )
    allowed = any(domain == parent or domain.endswith(f".{parent}") for parent in ALLOWED_DOMAINS)
    if kubernetes and not allowed and key not in ALLOWED_LABELS:
        return (
            f"{key}: a kubelet must not set this label (NodeRestriction), and does not start with it. "
            f"Set it once the node has joined: kubectl label node NODE {key}={value}"
        )
    return ""


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """By name."""
        return {
            "kubeadm_config_gate": kubeadm_config_gate,
            "kubelet_config_gate": kubelet_config_gate,
            "kubelet_flags_gate": kubelet_flags_gate,
            "rancher_config_gate": rancher_config_gate,
            "refused_node_labels": refused_node_labels,
        }
