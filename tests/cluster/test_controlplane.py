"""Where the testbed could hide a defect: rights that nobody enforces."""

from __future__ import annotations

import pytest

from testbed.audit import AuditTrail, service_account
from testbed.controlplane import ControlPlane
from testbed.errors import ApiError

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
