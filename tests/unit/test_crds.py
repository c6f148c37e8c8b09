"""The CRDs and the operator's types agree: same fields, defaults, bounds and enums.

Both `crds/` and the types in `nodegauge_operator.api` are written by hand.  A field that only one of them has
would be lost without an error, so every difference is an error here.
"""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from msgspec import inspect

from nodegauge_contract.model import MAX_GPUS
from nodegauge_judge import Cause
from nodegauge_judge.catalogue import CATALOGUE
from nodegauge_judge.history.model import LIMIT
from nodegauge_operator import names
from nodegauge_operator.api.chassis import ChassisStatus
from nodegauge_operator.api.evidence import MAX_FINDINGS, MAX_MATRIX, NodeEvidence, ProbeEvidence
from nodegauge_operator.api.policy import PolicySpec, parse, seconds
from nodegauge_operator.api.probe_settings import DURATION
from nodegauge_operator.api.report import Report, ReportStatus, stamp
from nodegauge_operator.core import desired_state, gates, report_size
from nodegauge_operator.names import BudgetReason, PaceReason, PolicyReason
from support.crds import CRDS, Schema, crd, differences, nodes_of, part, version

POLICY, REPORT, EVIDENCE = "gpuvalidationpolicies", "nodereports", "nodeevidences"
CHASSIS = "chassisreadings"
PARTS = (
    (POLICY, "spec"),
    (POLICY, "status"),
    (REPORT, "spec"),
    (REPORT, "status"),
    (EVIDENCE, "probes"),
    (CHASSIS, "status"),
)

ALL_NODES = {
    f"{plural}:{path}": schema
    for plural, name in PARTS
    for path, schema in nodes_of(part(plural, name), name)
}


@pytest.mark.parametrize(
    ("plural", "name", "struct"),
    [(POLICY, "spec", PolicySpec), (REPORT, "status", ReportStatus), (CHASSIS, "status", ChassisStatus)],
)
def test_schema_and_type_agree(plural: str, name: str, struct: type[msgspec.Struct]) -> None:
    """Field by field, a CRD and its type have the same names, types, defaults, required fields and bounds."""
    assert differences(part(plural, name), inspect.type_info(struct), name) == []


@pytest.mark.parametrize(
    ("path", "change", "difference"),
    [
        ("probes.health.interval", {"default": "10m"}, "spec.probes.health.interval: default"),
        ("priority", {"maximum": 5}, "spec.priority: le"),
        ("mode", {"enum": ["Observe"]}, "spec.mode: enum"),
        ("labels.takeOver", {"type": "string"}, "spec.labels.takeOver: type"),
        ("limits", {"required": ["notGone"]}, "spec.limits: required"),
        ("budget", {"properties": {}}, "spec.budget: fields"),
        ("thresholds.powerCapRatio", {"exclusiveMinimum": False}, "spec.thresholds.powerCapRatio: gt"),
        ("taints.causes", {"additionalProperties": {"enum": ["None"]}}, "spec.taints.causes{}: enum"),
        ("hysteresis.probationAfter", {"maxItems": 9}, "spec.hysteresis.probationAfter: maxItems"),
        ("hysteresis.probationAfter", {"default": ["1h"]}, "spec.hysteresis.probationAfter: default"),
        ("hysteresis.dwell", {"nullable": True}, "spec.hysteresis.dwell: nullable"),
    ],
)
def test_the_comparison_finds_differences(path: str, change: Schema, difference: str) -> None:
    """The comparison finds a single change in the schema, and names the field."""
    schema = spec = deepcopy(part(POLICY, "spec"))
    for name in path.split("."):
        schema = schema["properties"][name]
    schema.update(change)
    result = differences(spec, inspect.type_info(PolicySpec), "spec")
    assert any(line.startswith(difference) for line in result), result


def test_the_evidence_is_what_the_operator_writes() -> None:
    """Field by field, the CRD and its type agree."""
    assert differences(part(EVIDENCE, "probes"), inspect.type_info(dict[str, ProbeEvidence]), "probes") == []
    assert [field.encode_name for field in msgspec.structs.fields(NodeEvidence)] == ["probes"]
    described = dict(nodes_of(part(EVIDENCE, "probes"), "probes"))
    assert described["probes{}.findings"]["maxItems"] == MAX_FINDINGS
    assert described["probes{}.matrix"]["maxLength"] == MAX_MATRIX


