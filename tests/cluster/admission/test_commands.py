"""Every command of `kubectl nodegauge` on a real API server, with the chart's roles for people: through
kubectl and without it, with exactly the rights that docs/kubectl.md names, and without each of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from click.testing import Result as Printed

from nodegauge_cli.__main__ import main
from nodegauge_operator import names
from support.cluster_under_test import GROUP, RBAC
from support.guarded import ACCOUNT, NAMESPACE, NODE, PODS, Guarded, without_label
from support.rights import OTHER, everybody, owned
from testbed.binaries import build_kubectl

pytestmark = pytest.mark.cluster

VIEW, EDIT, OVERRIDE, OF_PODS = "nodegauge-view", "nodegauge-edit", "nodegauge-override", "view"
OVERRULED = f"override {NODE} healthy --until 1h --reason fan --by ann"
COMMANDS: dict[str, tuple[str, ...]] = {
    "status": (VIEW,),
    "nodes": (VIEW,),
    f"explain {NODE}": (VIEW,),
    f"why waits -n {NAMESPACE}": (VIEW, OF_PODS),
    "watch --for 1s": (VIEW,),
    f"diff {NODE} {OTHER}": (VIEW,),
    f"history {NODE}": (VIEW,),
    f"ticket {NODE} --anyway": (VIEW,),
    "report --html -": (VIEW,),
    f"run {NODE} --probe health --no-wait": (VIEW, EDIT),
    "pause rights --reason firmware": (VIEW, EDIT),
    OVERRULED: (OVERRIDE,),
    "override --list": (VIEW,),
}
"""Each with the ClusterRoles that it needs, `view` in the pod's namespace."""


class People:
    """Accounts, each bound to some roles, and what a command says to them."""

    def __init__(self, guarded: Guarded, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._guarded, self._folder, self._monkeypatch = guarded, folder, monkeypatch

    def call(self, command: str, *roles: str, forged: str = "") -> Printed:
        account = self._account(roles)
        account.write_text(account.read_text().replace("token: ", f"token: {forged}"))
        self._monkeypatch.setenv("KUBECONFIG", str(account))
        result = CliRunner().invoke(main, command.split())
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    def _account(self, roles: tuple[str, ...]) -> Path:
        admin, name = self._guarded.admin, "-".join(["person", *sorted(roles)])
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
        if not admin.find(f"{path}/{name}"):
            admin.create(path, {"metadata": {"name": name}})
            subjects = [{"kind": "ServiceAccount", "namespace": NAMESPACE, "name": name}]
            for role in roles:
                where = f"namespaces/{NAMESPACE}/rolebindings" if role == OF_PODS else "clusterrolebindings"
                of_chart = role.replace("nodegauge", ACCOUNT)
                reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": of_chart}
                bound = {"metadata": {"name": f"{name}.{role}"}, "roleRef": reference, "subjects": subjects}
                admin.create(f"{RBAC}/{where}", bound)
        plane = self._guarded.plane
        token = plane.service_account_token(NAMESPACE, name)
        return plane.user_kubeconfig(name, token=token, path=self._folder / name)


@pytest.fixture(scope="module")
def cluster(guarded: Guarded) -> Iterator[Guarded]:
    with everybody(guarded):
        guarded.operator.create(f"{GROUP}/nodereports", owned(guarded, OTHER))
        for node in (NODE, OTHER):
            status = {"status": {"policy": "rights", "installation": f"{NAMESPACE}/ng"}}
            guarded.operator.patch(f"{GROUP}/nodereports/{node}/status", status)
        pod = without_label(guarded.pod()) | {"metadata": {"name": "waits"}}
        pod["spec"]["nodeSelector"] = {"no": "node"}
        guarded.admin.create(PODS, pod)
        yield guarded
        guarded.admin.delete(f"{GROUP}/nodereports/{OTHER}")
        written = (names.OVERRIDE, names.OVERRIDE_UNTIL, names.OVERRIDE_BY, names.OVERRIDE_REASON)
        guarded.admin.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"annotations": dict.fromkeys(written)}})


@pytest.fixture(params=["kubectl", "client"])
def people(
    request: pytest.FixtureRequest, cluster: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> People:
    monkeypatch.setenv("PATH", str(build_kubectl().parent) if request.param == "kubectl" else "")
    cluster.admin.patch(f"{GROUP}/gpuvalidationpolicies/rights", {"spec": {"mode": "Enforce"}})
    return People(cluster, tmp_path, monkeypatch)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_needs_its_roles_and_names_the_one_that_is_missing(people: People, command: str) -> None:
    needed = COMMANDS[command]
    if command.startswith("watch") and not os.environ["PATH"]:
        refused = people.call(command, *needed)
        assert (refused.exit_code, "needs kubectl on PATH" in refused.output) == (1, True), refused.output
        return
    for missing in needed:
        refused = people.call(command, *(role for role in needed if role != missing))
        assert (refused.exit_code, "forbidden: User" in refused.output) == (1, True), refused.output
        assert re.findall(r"ClusterRole ([\w-]+)", refused.output) == [missing]
    allowed = people.call(command, *needed)
    assert allowed.exit_code == 0, allowed.output


def test_who_is_not_known_is_told_to_log_in(people: People) -> None:
    refused = people.call("status", VIEW, forged="x")
    assert (refused.exit_code, "does not know who you are" in refused.output) == (1, True), refused.output
    assert "ClusterRole" not in refused.output
