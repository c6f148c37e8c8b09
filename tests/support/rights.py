"""Who can do what: the rows of tests/cluster/admission/rights.yaml, and everybody who makes their calls."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from nodegauge_operator import names
from support.api_server import merged
from support.cluster_under_test import GROUP
from support.guarded import (
    ACCOUNT,
    DAEMONSETS,
    LEASES,
    NAMESPACE,
    NODE,
    PODS,
    Guarded,
    Writer,
    of_kind,
    token_spec,
    without_label,
)
from testbed.errors import ApiError
from testbed.rest import MERGE, STRATEGIC, Object, Rest
from testbed.scripted import create_node

TABLE: Object = yaml.safe_load(Path("tests/cluster/admission/rights.yaml").read_text("utf-8"))
OTHER, TEAM = "gpu-2", "team"
BINDINGS = (
    ("tenant", f"namespaces/{TEAM}/rolebindings", "edit"),
    ("default", "namespaces/default/rolebindings", "edit"),
    ("admin", f"namespaces/{NAMESPACE}/rolebindings", "admin"),
    ("editor", "clusterrolebindings", "edit"),
    ("second", "clusterrolebindings", ACCOUNT),
    ("second", "namespaces/default/rolebindings", "edit"),
)
"""Where each person has which ClusterRole; `second` is the operator of another installation."""
IMPERSONATED = {
    "kubelet": (f"system:node:{NODE}", "system:nodes"),
    "other": (f"system:node:{OTHER}", "system:nodes"),
    "anonymous": ("system:anonymous", "system:unauthenticated"),
    **{name: (name, "system:authenticated") for name, _, _ in BINDINGS},
}
SELF_REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Everybody:
    def __init__(self, guarded: Guarded, writer: Writer) -> None:
        self._guarded, self._writer = guarded, writer
        self._tokens = {"operator": guarded.operator, "probe": writer.rest}

    def outcome(self, who: str, row: Object) -> str:
        """`yes`, `policy` for a refusal by one of ours, or `no` for one by Kubernetes itself."""
        rest, headers = self._tokens.get(who, self._guarded.admin), {}
        if who not in self._tokens:
            user, group = IMPERSONATED[who]
            headers = {"Impersonate-User": user, "Impersonate-Group": group}
        try:
            return self._call(rest, row, headers)
        except ApiError as error:
            if error.status not in (401, 403):
                raise
            return "policy" if "ValidatingAdmissionPolicy" in str(error) else "no"

    def _call(self, rest: Rest, row: Object, headers: dict[str, str]) -> str:
        if "can" in row:
            body = {"spec": {"resourceAttributes": row["can"]}}
            review = rest.call("POST", SELF_REVIEW, body=body, headers=headers)
            return "yes" if review["status"]["allowed"] else "no"
        method, path = row["call"].split()
        how = STRATEGIC if "patch" in row else MERGE if method == "PATCH" else "application/json"
        sent = None if method in ("GET", "DELETE") else self._body(row)
        query = "" if method == "GET" else "?dryRun=All"
        rest.call(method, path + query, body=sent, content_type=how, headers=headers)
        return "yes"

    def _body(self, row: Object) -> Object:
        made = row.get("make")
        if made == "report":
            body = owned(self._guarded, OTHER)
        elif made == "reading":
            body = of_kind(names.READING_KIND) | self._writer.health(sequence=9)
        elif made == "token":
            body = {"spec": token_spec(self._writer.pod)}
        elif made in ("watch", "takeover"):
            body = self._guarded.daemon_set()
        else:
            body = self._guarded.pod(made) if made else {}
        if made == "takeover":
            return _like(theirs(), body)
        if "container" in row:
            containers = body["spec"]["containers"]
            containers[0] = merged(containers[0], row["container"])
        return merged(body, row.get("body", {}))


def owned(guarded: Guarded, node: str) -> Object:
    uid = guarded.admin.get(f"/api/v1/nodes/{node}")["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
    metadata = {"name": node, "ownerReferences": [owner]}
    return of_kind(names.REPORT_KIND) | {"metadata": metadata}


def theirs() -> Object:
    marks = {"app": "theirs"}
    spec = {"containers": [{"name": "c", "image": "c:1"}], "nodeSelector": marks}
    template = {"metadata": {"labels": marks}, "spec": spec}
    return {
        "metadata": {"name": "theirs"},
        "spec": {"selector": {"matchLabels": marks}, "template": template},
    }


def _like(foreign: Object, ours: Object) -> Object:
    """The patch that makes a foreign DaemonSet run our pods; its selector cannot change."""
    template, marks = ours["spec"]["template"], foreign["spec"]["template"]["metadata"]["labels"]
    template["metadata"]["labels"] |= marks
    return {"metadata": {"labels": ours["metadata"]["labels"]}, "spec": {"template": template}}


@contextmanager
def everybody(guarded: Guarded) -> Iterator[Everybody]:
    admin = guarded.admin
    create_node(admin, OTHER)
    writer = Writer(guarded, NODE)
    writer.create(writer.health())
    lease = {"metadata": {"name": names.LEASE}, "spec": {"holderIdentity": "guarded/ng"}}
    with contextlib.suppress(ApiError):  # an operator was here
        guarded.operator.create(LEASES, lease)
    admin.create("/api/v1/namespaces", {"metadata": {"name": TEAM}})
    guarded.operator.create(f"{GROUP}/nodereports", owned(guarded, NODE))
    policy = of_kind(names.POLICY_KIND) | {"metadata": {"name": "rights"}}
    admin.create(
        f"{GROUP}/gpuvalidationpolicies", policy | {"spec": {"nodeSelector": {"matchLabels": {"no": "node"}}}}
    )
    pod = without_label(guarded.pod()) | {"metadata": {"name": "theirs"}}
    admin.create(PODS, pod)
    admin.create(DAEMONSETS, theirs())
    paths = [f"{PODS}/theirs", f"{DAEMONSETS}/theirs", f"{GROUP}/gpuvalidationpolicies/rights"]
    paths += [f"{LEASES}/{names.LEASE}", f"{GROUP}/nodereports/{NODE}"]
    for who, where, role in BINDINGS:
        path = f"/apis/rbac.authorization.k8s.io/v1/{where}"
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
        subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": who}]
        bound = {"metadata": {"name": f"rights-{who}"}, "roleRef": reference, "subjects": subjects}
        admin.create(path, bound)
        paths.append(f"{path}/rights-{who}")
    yield Everybody(guarded, writer)
    writer.end()
    for path in [*paths, f"/api/v1/nodes/{OTHER}", f"/api/v1/namespaces/{TEAM}"]:
        admin.delete(path, {"gracePeriodSeconds": 0})
