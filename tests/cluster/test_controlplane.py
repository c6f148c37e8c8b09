"""The control plane of the testbed: its life, and that it is a real one."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testbed.audit import AuditTrail, service_account
from testbed.controlplane import ControlPlane
from testbed.errors import ApiError, ControlPlaneError
from testbed.loopback import reserve_port

pytestmark = pytest.mark.cluster

TESTS = Path(__file__).parents[1]
PROGRAMS = {"etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager"}
POD_SPEC = {"containers": [{"name": "main", "image": "none"}]}


def eventually(condition: Callable[[], object], *, seconds: float = 20.0) -> None:
    """Poll until the condition holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not within {seconds:g} s"
        time.sleep(0.02)


def mentioning(directory: Path) -> set[int]:
    """Pids of all processes whose command line names the directory."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if os.fsencode(directory) in file.read_bytes():
                found.add(int(file.parent.name))
        except OSError:
            continue
    return found


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


def test_starts_and_stops_without_leaving_a_process(tmp_path: Path) -> None:
    """All four programs run after start; after stop none does, and a second stop is harmless."""
    with ControlPlane(tmp_path / "with space") as control_plane:
        assert set(control_plane.pids) == PROGRAMS
        assert set(control_plane.pids.values()) <= mentioning(tmp_path)
    assert not mentioning(tmp_path)
    control_plane.stop()


def test_several_run_beside_each_other(tmp_path: Path, control_plane: ControlPlane) -> None:
    """What is written to one is not in the other, and the end of one leaves the other alone."""
    name = f"only-here-{uuid.uuid4().hex[:8]}"
    with ControlPlane(tmp_path) as other:
        other.rest().create("/api/v1/namespaces", {"metadata": {"name": name}})
        assert other.server != control_plane.server
        with pytest.raises(ApiError, match="NotFound"):
            control_plane.rest().get(f"/api/v1/namespaces/{name}")
    assert set(control_plane.pids) == PROGRAMS


def test_data_and_identity_survive_stop_and_start(tmp_path: Path) -> None:
    """A control plane that is started again in its directory knows its objects and its tokens."""
    control_plane = ControlPlane(tmp_path)
    with control_plane:
        control_plane.rest().create("/api/v1/namespaces", {"metadata": {"name": "kept"}})
        token = control_plane.admin_token
    with control_plane:
        assert control_plane.rest(token).get("/api/v1/namespaces/kept")["status"]["phase"] == "Active"


OWNER = """
import sys, pathlib, threading
sys.path.insert(0, sys.argv[2])
from testbed.controlplane import ControlPlane
control_plane = ControlPlane(pathlib.Path(sys.argv[1]))
# The thread that starts it ends at once: that must not end what it has started.
starter = threading.Thread(target=control_plane.start)
starter.start()
starter.join()
print(len(control_plane.pids), flush=True)
threading.Event().wait()
"""


def test_no_process_survives_an_owner_that_is_killed(tmp_path: Path) -> None:
    """SIGKILL of the Python process that started it ends all four programs."""
    command = [sys.executable, "-c", OWNER, str(tmp_path), str(TESTS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == f"{len(PROGRAMS)}\n"
        programs = mentioning(tmp_path) - {owner.pid}
        assert len(programs) == len(PROGRAMS)
        owner.kill()
    eventually(lambda: not mentioning(tmp_path))


def test_a_program_that_ends_is_named_with_its_last_words(
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


def test_a_port_taken_in_the_last_moment_costs_a_second_try(
    tmp_path: Path, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port that was free when it was chosen is another program's when kube-apiserver binds it."""
    taken = int(control_plane.server.rpartition(":")[2])
    ports = iter([reserve_port(), taken])
    monkeypatch.setattr("testbed.controlplane.reserve_port", lambda: next(ports, None) or reserve_port())
    said: list[str] = []
    with ControlPlane(tmp_path, progress=said.append) as other:
        assert other.server != control_plane.server
    assert any("trying other ports" in words for words in said)


def test_a_restarted_apiserver_has_the_same_address_and_data(tmp_path: Path) -> None:
    """After SIGTERM and after SIGKILL, clients find it again with what they had written."""
    with ControlPlane(tmp_path) as control_plane:
        server = control_plane.server
        rest = control_plane.rest()
        rest.create("/api/v1/namespaces", {"metadata": {"name": "kept"}})
        first = control_plane.pids["kube-apiserver"]
        control_plane.restart_apiserver()
        second = control_plane.pids["kube-apiserver"]
        assert rest.get("/api/v1/namespaces/kept")
        control_plane.stop_apiserver(grace=0)
        with pytest.raises(OSError, match="refused"):
            rest.get("/api/v1/namespaces/kept")
        control_plane.start_apiserver()
        assert rest.get("/api/v1/namespaces/kept")
        assert control_plane.server == server
        assert len({first, second, control_plane.pids["kube-apiserver"]}) == 3


def test_a_pod_is_scheduled_onto_a_ready_node(control_plane: ControlPlane, namespace: str, node: str) -> None:
    """The real scheduler places it and the real admission gives it its token volume."""
    rest = control_plane.rest()
    pods = f"/api/v1/namespaces/{namespace}/pods"
    rest.create(pods, {"metadata": {"name": "placed"}, "spec": POD_SPEC})
    eventually(lambda: rest.get(f"{pods}/placed")["spec"].get("nodeName") == node)
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
    eventually(lambda: len(rest.get(pods)["items"]) == 1)
    rest.delete(f"{deployments}/one")
    eventually(lambda: not rest.get(pods)["items"])


def test_a_service_account_token_authenticates_and_rbac_decides(
    control_plane: ControlPlane, namespace: str
) -> None:
    """A TokenRequest token is its account, which may do nothing that no role allows."""
    account = control_plane.rest(control_plane.service_account_token(namespace, "default"))
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    said = account.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    assert said["status"]["userInfo"]["username"] == service_account(namespace, "default")
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


def test_kubectl_and_helm_reach_it_by_its_kubeconfig(control_plane: ControlPlane, namespace: str) -> None:
    """Go's clients accept the certificate, and a failure carries the program's words."""
    assert control_plane.helm("list", "--all-namespaces", "--output", "json").strip() == "[]"
    with pytest.raises(ControlPlaneError, match="release: not found"):
        control_plane.helm("status", "absent", "--namespace", namespace)
    if control_plane.binaries.kubectl:
        listed = json.loads(control_plane.kubectl("get", "namespace", namespace, "--output", "json"))
        assert listed["metadata"]["name"] == namespace


def test_secrets_are_readable_by_their_owner_alone(control_plane: ControlPlane) -> None:
    """Kubeconfigs and tokens of the testbed are no use to other users of the machine."""
    layout = control_plane.layout
    for file in (control_plane.kubeconfig, layout.tokens, layout.key_file, control_plane.kubelet_kubeconfig):
        assert file.stat().st_mode & 0o077 == 0, file


def test_a_running_control_plane_refuses_to_start_again(control_plane: ControlPlane) -> None:
    """A second start would lose sight of the first one's processes."""
    with pytest.raises(ControlPlaneError, match="running already"):
        control_plane.start()
    assert set(control_plane.pids) == PROGRAMS
