"""The CRDs on a real API server; policies are created as dry runs, with schema, defaults and CEL as usual."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from nodegauge_judge import Cause
from nodegauge_operator import names
from nodegauge_operator.api.policy import Mode, PolicySpec, parse
from nodegauge_operator.api.report import ProbeStatus, ReportStatus, parse_report
from support.crds import CRDS, POLICIES, REPORTS, dry_run, manifest, nested, nodes_of, part
from testbed.errors import ApiError
from testbed.rest import Rest

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("crds")]

EXAMPLES = sorted((CRDS / "examples").glob("*.yaml"))


def refusal(api: Rest, spec: object) -> str:
    with pytest.raises(ApiError) as caught:
        dry_run(api, POLICIES, manifest(POLICIES, spec))
    assert caught.value.status in (400, 422)
    return str(caught.value)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_accepted(api: Rest, path: Any) -> None:
    """The API server accepts each example in strict mode."""
    body = yaml.safe_load(path.read_text(encoding="utf-8"))
    body["metadata"]["name"] += f"-{uuid.uuid4().hex[:8]}"
    assert (dry_run(api, POLICIES, body))["spec"]["nodeSelector"] == body["spec"]["nodeSelector"]


def test_defaults_are_those_of_the_operator(api: Rest) -> None:
    """A policy with only a node selector gets the defaults of the operator's type."""
    spec = {"nodeSelector": {"matchLabels": {"gpu": "yes"}}}
    stored = dry_run(api, POLICIES, manifest(POLICIES, spec))
    assert stored["spec"]["probes"]["health"]["interval"] == "15m"
    assert parse(stored).spec == msgspec.convert(spec, PolicySpec)


XID_RULE = {"codes": [63, 94], "severity": "Fail"}
EXPECTATION = {"gpu": "*H100*", "count": 8, "collective": "all_reduce", "bytes": 1 << 30, "busbw": 400}


def socket(**fields: Any) -> list[Any]:
    """What feeds one GPU: a slot and one socket."""
    return [{"gpu": "0", "sockets": [fields]}]


EXPRESSIONS, EXISTS = "nodeSelector.matchExpressions", {"key": "a", "operator": "Exists"}
SHORT = {"probes": {"health": {"interval": "30s", "deadline": "20s"}}}


MALFORMED: list[Any] = [
    *yaml.safe_load(Path(__file__).with_name("malformed.yaml").read_text("utf-8")),
    ("breaker.groupLabels", ["a b"], "should match"),
    ("limits.notStarted", "2d", "write for example 5m"),
    (EXPRESSIONS, [EXISTS | {"key": "interconnect"}], "write another key", "labels.interconnectKey"),
    (EXPRESSIONS, [EXISTS | {"key": "nodegauge.dev/health"}], "write another label key"),
    (EXPRESSIONS, [EXISTS | {"operator": "In"}], "write Exists", "matchExpressions[0].values"),
    (EXPRESSIONS, [EXISTS | {"values": ["b"]}], "write In or NotIn", "matchExpressions[0].values"),
    ("", SHORT | {"thresholds": {"intervalFloor": 20}}, "lower busyFloor", "thresholds.busyFloor"),
    ("probes.nccl.environment", {f"NCCL_{n}": "1" for n in range(33)}, "must have at most 32"),
    ("expectations", [EXPECTATION | {"busbw": 0}], "greater than 0", "expectations[0].busbw"),
    ("expectations", [EXPECTATION] * 65, "must have at most 64"),
    ("xids", [XID_RULE | {"codes": []}], "at least 1 items", "xids[0].codes"),
    ("xids", [XID_RULE | {"window": "721h"}], "write for example 24h", "xids[0].window"),
    ("powerInventory.gpus", socket(connector="12VHPWR"), "set it to", "sockets[0].watts"),
    ("powerInventory.gpus", socket(connector="12-pin", watts=500), "set it to", "sockets[0].watts"),
    ("powerInventory.gpus", socket(connector="8-pin", watts=150), "remove it", "sockets[0].watts"),
    ("powerInventory.gpus", socket(connector="6-pin", cables=["a", "b"]), "remove", "sockets[0].cables"),
]
"""Path below spec, wrong value, part of the message, and the field that it names if not the path: every rule
in CEL, and an example of each kind of bound (`make check` compares all bounds with the types)."""


@pytest.mark.parametrize("case", MALFORMED, ids=lambda case: f"{case[0]}={case[1]}"[:60])
def test_malformed_policies_are_refused(api: Rest, case: tuple[Any, ...]) -> None:
    """The API server refuses a malformed policy with a message that names the field and the fix."""
    path, value, hint, field = (*case, case[0])[:4]
    selector = {} if field == "spec.nodeSelector" else {"nodeSelector": {"matchLabels": {"gpu": "yes"}}}
    message = refusal(api, selector | nested(path.split(".") if path else [], value))
    assert field in message
    assert hint in message


