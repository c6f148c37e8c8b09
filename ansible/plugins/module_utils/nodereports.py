# nodegauge: Apache-2.0, see LICENSE
"""NodeReports of a cluster as flat dictionaries, for the module nodereport_info and the inventory plugin.

Only reads.  The kubernetes package is needed where this runs; `connect` says so if it is missing.
"""

import json
import os
import re
import time
import traceback
from calendar import timegm

try:
    import kubernetes
    import urllib3
except ImportError:
    HAS_KUBERNETES = False
    KUBERNETES_IMPORT_ERROR = traceback.format_exc()
else:
    HAS_KUBERNETES = True
    KUBERNETES_IMPORT_ERROR = ""

GROUP, VERSION, PLURAL = "nodegauge.dev", "v1alpha1", "nodereports"
PREFIX = "nodegauge.dev/"
PAGE = 500
"""Objects in one answer of the API server."""
TIMEOUT = (10, 60)
"""Seconds for a connection, and for an answer."""
NOT_FAULTS = ("unvalidated",)
"""Our taints that are not for a fault."""
OUR_TAINT = re.compile(r"nodegauge[.]dev/|[^/]+/nodegauge-(throttled|unhealthy|unvalidated)$")
"""Keys of our taints, also those that a policy chose (spec.taints.keys)."""

ARGUMENTS = {
    "kubeconfig": {"type": "path"},
    "context": {"type": "str"},
    "host": {"type": "str"},
    "api_key": {"type": "str", "no_log": True},
    "ca_cert": {"type": "path"},
    "validate_certs": {"type": "bool", "default": True},
    "name": {"type": "str"},
    "label_selector": {"type": "str"},
}
"""How to reach the API server, and which nodes to read."""


class ClusterError(Exception):
    """The cluster cannot be read; the text says why, and what to do."""


def connect(options):
    """A client for the cluster that `options` name.  Raises ClusterError."""
    if not HAS_KUBERNETES:
        raise ClusterError(
            "The Python package kubernetes is missing here. Install it: pip install kubernetes"
        )
    try:
        configuration = kubernetes.client.Configuration()
        if options.get("host"):
            configuration.host = options["host"]
        elif _in_cluster(options):
            kubernetes.config.load_incluster_config(client_configuration=configuration)
        else:
            kubernetes.config.load_kube_config(
                config_file=options.get("kubeconfig"),
                context=options.get("context"),
                client_configuration=configuration,
                persist_config=False,
            )
    except (kubernetes.config.ConfigException, OSError, ValueError) as error:
        problem = one_line(error)
        raise ClusterError(f"The kubeconfig cannot be used: {problem}. Set kubeconfig and context.") from None
    if options.get("api_key"):
        configuration.api_key = {"authorization": "Bearer " + options["api_key"]}
    if options.get("ca_cert"):
        configuration.ssl_ca_cert = options["ca_cert"]
    if options.get("validate_certs") is False:
        configuration.verify_ssl = False
    configuration.retries = 1
    return kubernetes.client.ApiClient(configuration)


def _in_cluster(options):
    named = options.get("kubeconfig") or options.get("context") or os.environ.get("KUBECONFIG")
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and not named


def read(client, name=None, label_selector=None):
    """Every node with its report as `tidy` gives it, by name, and the names of reports without a node.

    `label_selector` selects nodes.  Raises ClusterError.
    """
    reports = {report["metadata"]["name"]: report for report in _listed(client, _reports, name)}
    nodes = {
        node["metadata"]["name"]: node
        for node in _listed(client, _nodes, name, label_selector=label_selector)
    }
    tidied = [tidy(nodes[node], reports.get(node)) for node in sorted(nodes)]
    without = [] if label_selector else sorted(set(reports) - set(nodes))
    return tidied, without


def _reports(client, **options):
    api = kubernetes.client.CustomObjectsApi(client)
    return api.list_cluster_custom_object(GROUP, VERSION, PLURAL, _request_timeout=TIMEOUT, **options)


def _nodes(client, **options):
    api = kubernetes.client.CoreV1Api(client)
    answer = api.list_node(_preload_content=False, _request_timeout=TIMEOUT, **options)
    return json.loads(answer.data)


