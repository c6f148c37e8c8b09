"""Reports that another version wrote, or somebody edited: what is known stays, gates and taints above all."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nodegauge_operator.api.report import GateState, ReportStatus, parse_report
from nodegauge_operator.reconcile.cache import Cache
from support.crds import nodes_of, part
from support.messages import spoilt
from support.objects import paths_of as leaves
from support.operator import SteppedOperator, one_node

FULL: dict[str, Any] = yaml.safe_load((Path(__file__).parents[1] / "cluster/full-status.yaml").read_text())
OPEN = {"verdict", "rawVerdict", "class", "reported", "agreement", "band"}
OPEN |= {"outcome", "severity", "state", "psu"}
ENUMS = [p for p in leaves(FULL) if p and p[-1] in OPEN]


def parsed(path: tuple[Any, ...], value: Any) -> Any:
    return parse_report({"metadata": {"name": "n"}, "status": spoilt(FULL, [(path, value)])})


@pytest.mark.parametrize("path", ENUMS, ids=lambda path: ".".join(map(str, path)))
def test_an_unknown_value_survives_a_round_trip(path: tuple[Any, ...]) -> None:
    report = parsed(path, "of-a-newer-version")
    assert report.unreadable is None
    written = msgspec.to_builtins(msgspec.convert(FULL, ReportStatus))
    assert msgspec.to_builtins(report.status) == spoilt(written, [(path, "of-a-newer-version")])


def test_the_crd_s_status_leaves_room_for_values_of_newer_versions() -> None:
    """After a rollback the old CRD would refuse each write of a report with a new value."""
    closed = {
        path.rpartition(".")[2]
        for path, schema in nodes_of(part("nodereports", "status"))
        if "enum" in schema
    }
    assert closed == {"effect", "condition", "type"}, "Kubernetes fixes the values of these"


WRONG = st.sampled_from([5, -1.5, True, "text", [], ["x"], {}, {"a": 1}, None])


@given(st.data())
def test_a_part_of_another_type_is_left_out_and_named(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from([p for p in leaves(FULL) if p]))
    report = parsed(path, data.draw(WRONG))
    whole = msgspec.convert(FULL, ReportStatus)
    for name in {"gates", "desired", "probes"} - {path[0]}:
        assert getattr(report.status, name) == getattr(whole, name)


def test_the_log_names_what_was_left_out(caplog: pytest.LogCaptureFixture) -> None:
    report = parsed(("gates", 0, "bad"), "three")
    assert Cache().put_report(report)
    assert report.status.gates[0].bad == 0
    assert report.status.gates[0].code == FULL["gates"][0]["code"]
    assert "$.gates[0].bad" in caplog.text


@pytest.fixture
def operator(stated_answers: None) -> SteppedOperator:
    """Of a node with one bad run that tainted it."""
    operator = one_node()
    operator.measure("gpu-lost=b")
    assert operator.cluster.tainted_nodes()
    return operator


def edit(operator: SteppedOperator, changes: dict[str, Any]) -> None:
    operator.status.update(changes)
    operator.restart()
    operator.catch_up(granted=False)


def gate(operator: SteppedOperator) -> dict[str, Any]:
    row: dict[str, Any] = operator.status["gates"][0]
    return row


def test_a_gate_of_an_unknown_state_keeps_its_taint_as_long_as_any(operator: SteppedOperator) -> None:
    edit(operator, {"gates": [gate(operator) | {"state": "quarantined"}]})
    for good in (0, 1, 2):
        assert (gate(operator)["state"], gate(operator).get("good", 0)) == ("quarantined", good)
        assert operator.cluster.tainted_nodes()
        operator.measure()
    assert not operator.cluster.tainted_nodes()
    assert gate(operator)["state"] == GateState.WATCHING


def test_a_gate_of_an_unknown_state_sets_no_taint(operator: SteppedOperator) -> None:
    row = gate(operator)
    for _ in range(3):
        operator.measure()
    assert not operator.cluster.tainted_nodes()
    edit(operator, {"gates": [row | {"state": "suspected"}]})
    assert not operator.cluster.tainted_nodes()
    operator.measure("gpu-lost=b")
    assert not operator.cluster.tainted_nodes()
    assert gate(operator)["state"] == "suspected"


@pytest.mark.parametrize(
    "changes",
    [
        {"summary": ["no", "text"]},
        {"interconnect": "nvlink"},
        {"verdict": "doubtful", "rawVerdict": "doubtful"},
        {"clock": {"smMhz": "fast"}},
    ],
    ids=str,
)
def test_a_bad_field_elsewhere_lifts_no_taint(operator: SteppedOperator, changes: dict[str, Any]) -> None:
    before = gate(operator)
    edit(operator, changes)
    assert gate(operator) == before
    operator.measure()
    assert operator.cluster.tainted_nodes()
    assert gate(operator)["good"] == 1
