"""Who writes what was measured."""

from __future__ import annotations

import pytest

from nodegauge_operator import names
from support.cluster_under_test import GROUP
from support.guarded import NODE, Guarded, of_kind, refusal

pytestmark = pytest.mark.cluster


def test_only_the_release_writes_what_was_measured(guarded: Guarded) -> None:
    """Reports by the operator's account; people may ask for a run, and delete."""
    node = guarded.admin.get(f"/api/v1/nodes/{NODE}")["metadata"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node["uid"]}
    made = of_kind(names.REPORT_KIND)
    made["metadata"]["ownerReferences"] = [owner]
    guarded.operator.create(f"{GROUP}/nodereports", made)
    report = f"{GROUP}/nodereports/{NODE}"
    status = {"status": {"policy": "default"}}
    for rest in (guarded.admin, guarded.cleanup):
        assert "writes what it measured" in refusal(rest.patch, f"{report}/status", status)
    guarded.operator.patch(f"{report}/status", status)
    guarded.admin.patch(report, {"spec": {"requestedAt": "2026-01-01T00:00:00Z"}})
    guarded.admin.delete(report)


def test_only_the_bmc_reader_writes_what_a_bmc_said(guarded: Guarded) -> None:
    """Not the operator's account, and not the administrator."""
    made = of_kind(names.CHASSIS_KIND)
    collection = f"{GROUP}/chassisreadings"
    assert "BMC reader" in refusal(guarded.admin.create, collection, made)
    guarded.bmc.create(collection, made)
    guarded.bmc.delete(f"{collection}/{NODE}")


def test_only_the_release_writes_what_outlives_a_node_and_it_has_no_owner(guarded: Guarded) -> None:
    node = guarded.admin.get(f"/api/v1/nodes/{NODE}")["metadata"]
    made, collection = (
        of_kind(names.HISTORY_KIND) | {"status": {"nodeUID": node["uid"]}},
        f"{GROUP}/nodehistories",
    )
    assert "writes the history" in refusal(guarded.admin.create, collection, made)
    guarded.operator.create(collection, made)
    path, day = f"{collection}/{NODE}", {"status": {"days": {"2026-11-24": "verdict=pass"}}}
    assert "writes the history" in refusal(guarded.admin.patch, path, day)
    guarded.operator.patch(path, day)
    owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node["uid"]}
    owned = {"metadata": {"ownerReferences": [owner]}}
    for rest in (guarded.admin, guarded.operator):
        assert "outlives its node" in refusal(rest.patch, path, owned)
    guarded.operator.delete(path)