GOOD: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("wellformed.yaml").read_text("utf-8")
) | {
    "busy-as-long-as-the-floor": SHORT | {"thresholds": {"intervalFloor": 60.5, "busyFloor": 60.5}},
    "causes": {"taints": {"effect": "None", "causes": {cause.value: "NoExecute" for cause in Cause}}},
    "expectations": {
        "expectations": [EXPECTATION, EXPECTATION | {"nvls": None, "link": "", "floor": 0}] * 32
    },
    "variables": {"probes": {"nccl": {"environment": {f"NCCL_{n}": "x" * 1024 for n in range(32)}}}},
}
GOOD["cables"]["powerInventory"]["gpus"] *= 32


@pytest.mark.parametrize("spec", GOOD.values(), ids=GOOD.keys())
def test_good_policies_are_accepted(api: Rest, spec: dict[str, Any]) -> None:
    """Policies at the limits of the rules are accepted, and the operator can parse them."""
    stored = dry_run(
        api, POLICIES, manifest(POLICIES, {"nodeSelector": {"matchLabels": {"gpu": "yes"}}} | spec)
    )
    assert parse(stored).spec.mode in Mode


FULL = Path(__file__).parent / "full-status.yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
LONG = "x" * 33
"""Longer than any value of an enum may be; newer versions may add shorter ones."""
FINDING = {"code": "hot", "severity": "warn", "subject": "GPU 0", "message": "m"}


@contextmanager
def report(api: Rest) -> Iterator[str]:
    """The path of a report that exists during the block."""
    created = api.create(REPORTS, manifest(REPORTS, {}))
    path = f"{REPORTS}/{created['metadata']['name']}"
    try:
        yield path
    finally:
        api.delete(path)


def full_status() -> ReportStatus:
    return msgspec.convert(yaml.safe_load(FULL.read_text("utf-8")), ReportStatus)


def paths(value: Any, path: str = "") -> set[str]:
    """The paths of a document's fields, in the notation of `nodes_of`; keys of free maps are left out."""
    if isinstance(value, list):
        return {p for item in value for p in paths(item, f"{path}[]")} | {path}
    if isinstance(value, dict):
        return {p for key, item in value.items() for p in paths(item, f"{path}.{key}")} | {path}
    return {path} if value not in ("", None) else set()


def test_full_status_round_trips(api: Rest) -> None:
    """The API server stores a status with every field set unchanged."""
    status = full_status()
    written = msgspec.to_builtins(status)
    described = nodes_of(part(names.REPORT_PLURAL, "status"), "status")
    assert {path for path, _ in described if not path.endswith(("[]", "{}"))} <= paths(written, "status")
    with report(api) as path:
        api.patch(f"{path}/status?fieldValidation=Strict", {"status": written})
        read = api.get(path)
        assert parse_report(read).status == status
        assert read["status"] == written


def test_the_table_shows_bandwidth_and_taints(api: Rest) -> None:
    """`kubectl get nr`: both cells are empty without a result."""
    empty = ReportStatus(probes=[ProbeStatus(name="health")])
    for status, bandwidth, cause in ((full_status(), 476, "thermal"), (empty, None, None)):
        with report(api) as path:
            api.patch(f"{path}/status", {"status": msgspec.to_builtins(status)})
            table = api.call("GET", path, headers={"Accept": TABLE})
        columns = [column["name"] for column in table["columnDefinitions"]]
        cells = dict(zip(columns, table["rows"][0]["cells"], strict=True))
        assert (cells["all-reduce GB/s"], cells["Taints"]) == (bandwidth, cause)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"verdict": LONG}, "status.verdict"),
        ({"probes": [{"name": "health", "reading": "x" * 301}]}, "status.probes[0].reading"),
        ({"probes": [{"name": "health", "readAt": "yesterday"}]}, "status.probes[0].readAt"),
        ({"probes": [{"name": "health"}, {"name": "health"}]}, "status.probes[1]"),
        ({"desired": {"taints": [{"key": "k", "effect": "None"}]}}, "status.desired.taints[0].effect"),
        ({"bandwidth": {"allReduce": 0.5}}, "status.bandwidth.allReduce"),
        ({"gpus": {"items": [{"index": i} for i in range(65)]}}, "status.gpus.items"),
        ({"probes": [{"name": "h", "findings": [{"code": "hot"}]}]}, "status.probes[0].findings[0].severity"),
        *(
            ({"probes": [{"name": "h", "findings": [FINDING | {"evidence": {"e": value}}]}]}, "evidence.e")
            for value in ([1], {"a": 1}, "x" * 3000)
        ),
    ],
)
def test_invalid_statuses_are_refused(api: Rest, change: dict[str, Any], field: str) -> None:
    """A status that violates the schema is refused, and the error names the field."""
    with report(api) as path:
        with pytest.raises(ApiError) as caught:
            api.patch(f"{path}/status", {"status": change})
        assert field in str(caught.value)


def test_requested_at_is_a_time(api: Rest) -> None:
    """`spec.requestedAt` accepts only a time."""
    assert dry_run(api, REPORTS, manifest(REPORTS, {"requestedAt": "2026-01-31T12:00:00Z"}))
    with pytest.raises(ApiError, match=r"spec\.requestedAt"):
        dry_run(api, REPORTS, manifest(REPORTS, {"requestedAt": "now"}))