def _listed(client, call, name, **options):
    """All objects of one kind, in pages; from the start again, once, if the list expired meanwhile."""
    if name:
        options["field_selector"] = "metadata.name=" + name
    options = {key: value for key, value in options.items() if value}
    for last_try in (False, True):
        try:
            return _pages(client, call, options)
        except kubernetes.client.ApiException as error:
            if error.status == 410 and not last_try:
                continue
            raise ClusterError(_refusal(error, call)) from None
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            where, problem = client.configuration.host, one_line(getattr(error, "reason", None) or error)
            raise ClusterError(
                f"The API server at {where} does not answer: {problem}. Check kubeconfig and network."
            ) from None
    raise ClusterError("The API server's lists expire while they are read. Try again.")


def _pages(client, call, options):
    items: list[object] = []
    token = None
    while True:
        page = call(client, limit=PAGE, **(dict(options, _continue=token) if token else options))
        items += page.get("items") or []
        token = (page.get("metadata") or {}).get("continue")
        if not token:
            return items


def _refusal(error, call):
    what, ours = "nodes" if call is _nodes else PLURAL, f"{PLURAL}.{GROUP}"
    if error.status == 404:
        return f"The cluster has no resource {ours}. Install nodegauge first (role nodegauge.gpu.operator)."
    if error.status == 403:
        return f"The API server forbids to list {what}. Grant get and list on nodes and on {ours}."
    if error.status == 401:
        return "The API server does not accept these credentials. Renew them, or set kubeconfig and context."
    return f"The API server refused to list {what}: {error.status} {one_line(error.reason)}"


def tidy(node, report):
    """One node: what its report says in short.  Values that are not known are empty or none."""
    metadata, status = node["metadata"], (report or {}).get("status") or {}
    interconnect, gpus = status.get("interconnect") or {}, status.get("gpus") or {}
    bandwidth, desired = status.get("bandwidth") or {}, status.get("desired") or {}
    taints = [taint for taint in _taints(node) if OUR_TAINT.match(taint["key"])]
    probes = status.get("probes") or []
    health: dict[str, object] = next((p for p in probes if p.get("name") == "health"), {})
    return {
        "name": metadata["name"],
        "reported": bool(status),
        "verdict": status.get("verdict") or "",
        "summary": status.get("summary") or "",
        "causes": [t["value"] for t in taints if not t["key"].endswith(NOT_FAULTS) and t["value"]],
        "taints": taints,
        "unschedulable": bool((node.get("spec") or {}).get("unschedulable")),
        "interconnect": interconnect.get("class") or "",
        "interconnect_evidence": interconnect.get("evidence") or "",
        "nvlink_gbps": interconnect.get("nvlinkGbps"),
        "busbw_allreduce_gbps": bandwidth.get("allReduce"),
        "model": gpus.get("product") or "",
        "gpu_count": gpus.get("count") or 0,
        "driver": gpus.get("driver") or "",
        "psu": (desired.get("labels") or {}).get(PREFIX + "psu", ""),
        "findings": _findings(status),
        "policy": status.get("policy") or "",
        "read_at": health.get("readAt") or "",
        "age_seconds": _age(health.get("readAt")),
        "labels": metadata.get("labels") or {},
        "addresses": {
            address["type"]: address["address"]
            for address in (node.get("status") or {}).get("addresses") or []
        },
    }


def needs_repair(tidied):
    """A taint for a fault stands, or the verdict is fail."""
    return tidied["verdict"] == "fail" or bool(tidied["causes"])


def _taints(node):
    listed = (node.get("spec") or {}).get("taints") or []
    return [{"key": t["key"], "value": t.get("value", ""), "effect": t["effect"]} for t in listed]


def _findings(status):
    return [
        {
            "probe": probe.get("name", ""),
            "code": finding.get("code", ""),
            "severity": finding.get("severity", ""),
            "subject": finding.get("subject", ""),
            "message": finding.get("message", ""),
        }
        for probe in status.get("probes") or []
        for finding in probe.get("findings") or []
    ]


def _age(stamp):
    """Seconds since a time in RFC 3339, UTC; none if it is none."""
    try:
        return max(0, int(time.time() - timegm(time.strptime(stamp or "", "%Y-%m-%dT%H:%M:%SZ"))))
    except ValueError:
        return None


def one_line(text):
    return " ".join(str(text).split())[:300]
