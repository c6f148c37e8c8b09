"""The policy's CRD on a real API server: it accepts the examples, and refuses bad policies, naming the field.

Nothing is stored: every policy is created as a dry run, which applies schema, defaults and CEL as usual.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import yaml

from nodegauge_judge import Cause
from nodegauge_operator.api.policy import Mode, PolicySpec, parse
from support.crds import CRDS, POLICIES, dry_run, install_crds, manifest
from testbed.controlplane import ControlPlane
from testbed.kubelet.api import Api
from testbed.kubelet.errors import ApiError

pytestmark = pytest.mark.cluster

EXAMPLES = sorted((CRDS / "examples").glob("*.yaml"))


@pytest.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[Api]:
    """A session with an API server that has nodegauge's CRDs."""
    async with await Api.connect(control_plane.kubeconfig, agent="tests") as session:
        await install_crds(session, control_plane.kubeconfig)
        yield session


async def refusal(api: Api, spec: object) -> str:
    """The API server's error for a policy with this spec."""
    with pytest.raises(ApiError) as caught:
        await dry_run(api, POLICIES, manifest(POLICIES, spec))
    assert caught.value.status in (400, 422)
    return str(caught.value)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
async def test_examples_are_accepted(api: Api, path: Any) -> None:
    """The API server accepts each example in strict mode."""
    body = yaml.safe_load(path.read_text(encoding="utf-8"))
    body["metadata"]["name"] += f"-{uuid.uuid4().hex[:8]}"
    assert (await dry_run(api, POLICIES, body))["spec"]["nodeSelector"] == body["spec"]["nodeSelector"]


async def test_defaults_are_those_of_the_operator(api: Api) -> None:
    """A policy with only a node selector gets the defaults of the operator's type."""
    spec = {"nodeSelector": {"matchLabels": {"gpu": "yes"}}}
    stored = await dry_run(api, POLICIES, manifest(POLICIES, spec))
    assert stored["spec"]["probes"]["health"]["interval"] == "15m"
    assert parse(stored).spec == msgspec.convert(spec, PolicySpec)


EXPECTATION = {"gpu": "*H100*", "count": 8, "collective": "all_reduce", "bytes": 1 << 30, "busbw": 400}

