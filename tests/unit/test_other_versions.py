"""Reports that another version wrote, or somebody edited: what is known stays, gates and taints above all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nodegauge_operator import names
from nodegauge_operator.api.report import GateState, ReportStatus, parse_report
from nodegauge_operator.reconcile.cache import Cache
from support.api_server import NODES
from support.cluster import FakeCluster
from support.crds import nodes_of, part
from support.disturbing import leaves
from support.judging import listening, saying
from support.objects import INTERVAL
from support.operator import SteppedOperator

FULL: dict[str, Any] = yaml.safe_load((Path(__file__).parents[1] / "cluster/full-status.yaml").read_text())
OPEN = {
    "verdict",
    "rawVerdict",
    "class",
    "reported",
    "agreement",
    "band",
    "outcome",
    "severity",
    "state",
    "psu",
}
ENUMS = [p for p in leaves(FULL) if p and p[-1] in OPEN]


def at(document: Any, path: tuple[Any, ...]) -> Any:
    """The value there."""
    for key in path:
        document = document[key]
    return document


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """The full status with another value there."""
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(FULL))
    at(document, path[:-1])[path[-1]] = value
    return document


def parsed(status: dict[str, Any]) -> Any:
    """The report with this status."""
    return parse_report({"metadata": {"name": "n"}, "status": status})


@pytest.mark.parametrize("path", ENUMS, ids=lambda path: ".".join(map(str, path)))
def test_an_unknown_value_survives_a_round_trip(path: tuple[Any, ...]) -> None:
    """Read by this version and written back as it was; nothing else changes."""
    report = parsed(changed(path, "of-a-newer-version"))
    assert report.unreadable is None
    assert at(msgspec.to_builtins(report.status), path) == "of-a-newer-version"
    whole = msgspec.convert(FULL, ReportStatus)
    assert msgspec.to_builtins(report.status) == changed_builtins(whole, path)


def changed_builtins(status: ReportStatus, path: tuple[Any, ...]) -> Any:
    """The status as written, with the unknown value there."""
    document = msgspec.to_builtins(status)
    at(document, path[:-1])[path[-1]] = "of-a-newer-version"
    return document


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
    """Not the report: what stands beside it is read."""
    path = data.draw(st.sampled_from([p for p in leaves(FULL) if p]))
    report = parsed(changed(path, data.draw(WRONG)))
    whole = msgspec.convert(FULL, ReportStatus)
    if path[0] != "gates":
        assert report.status.gates == whole.gates
    if path[0] != "desired":
        assert report.status.desired == whole.desired
    if path[0] != "probes":
        assert report.status.probes == whole.probes


def test_the_log_names_what_was_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Field and types."""
    report = parsed(changed(("gates", 0, "bad"), "three"))
    assert Cache().put_report(report)
    assert report.status.gates[0].bad == 0
    assert report.status.gates[0].code == FULL["gates"][0]["code"]
    assert "$.gates[0].bad" in caplog.text


class Life:
    """A node whose runs a test states."""

    def __init__(self) -> None:
        self.operator = SteppedOperator(FakeCluster())
        self.operator.cluster.add_node("node-1", gpu="yes")
        self.operator.cluster.add_policy()
        self.operator.list()

    def measure(self, answers: str = "") -> None:
        """One run, an interval after the one before."""
        cluster = self.operator.cluster
        cluster.pass_time(INTERVAL)
        cluster.results["node-1"] = saying(answers, load=True)
        self.operator.catch_up()
        cluster.kubelets()
        self.operator.catch_up(granted=False)

    def edit(self, changes: dict[str, Any]) -> None:
        """Another version writes to the report, and this one starts."""
        self.operator.status.update(changes)
        self.operator.restart()
        self.operator.catch_up(granted=False)

    @property
    def gate(self) -> dict[str, Any]:
        """The gate in the report."""
        gate: dict[str, Any] = self.operator.status["gates"][0]
        return gate

    def tainted(self) -> bool:
        """Whether the node carries a taint for a fault."""
        spec = self.operator.cluster.objects[NODES]["node-1"]["spec"]
        return any(t["key"] in names.TAINTS_OF_FAULTS for t in spec.get("taints") or ())


@pytest.fixture
def life() -> Iterator[Life]:
    """Not yet measured."""
    with listening():
        yield Life()


def test_a_gate_of_an_unknown_state_keeps_its_taint_for_as_many_good_runs_as_any(life: Life) -> None:
    """Its state stays as it was written until then."""
    life.measure("gpu-lost=b")
    assert life.tainted()
    life.edit({"gates": [life.gate | {"state": "quarantined"}]})
    for good in (0, 1, 2):
        assert (life.gate["state"], life.gate.get("good", 0), life.tainted()) == ("quarantined", good, True)
        life.measure()
    assert not life.tainted()
    assert life.gate["state"] == GateState.WATCHING


def test_a_gate_of_an_unknown_state_sets_no_taint(life: Life) -> None:
    """Whether it should is what this version does not know."""
    life.measure("gpu-lost=b")
    gate = life.gate
    for _ in range(3):
        life.measure()
    assert not life.tainted()
    life.edit({"gates": [gate | {"state": "suspected"}]})
    assert not life.tainted()
    life.measure("gpu-lost=b")
    assert not life.tainted()
    assert life.gate["state"] == "suspected"


@pytest.mark.parametrize(
    "changes",
    [
        {"summary": ["no", "text"]},
        {"interconnect": "nvlink"},
        {"verdict": "doubtful", "rawVerdict": "doubtful"},
        {"psu": 5},
        {"clock": {"smMhz": "fast"}},
        {"gpus": {"count": "eight"}},
    ],
    ids=str,
)
def test_a_bad_field_elsewhere_lifts_no_taint(life: Life, changes: dict[str, Any]) -> None:
    """One good run does not lift what needs three."""
    life.measure("gpu-lost=b")
    before = life.gate
    life.edit(changes)
    assert life.gate == before
    life.measure()
    assert life.tainted()
    assert life.gate["good"] == 1