def test_report_spec_is_what_the_operator_reads() -> None:
    """A report's spec has only `requestedAt`, and `Report` reads it."""
    assert set(part(REPORT, "spec")["properties"]) == {"requestedAt"}
    assert "requested_at" in Report.__struct_fields__


def test_everything_is_described() -> None:
    """Each field has a description for `kubectl explain`, a full sentence; items and map values may rely on
    their parent's."""
    assert [
        name
        for name, schema in ALL_NODES.items()
        if not name.endswith(("[]", "{}")) and not schema.get("description", "").endswith((".", ".)"))
    ] == []


BOUNDS = {
    "string": lambda schema: {"maxLength", "enum", "format"} & schema.keys(),
    "array": lambda schema: {"maxItems", "x-kubernetes-list-type"} <= schema.keys(),
    "object": lambda schema: {"properties", "maxProperties"} & schema.keys(),
    "integer": lambda schema: "minimum" in schema,
    "number": lambda schema: "minimum" in schema,
    "boolean": lambda schema: True,
    None: lambda schema: "maxLength" in schema,
}
"""What bounds a value, by its type."""


def test_everything_is_bounded() -> None:
    """Every string, list, map and number has a bound."""
    assert [name for name, schema in ALL_NODES.items() if not BOUNDS[schema.get("type")](schema)] == []


def test_only_evidence_and_readings_have_free_fields() -> None:
    """Only the values of a finding's evidence, which are scalars, and a BMC's reading have no fixed type."""
    free = [n.partition(":")[2] for n, s in ALL_NODES.items() if "x-kubernetes-preserve-unknown-fields" in s]
    evidence = ["status.probes[].findings[].evidence{}", "probes{}.findings[].evidence{}"]
    assert free == [*evidence, "status.reading"]


@pytest.mark.parametrize("plural", [POLICY, REPORT])
def test_rule_messages_name_the_field_and_the_fix(plural: str) -> None:
    """The message of each CEL rule names the field and says what to write."""
    for path, schema in nodes_of(version(plural)["schema"]["openAPIV3Schema"]):
        for rule in schema.get("x-kubernetes-validations", []):
            own = path.rstrip("[]").rpartition(".")[2]
            known = {own, *schema.get("properties", {})}
            assert any(word in rule["message"] for word in known), f"{path}: {rule['message']}"
            assert re.search(r"\b(write|raise|lower|remove|name|set)\b", rule["message"]), rule["message"]


@pytest.mark.parametrize(
    ("plural", "kind", "short"),
    [
        (names.POLICY_PLURAL, names.POLICY_KIND, "gvp"),
        (names.REPORT_PLURAL, names.REPORT_KIND, "nr"),
        (names.EVIDENCE_PLURAL, names.EVIDENCE_KIND, "ne"),
        (names.CHASSIS_PLURAL, names.CHASSIS_KIND, "bmc"),
    ],
)
def test_names_are_those_of_the_operator(plural: str, kind: str, short: str) -> None:
    """Group, version, kind, plural and scope are those that the operator uses."""
    definition = crd(plural)
    assert definition["metadata"]["name"] in (*names.CRD_NAMES, names.EVIDENCE_CRD, names.CHASSIS_CRD)
    assert definition["spec"]["group"] == names.GROUP
    assert definition["spec"]["scope"] == "Cluster"
    assert version(plural)["name"] == names.VERSION
    assert version(plural).get("subresources") == ({"status": {}} if plural in (POLICY, REPORT) else None)
    spelled = definition["spec"]["names"]
    assert (spelled["kind"], spelled["plural"], spelled["shortNames"]) == (kind, plural, [short])


@pytest.mark.parametrize("plural", [POLICY, REPORT, EVIDENCE, CHASSIS])
def test_columns_show_fields_that_exist(plural: str) -> None:
    """Each printer column shows an existing field of the column's type."""
    properties = version(plural)["schema"]["openAPIV3Schema"]
    for column in version(plural)["additionalPrinterColumns"]:
        if column["jsonPath"].startswith(".metadata."):
            continue
        schema = properties
        for name in re.sub(r"\[(\?.*?\)|\*)\]", "[]", column["jsonPath"]).strip(".").split("."):
            values = schema.get("additionalProperties")
            schema = values if values else schema["properties"][name.removesuffix("[]")]
            schema = schema["items"] if name.endswith("[]") else schema
        assert schema["type"] == column["type"].replace("date", "string"), column["name"]


