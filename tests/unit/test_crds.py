"""The CRDs are what the operator reads and writes: names, limits, patterns, messages, examples.

`make check` compares them with the types of operator and contract, field by field (`support.crds`).
"""

import re
from itertools import product
from pathlib import Path

import pytest
import yaml
from msgspec import inspect

from nodegauge_contract.model import MAX_GPUS
from nodegauge_contract.reading import API_VERSION, KIND, PART_BYTES, PLURAL, Part
from nodegauge_judge.catalogue import CATALOGUE
from nodegauge_judge.history.model import LIMIT
from nodegauge_operator import names
from nodegauge_operator.api.policy import parse
from nodegauge_operator.api.probe_settings import DURATION
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core import gates, report_size, wording
from nodegauge_operator.core.probes.registry import label_keys
from support.crds import CRDS, crd, differences, nodes_of, part, unbounded, version

POLICY, REPORT = names.POLICY_PLURAL, names.REPORT_PLURAL
READING, CHASSIS, HISTORY = names.READING_PLURAL, names.CHASSIS_PLURAL, names.HISTORY_PLURAL
PARTS = [
    *product((POLICY, REPORT), ("spec", "status")),
    *product((READING,), PART_BYTES),
    (CHASSIS, "status"),
    (HISTORY, "status"),
]


def test_a_reading_is_what_probes_write() -> None:
    properties = version(READING)["schema"]["openAPIV3Schema"]["properties"]
    assert properties.keys() - {"apiVersion", "kind", "metadata"} == PART_BYTES.keys()
    for name, most in PART_BYTES.items():
        assert differences(part(READING, name), inspect.type_info(Part), name) == []
        assert part(READING, name)["properties"]["reading"]["maxLength"] == most
        assert part(READING, name)["x-kubernetes-map-type"] == "atomic"
        assert [path for path, schema in nodes_of(part(READING, name), name) if unbounded(schema)] == []
    assert (names.API_VERSION, names.READING_KIND, READING) == (API_VERSION, KIND, PLURAL)


def test_only_a_finding_s_evidence_and_a_bmc_s_reading_have_free_fields() -> None:
    free = [
        path
        for plural, name in PARTS
        for path, schema in nodes_of(part(plural, name), name)
        if "x-kubernetes-preserve-unknown-fields" in schema
    ]
    assert free == ["status.probes[].findings[].evidence{}", "status.reading"]


@pytest.mark.parametrize("plural", [POLICY, REPORT])
def test_rule_messages_name_the_field_and_the_fix(plural: str) -> None:
    for path, schema in nodes_of(version(plural)["schema"]["openAPIV3Schema"]):
        for rule in schema.get("x-kubernetes-validations", []):
            own = path.rstrip("[]").rpartition(".")[2]
            known = {own, *schema.get("properties", {})}
            assert any(word in rule["message"] for word in known), f"{path}: {rule['message']}"
            assert re.search(r"\b(write|raise|lower|remove|name|set)\b", rule["message"]), rule["message"]


@pytest.mark.parametrize(
    ("plural", "kind", "short"),
    [
        (POLICY, names.POLICY_KIND, "gvp"),
        (REPORT, names.REPORT_KIND, "nr"),
        (READING, names.READING_KIND, "reading"),
        (CHASSIS, names.CHASSIS_KIND, "bmc"),
        (HISTORY, names.HISTORY_KIND, "nhist"),
    ],
)
def test_names_are_those_of_the_operator(plural: str, kind: str, short: str) -> None:
    definition = crd(plural)
    assert definition["metadata"]["name"] in (*names.CRD_NAMES, names.CHASSIS_CRD, names.HISTORY_CRD)
    assert definition["spec"]["group"] == names.GROUP
    assert definition["spec"]["scope"] == "Cluster"
    assert version(plural)["name"] == names.VERSION
    assert version(plural).get("subresources") == ({"status": {}} if plural in (POLICY, REPORT) else None)
    spelled = definition["spec"]["names"]
    assert (spelled["kind"], spelled["plural"], spelled["shortNames"]) == (kind, plural, [short])


@pytest.mark.parametrize("plural", [POLICY, REPORT, READING, CHASSIS])
def test_columns_show_fields_that_exist(plural: str) -> None:
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
    status = dict(nodes_of(part(REPORT, "status"), "status"))
    assert status["status.probes[].history"]["maxLength"] >= LIMIT
    assert status["status.probes[].findings"]["maxItems"] >= report_size.MAX_FINDINGS
    assert status["status.desired.message"]["maxLength"] >= wording.MAX_MESSAGE
    assert status["status.gpus.items"]["maxItems"] >= MAX_GPUS
    assert len(label_keys()) < status["status.desired.labels"]["maxProperties"]
    assert len(names.NODE_TAINTS) <= status["status.desired.taints"]["maxItems"]
    assert len(gates.GATES) + gates.MAX_UNKNOWN <= status["status.gates"]["maxItems"]
    assert status["status.gates[].subject"]["maxLength"] >= report_size.MAX_SUBJECT


def test_values_of_the_code_match_the_patterns() -> None:
    status = dict(nodes_of(part(REPORT, "status"), "status"))
    time = status["status.probes[].readAt"]["pattern"]
    assert re.search(time, stamp(1_800_000_000))
    assert re.search(time, stamp(0))
    assert not re.search(time, "yesterday")
    code = status["status.probes[].findings[].code"]
    assert [c for c in CATALOGUE if not re.search(code["pattern"], c) or len(c) > code["maxLength"]] == []


def test_the_duration_pattern_is_that_of_the_parser() -> None:
    assert part(POLICY, "spec")["properties"]["limits"]["properties"]["notGone"]["pattern"] == DURATION


@pytest.mark.parametrize("path", sorted((CRDS / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_examples_are_valid_policies(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    body = yaml.safe_load(text)
    assert text.startswith("# ")
    assert (body["apiVersion"], body["kind"]) == (names.API_VERSION, names.POLICY_KIND)
    assert parse(body).spec.node_selector.match_labels
