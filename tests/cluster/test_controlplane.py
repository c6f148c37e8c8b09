"""The testbed's control plane: that it starts, stops and is a real one."""

from __future__ import annotations

import dataclasses
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.audit import AuditTrail, service_account
from testbed.controlplane import ControlPlane
from testbed.errors import ApiError, ControlPlaneError
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

PROGRAMS = {"etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager"}
POD_SPEC = {"containers": [{"name": "main", "image": "none"}]}


def mentioning(directory: Path) -> set[int]:
    """Pids of all processes whose command line names the directory."""
    result = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if os.fsencode(directory) in file.read_bytes():
                result.add(int(file.parent.name))
        except OSError:
            continue
    return result


@pytest.fixture
def node(control_plane: ControlPlane) -> Iterator[str]:
    """A node that says it is ready, without any kubelet."""
    rest, name = control_plane.rest(), f"node-{uuid.uuid4().hex[:8]}"
    rest.create("/api/v1/nodes", {"metadata": {"name": name}})
    status = {
        "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": ""}],
    }
    rest.patch(f"/api/v1/nodes/{name}/status", {"status": status})
    yield name
    rest.delete(f"/api/v1/nodes/{name}")


def test_it_starts_restarts_and_stops_and_another_one_is_left_alone(
    tmp_path: Path, control_plane: ControlPlane
) -> None:
    """Data and identity survive a stop, a SIGKILL of the API server, and another control plane's end."""
    name = f"kept-{uuid.uuid4().hex[:8]}"
    own = ControlPlane(tmp_path / "with space")
    with own:
        assert set(own.pids) == PROGRAMS
        assert set(own.pids.values()) <= mentioning(tmp_path)
        own.rest().create("/api/v1/namespaces", {"metadata": {"name": name}})
        assert own.server != control_plane.server
        with pytest.raises(ApiError, match="NotFound"):
            control_plane.rest().get(f"/api/v1/namespaces/{name}")
        token = own.admin_token
    assert not mentioning(tmp_path)
    own.stop()  # harmless a second time
    with own:
        server, first, rest = own.server, own.pids["kube-apiserver"], own.rest(token)
        assert rest.get(f"/api/v1/namespaces/{name}")["status"]["phase"] == "Active"
        own.stop_apiserver(grace=0)
        with pytest.raises(OSError, match="refused"):
            rest.get(f"/api/v1/namespaces/{name}")
        own.start_apiserver()
        assert rest.get(f"/api/v1/namespaces/{name}")
        assert own.server == server
        assert own.pids["kube-apiserver"] != first
    assert set(control_plane.pids) == PROGRAMS


def test_a_program_that_ends_is_named_with_the_end_of_its_log(
    tmp_path: Path, control_plane: ControlPlane
) -> None:
    """A start that cannot succeed says which program failed and why, and leaves nothing running."""
    broken = tmp_path / "kube-apiserver"
    broken.write_text("#!/bin/sh\necho out of order >&2\nexit 7\n")
    broken.chmod(0o755)
    binaries = dataclasses.replace(control_plane.binaries, kube_apiserver=broken)
    with pytest.raises(ControlPlaneError, match=r"(?s)kube-apiserver ended with exit code 7;.*out of order"):
        ControlPlane(tmp_path, binaries=binaries).start()
    assert not mentioning(tmp_path)


def test_a_pod_is_scheduled_onto_a_ready_node(control_plane: ControlPlane, namespace: str, node: str) -> None:
    """The real scheduler places it and the real admission gives it its token volume."""
    rest = control_plane.rest()
    pods = f"/api/v1/namespaces/{namespace}/pods"
    rest.create(pods, {"metadata": {"name": "placed"}, "spec": POD_SPEC})
    wait_for(lambda: rest.get(f"{pods}/placed")["spec"].get("nodeName") == node, what="a placed pod")
    volumes = rest.get(f"{pods}/placed")["spec"]["volumes"]
    assert volumes[0]["name"].startswith("kube-api-access-")
    rest.delete(f"{pods}/placed", {"gracePeriodSeconds": 0})


def test_controllers_work(control_plane: ControlPlane, namespace: str) -> None:
    """A Deployment becomes a ReplicaSet and a pod, and is garbage-collected with its owner."""
    rest = control_plane.rest()
    labels = {"app": "one"}
    template = {"metadata": {"labels": labels}, "spec": POD_SPEC}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    pods = f"/api/v1/namespaces/{namespace}/pods"
    rest.create(deployments, {"metadata": {"name": "one"}, "spec": spec})
    wait_for(lambda: len(rest.get(pods)["items"]) == 1, what="the pod")
    rest.delete(f"{deployments}/one")
    wait_for(lambda: not rest.get(pods)["items"], what="the pod collected")


def test_a_service_account_token_authenticates_and_rbac_decides(
    control_plane: ControlPlane, namespace: str
) -> None:
    """A TokenRequest token is its account, which may do nothing that no role allows."""
    account = control_plane.rest(control_plane.service_account_token(namespace, "default"))
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    output = account.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    assert output["status"]["userInfo"]["username"] == service_account(namespace, "default")
    with pytest.raises(ApiError, match="403 Forbidden"):
        account.get("/api/v1/nodes")


def test_the_audit_log_has_who_wrote_what(control_plane: ControlPlane, node: str, audit: AuditTrail) -> None:
    """A patch of a node is there with user, body and answer, by the time the patch has returned."""
    body = {"metadata": {"labels": {"example.com/team": "blue"}}}
    control_plane.rest().patch(f"/api/v1/nodes/{node}", body)
    [entry] = audit.writes(resource="nodes", name=node, user="testbed-admin")
    assert (entry.verb, entry.resource, entry.code, entry.body) == ("patch", "nodes", 200, body)
    assert entry.user_agent == "nodegauge-testbed"


def test_the_audit_log_has_refused_writes_and_reads_of_accounts(
    control_plane: ControlPlane, namespace: str, audit: AuditTrail
) -> None:
    """What a service account tries is seen, also when it may not do it."""
    account = control_plane.rest(control_plane.service_account_token(namespace, "default"))
    for attempt in (lambda: account.get("/api/v1/nodes"), lambda: account.delete("/api/v1/nodes/absent")):
        with pytest.raises(ApiError, match="403"):
            attempt()
    user = service_account(namespace, "default")
    seen = [(entry.verb, entry.code) for entry in audit.entries() if entry.user == user]
    assert seen == [("list", 403), ("delete", 403)]
    assert len(audit.writes(user=user)) == 1


def test_no_token_is_in_the_audit_log(control_plane: ControlPlane, namespace: str) -> None:
    """The log can be shown around: requests for tokens are in it without their answers."""
    token = control_plane.service_account_token(namespace, "default")
    log = control_plane.audit_log.read_text()
    assert "serviceaccounts" in log
    assert token not in log
    assert control_plane.admin_token not in log


def test_secrets_are_readable_by_their_owner_alone(control_plane: ControlPlane) -> None:
    """Kubeconfigs and tokens of the testbed are no use to other users of the machine."""
    layout = control_plane.layout
    for file in (control_plane.kubeconfig, layout.tokens, layout.key_file, control_plane.kubelet_kubeconfig):
        assert file.stat().st_mode & 0o077 == 0, file