def test_the_operator_s_limits_fit_the_crd() -> None:
    """The operator's limits on texts and lists do not exceed those of the CRD."""
    status = dict(nodes_of(part(REPORT, "status"), "status"))
    assert status["status.probes[].history"]["maxLength"] >= LIMIT
    assert status["status.probes[].findings"]["maxItems"] >= report_size.MAX_FINDINGS
    assert status["status.desired.message"]["maxLength"] >= desired_state.MAX_MESSAGE
    assert status["status.gpus.items"]["maxItems"] >= MAX_GPUS
    assert len(names.NODE_LABELS) < status["status.desired.labels"]["maxProperties"]
    assert len(names.NODE_TAINTS) <= status["status.desired.taints"]["maxItems"]
    assert len(gates.GATES) + gates.MAX_UNKNOWN <= status["status.gates"]["maxItems"]
    assert status["status.gates[].message"]["maxLength"] >= report_size.MAX_MESSAGE
    assert status["status.gates[].subject"]["maxLength"] >= report_size.MAX_SUBJECT


def test_causes_are_those_of_the_judge() -> None:
    """The policy's rule and its messages list exactly the causes of the judge."""
    causes = part(POLICY, "spec")["properties"]["taints"]["properties"]["causes"]
    (rule,) = causes["x-kubernetes-validations"]
    for text in (rule["rule"], rule["messageExpression"]):
        assert re.findall(r"'([a-z0-9-]+)'", text) == [cause.value for cause in Cause]
    assert all(cause.value in causes["description"] and cause.value in rule["message"] for cause in Cause)
    listed = re.findall(r"[a-z0-9-]+", " ".join(values for values, _ in names.NODE_TAINTS.values()))
    assert {cause.value for cause in Cause} <= set(listed)


def test_values_of_the_code_match_the_patterns() -> None:
    """Timestamps, finding codes and reasons of the code match the CRD's patterns."""
    status = dict(nodes_of(part(REPORT, "status"), "status"))
    time = status["status.probes[].readAt"]["pattern"]
    assert re.search(time, stamp(1_800_000_000))
    assert re.search(time, stamp(0))
    assert not re.search(time, "yesterday")
    code = status["status.probes[].findings[].code"]
    assert [c for c in CATALOGUE if not re.search(code["pattern"], c) or len(c) > code["maxLength"]] == []
    conditions = part(POLICY, "status")["properties"]["conditions"]["description"]
    reasons = (*PolicyReason, *BudgetReason, *PaceReason)
    assert [reason for reason in reasons if reason not in conditions] == []


@pytest.mark.parametrize("name", ["15m", "1h30m", "500ms", "90s"])
def test_the_duration_pattern_is_that_of_the_parser(name: str) -> None:
    """The operator can parse durations that match the CRD's pattern."""
    pattern = part(POLICY, "spec")["properties"]["limits"]["properties"]["notGone"]["pattern"]
    assert pattern == DURATION
    assert re.search(pattern, name)
    assert seconds(name) > 0


@pytest.mark.parametrize("path", sorted((CRDS / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_examples_are_valid_policies(path: Path) -> None:
    """The operator can parse each example, and a comment says what the example is for."""
    text = path.read_text(encoding="utf-8")
    body = yaml.safe_load(text)
    assert text.startswith("# ")
    assert (body["apiVersion"], body["kind"]) == (names.API_VERSION, names.POLICY_KIND)
    assert parse(body).spec.node_selector.match_labels


def test_full_example_names_every_field() -> None:
    """crds/examples/full.yaml has every field of spec."""
    spec = yaml.safe_load((CRDS / "examples" / "full.yaml").read_text(encoding="utf-8"))["spec"]
    missing = []

    def look(schema: Schema, value: Any, path: str) -> None:
        for name, child in schema.get("properties", {}).items():
            if name not in value:
                missing.append(f"{path}.{name}")
            elif isinstance(value[name], dict):
                look(child, value[name], f"{path}.{name}")

    look(part(POLICY, "spec"), spec, "spec")
    assert missing == []
