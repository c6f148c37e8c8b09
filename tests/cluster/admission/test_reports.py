"""Who writes what was measured."""

import pytest

from nodegauge_operator import names
from support.cluster_under_test import GROUP
from support.guarded import NODE, Guarded, of_kind, refusal

pytestmark = pytest.mark.cluster


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