MALFORMED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no-selector": ({"mode": "Observe"}, "spec.nodeSelector", "Required"),
    "unknown-field": ({"nodeSelector": {}, "interval": "5m"}, "spec.interval", "unknown field"),
    "mode": ({"mode": "observe"}, "spec.mode", '"Observe"'),
    "no-duration": (
        {"probes": {"health": {"interval": "15 minutes"}}},
        "health.interval",
        "write for example",
    ),
    "no-unit": ({"probes": {"health": {"window": "3"}}}, "health.window", "write for example"),
    "too-often": (
        {"probes": {"health": {"interval": "4s", "deadline": "2s", "window": "1s"}}},
        "interval",
        "5s",
    ),
    "overflow": ({"probes": {"health": {"interval": "999999999h"}}}, "health.interval", "interval must be"),
    "overlap": ({"probes": {"health": {"interval": "30s"}}}, "health.deadline", "raise interval"),
    "window": (
        {"probes": {"health": {"deadline": "10s", "window": "9s"}}},
        "health.window",
        "raise deadline",
    ),
    "percent": ({"budget": {"concurrentProbes": "ten%"}}, "budget.concurrentProbes", "write 5 or 10%"),
    "over-100": ({"budget": {"concurrentProbes": "101%"}}, "budget.concurrentProbes", "0% to 100%"),
    "negative": (
        {"budget": {"concurrentProbes": -1}},
        "budget.concurrentProbes",
        "greater than or equal to 0",
    ),
    "gated-percent": ({"budget": {"gatedNodes": "lots"}}, "budget.gatedNodes", "write 5 or 20%"),
    "gated-negative": ({"budget": {"gatedNodes": -1}}, "budget.gatedNodes", "greater than or equal to 0"),
    "cause": (
        {"taints": {"causes": {"thermal": "None", "hot": "None"}}},
        "taints.causes",
        "unknown cause hot; write",
    ),
    "cause-effect": ({"taints": {"causes": {"xid": "Evict"}}}, "taints.causes.xid", '"NoExecute"'),
    "effect": ({"taints": {"effect": "noschedule"}}, "taints.effect", '"PreferNoSchedule"'),
    "unvalidated": ({"taints": {"unvalidated": True}}, "taints.unvalidated", "string"),
    "no-dwell": ({"hysteresis": {"dwell": "0s"}}, "hysteresis.dwell", "write for example 10m"),
    "enter": ({"hysteresis": {"enterRuns": 0}}, "hysteresis.enterRuns", "greater than or equal to 1"),
    "leave": ({"hysteresis": {"leaveRuns": 21}}, "hysteresis.leaveRuns", "less than or equal to 20"),
    "trial": ({"hysteresis": {"probationAfter": ["soon"]}}, "probationAfter", "match"),
    "trial-order": ({"hysteresis": {"probationAfter": ["4h", "1h"]}}, "probationAfter", "the shortest first"),
    "trial-dwell": ({"hysteresis": {"dwell": "2h"}}, "hysteresis.probationAfter", "lower dwell"),
    "trial-long": ({"hysteresis": {"probationAfter": ["1h", "1000h"]}}, "probationAfter", "1s and 720h"),
    "relapse": (
        {"hysteresis": {"relapseWindow": "1y"}},
        "hysteresis.relapseWindow",
        "write for example 168h",
    ),
    "our-key": ({"labels": {"interconnectKey": "nodegauge.dev/x"}}, "interconnectKey", "a key of your own"),
    "k8s-key": ({"labels": {"interconnectKey": "a.kubernetes.io/x"}}, "interconnectKey", "a key of your own"),
    "no-key": (
        {"labels": {"interconnectKey": "not a key"}},
        "labels.interconnectKey",
        "prefix.example.com/name",
    ),
    "no-label": ({"nodeSelector": {"matchLabels": {"a b": "c"}}}, "matchLabels", "prefix.example.com/name"),
    "no-values": (
        {"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
        "matchExpressions[0].values",
        "write Exists",
    ),
    "values": (
        {"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}},
        "matchExpressions[0].values",
        "write In or NotIn",
    ),
    "operator": (
        {"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}},
        "matchExpressions[0].operator",
        '"DoesNotExist"',
    ),
    "hot": ({"thresholds": {"hotWarn": 95}}, "thresholds.hotFail", "raise hotFail"),
    "slow": ({"thresholds": {"slowClockFail": 0.95}}, "thresholds.slowClockFail", "lower slowClockFail"),
    "for-long": ({"thresholds": {"hotForLongRuns": 5}}, "thresholds.hotForLongRuns", "lower hotForLongRuns"),
    "ratio": ({"thresholds": {"nvlinkSumRatio": 75}}, "thresholds.nvlinkSumRatio", "less than or equal to 1"),
    "zero-ratio": ({"thresholds": {"powerCapRatio": 0}}, "thresholds.powerCapRatio", "greater than 0"),
    "stale": ({"staleAfterIntervals": 1}, "spec.staleAfterIntervals", "greater than or equal to 2"),
    "limit": ({"limits": {"notStarted": "2d"}}, "limits.notStarted", "write for example 5m"),
    "overtime": ({"limits": {"overtime": "0s"}}, "limits.overtime", "write for example 60s"),
    "our-label": (
        {"podTemplate": {"labels": {"nodegauge.dev/probe": "x"}}},
        "podTemplate.labels",
        "remove them",
    ),
    "quantity": ({"podTemplate": {"resources": {"limits": {"memory": "lots"}}}}, "limits.memory", "match"),
    "toleration": (
        {"podTemplate": {"tolerations": [{"operator": "Equal", "value": "x"}]}},
        "tolerations[0].key",
        "operator: Exists",
    ),
    "priority": ({"priority": 2_000_000}, "spec.priority", "less than or equal to 1000000"),
    "nccl-interval": ({"probes": {"nccl": {"interval": "5s"}}}, "nccl.interval", "write for example 24h"),
    "nccl-overlap": ({"probes": {"nccl": {"interval": "5m"}}}, "nccl.deadline", "raise interval"),
    "nccl-recheck": ({"probes": {"nccl": {"recheck": "never"}}}, "nccl.recheck", "write for example 10m"),
    "engine": ({"probes": {"nccl": {"engine": "mpi"}}}, "nccl.engine", '"nccl-tests"'),
    "variable": (
        {"probes": {"nccl": {"environment": {"LD_PRELOAD": "x"}}}},
        "nccl.environment",
        "write for example NCCL_ALGO",
    ),
    "variables": (
        {"probes": {"nccl": {"environment": {f"NCCL_{n}": "1" for n in range(33)}}}},
        "nccl.environment",
        "must have at most 32",
    ),
    "nccl-budget": ({"budget": {"concurrentNcclProbes": "all"}}, "concurrentNcclProbes", "write 5 or 10%"),
    "until": ({"taints": {"unvalidatedUntil": "Tomorrow"}}, "taints.unvalidatedUntil", '"Nccl"'),
    "nccl-image": ({"podTemplate": {"ncclImage": "a b"}}, "podTemplate.ncclImage", "match"),
    "nccl-quantity": ({"podTemplate": {"ncclResources": {"limits": {"cpu": "x"}}}}, "limits.cpu", "match"),
    "expect-alone": ({"expectations": [EXPECTATION | {"count": 1}]}, "expectations[0].count", "equal to 2"),
    "expect-nothing": (
        {"expectations": [EXPECTATION | {"busbw": 0}]},
        "expectations[0].busbw",
        "greater than 0",
    ),
    "expect-what": (
        {"expectations": [EXPECTATION | {"collective": "broadcast"}]},
        "[0].collective",
        "all_gather",
    ),
    "expect-kind": (
        {"expectations": [EXPECTATION | {"kind": "hearsay"}]},
        "expectations[0].kind",
        "accept-floor",
    ),
    "expect-many": ({"expectations": [EXPECTATION] * 65}, "spec.expectations", "must have at most 64"),
}


@pytest.mark.parametrize(("spec", "field", "hint"), MALFORMED.values(), ids=MALFORMED.keys())
async def test_malformed_policies_are_refused(api: Api, spec: dict[str, Any], field: str, hint: str) -> None:
    """The API server refuses a malformed policy with a message that names the field and the fix."""
    selector = {} if field == "spec.nodeSelector" else {"nodeSelector": {"matchLabels": {"gpu": "yes"}}}
    message = await refusal(api, selector | spec)
    assert field in message
    assert hint in message


GOOD: dict[str, dict[str, Any]] = {
    "every-node": {"nodeSelector": {}},
    "count": {"budget": {"concurrentProbes": 5}},
    "all": {"budget": {"concurrentProbes": "100%"}},
    "short": {"probes": {"health": {"interval": "5s", "deadline": "4s", "window": "500ms"}}},
    "no-short-key": {"labels": {"interconnectKey": ""}},
    "prefixed": {"labels": {"interconnectKey": "gpu.example.com/fabric_1"}},
    "any-taint": {"podTemplate": {"tolerations": [{"operator": "Exists"}]}},
    "observe": {"mode": "Observe"},
    "gated-count": {"budget": {"gatedNodes": 0}},
    "no-trial": {"hysteresis": {"dwell": "168h", "probationAfter": []}},
    "short-trial": {"hysteresis": {"dwell": "2s", "probationAfter": ["2s", "2s", "1m"], "probation": "1s"}},
    "causes": {"taints": {"effect": "None", "causes": {cause.value: "NoExecute" for cause in Cause}}},
    "no-nccl": {"probes": {"nccl": {"enabled": False}}, "budget": {"concurrentNcclProbes": "0%"}},
    "short-nccl": {"probes": {"nccl": {"interval": "20s", "deadline": "15s", "recheck": "1s"}}},
    "expectations": {
        "expectations": [EXPECTATION, EXPECTATION | {"nvls": None, "link": "", "floor": 0}] * 32
    },
    "variables": {"probes": {"nccl": {"environment": {f"NCCL_{n}": "x" * 1024 for n in range(32)}}}},
}


@pytest.mark.parametrize("spec", GOOD.values(), ids=GOOD.keys())
async def test_good_policies_are_accepted(api: Api, spec: dict[str, Any]) -> None:
    """Policies at the limits of the rules are accepted, and the operator can parse them."""
    stored = await dry_run(
        api, POLICIES, manifest(POLICIES, {"nodeSelector": {"matchLabels": {"gpu": "yes"}}} | spec)
    )
    assert parse(stored).spec.mode in Mode
