"""Where the testbed could hide a defect: rights that nobody enforces, faults at a wrong moment."""

from __future__ import annotations

import uuid

import pytest

from testbed.audit import AuditTrail, service_account
from testbed.controlplane import ControlPlane
from testbed.errors import ApiError
from testbed.proxy import FaultProxy, RequestInfo, ResponseInfo
from testbed.rest import Rest

pytestmark = pytest.mark.cluster


def test_rights_are_enforced_and_the_audit_log_has_what_was_refused(
    control_plane: ControlPlane, namespace: str, audit: AuditTrail
) -> None:
    """A service account may do nothing that no role allows; what it tries is seen all the same."""
    account = control_plane.rest(control_plane.service_account_token(namespace, "default"))
    for attempt in (lambda: account.get("/api/v1/nodes"), lambda: account.delete("/api/v1/nodes/absent")):
        with pytest.raises(ApiError, match="403 Forbidden"):
            attempt()
    user = service_account(namespace, "default")
    seen = [(entry.verb, entry.code) for entry in audit.entries() if entry.user == user]
    assert seen == [("list", 403), ("delete", 403)]
    assert len(audit.writes(user=user)) == 1


def test_before_a_write_it_is_not_done_yet_and_after_it_it_is(
    control_plane: ControlPlane, api: Rest, fault_proxy: FaultProxy
) -> None:
    """A callable of the fault proxy runs at its moment, and gets the answer after the write."""
    node = f"/api/v1/nodes/node-{uuid.uuid4().hex[:8]}"
    api.create("/api/v1/nodes", {"metadata": {"name": node.rpartition("/")[2], "labels": {"a": "old"}}})
    seen: list[tuple[str, int | None]] = []

    def look(_request: RequestInfo, response: ResponseInfo | None) -> None:
        seen.append((api.get(node)["metadata"]["labels"]["a"], response.status if response else None))

    for when in ("before", "after"):
        fault_proxy.on(method="PATCH", path=rf"{node}$", when=when, do=look)
    client = Rest(fault_proxy.server, ca_file=control_plane.ca_file, token=control_plane.admin_token)
    client.patch(node, {"metadata": {"labels": {"a": "new"}}})
    api.delete(node)
    assert seen == [("old", None), ("new", 200)]
