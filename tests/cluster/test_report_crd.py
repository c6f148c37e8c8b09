"""The report's CRD on a real API server: a full status is stored unchanged, an invalid one is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from nodegauge_judge import Verdict
from nodegauge_operator import names
from nodegauge_operator.api.report import ProbeStatus, ReportStatus, parse_report
from support.cluster_under_test import install_crds
from support.crds import REPORTS, dry_run, manifest, nodes_of, part
from testbed.errors import ApiError
from testbed.rest import Rest

FULL = Path(__file__).parent / "full-status.yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"

LONG = "x" * 33
"""Longer than any value of an enum may be; newer versions may add shorter ones."""
FINDING = {"code": "hot", "severity": "warn", "subject": "GPU 0", "message": "m"}

pytestmark = pytest.mark.cluster


@pytest.fixture
def api(api: Rest) -> Rest:
    """An API server that has nodegauge's CRDs."""
    install_crds(api)
    return api


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
    """A status in which every field has a value."""
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
    """`kubectl get nr` shows all_reduce and the cause of a taint; both cells are empty without a result."""
    for status, bandwidth, cause in ((full_status(), 476, "thermal"), (ReportStatus(), None, None)):
        with report(api) as path:
            api.patch(f"{path}/status", {"status": msgspec.to_builtins(status)})
            table = api.call("GET", path, headers={"Accept": TABLE})
        columns = [column["name"] for column in table["columnDefinitions"]]
        cells = dict(zip(columns, table["rows"][0]["cells"], strict=True))
        assert (cells["all-reduce GB/s"], cells["Taints"]) == (bandwidth, cause)


def test_an_empty_status_is_accepted(api: Rest) -> None:
    """The status of a node without results is accepted, including its nulls."""
    with report(api) as path:
        written = msgspec.to_builtins(ReportStatus(probes=[ProbeStatus(name="health")]))
        api.patch(f"{path}/status", {"status": written})
        assert parse_report(api.get(path)).status.probe("health").verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"verdict": LONG}, "status.verdict"),
        ({"interconnect": {"class": LONG}}, "status.interconnect.class"),
        ({"evidence": "x" * 500}, "status.evidence"),
        ({"probes": [{"name": "health", "history": "x" * 3000}]}, "status.probes[0].history"),
        ({"probes": [{"name": "health", "readAt": "yesterday"}]}, "status.probes[0].readAt"),
        ({"probes": [{"name": "health"}, {"name": "health"}]}, "status.probes[1]"),
        ({"gates": [{"code": "hot"}, {"code": "hot"}]}, "status.gates[1]"),
        ({"gates": [{"code": "hot", "state": LONG}]}, "status.gates[0].state"),
        ({"desired": {"taints": [{"key": "k", "effect": "None"}]}}, "status.desired.taints[0].effect"),
        ({"psu": LONG}, "status.psu"),
        ({"bandwidth": {"agreement": LONG}}, "status.bandwidth.agreement"),
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
