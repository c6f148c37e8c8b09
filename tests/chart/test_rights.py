"""Each RBAC rule of the chart has a reason, and none is wider than it must be."""

import re
from itertools import pairwise, product
from pathlib import Path

import pytest
import yaml

from nodegauge_cli import check
from support.chart import NAMESPACE, Helm, Object, component, of_kind, only, pods, variants

RULE = re.compile(r"^( *)- apiGroups:")
ROLES = ("ClusterRole", "Role")


def documents(text: str) -> list[str]:
    split = re.split(r"^---$", text, flags=re.MULTILINE)
    return [d for d in split if re.search(rf"^kind: ({'|'.join(ROLES)})$", d, re.MULTILINE)]


def reasons(document: str) -> list[str]:
    """For each rule of a role, the comment directly above it."""
    pairs = pairwise(document.splitlines())
    above = [before.strip() for before, line in pairs if RULE.match(line)]
    return [line.removeprefix("#").strip() if line.startswith("#") else "" for line in above]


def roles(objects: list[Object]) -> dict[tuple[str, str, str], list[Object]]:
    """Rules by kind, namespace and name of their role."""
    return {
        (o["kind"], o["metadata"].get("namespace", ""), o["metadata"]["name"]): o["rules"]
        for kind in ROLES
        for o in of_kind(objects, kind)
    }


def of_accounts(objects: list[Object]) -> dict[tuple[str, str, str], list[Object]]:
    """The same of nodegauge's own accounts: without the roles for people."""
    return roles([o for o in objects if component(o) not in PEOPLE])


def allowing(objects: list[Object], verb: str, resource: str) -> list[Object]:
    rules = [rule for of_role in of_accounts(objects).values() for rule in of_role]
    return [rule for rule in rules if resource in rule["resources"] and verb in rule["verbs"]]


@variants
def test_every_rule_has_its_reason(helm: Helm, values: Object) -> None:
    """A sentence, as the comment directly above it; and none contains an asterisk."""
    written = documents(helm.template(values))
    assert len(written) == sum(o["kind"] in ROLES for o in helm.objects(values))
    for document in written:
        rules = yaml.safe_load(document)["rules"]
        comments = reasons(document)
        assert len(comments) == len(rules)
        assert [r for r in comments if not re.fullmatch(r"[A-Za-z].{20,}\.", r)] == []
        assert "*" not in yaml.safe_dump(rules)


def test_what_check_asks_for_is_what_the_operator_has(helm: Helm) -> None:
    """But for what it has by a name, the Lease, and templates of claims, of which it tries to make one."""
    given = {
        (o["metadata"].get("namespace", ""), f"{resource}.{group}".rstrip("."), verb)
        for o in (o for kind in ROLES for o in of_kind(helm.objects(), kind))
        for rule in o["rules"]
        for group, resource, verb in product(rule["apiGroups"], rule["resources"], rule["verbs"])
        if component(o) == "operator"
        and "resourceNames" not in rule
        and resource not in ("leases", "resourceclaimtemplates")
    }
    assert set(check._needed(NAMESPACE)) == given


PEOPLE = ("view", "edit", "override")
"""Components of the roles for people; the last one adds to no other role."""
WRITES = yaml.safe_load(Path(__file__).with_name("writes.yaml").read_text("utf-8"))


def test_only_the_listed_writes_are_allowed(helm: Helm) -> None:
    """The operator, above all, cannot change policies."""
    writes: dict[str, dict[str, set[str]]] = {}
    for o in (o for kind in ROLES for o in of_kind(helm.objects(), kind)):
        for rule in o["rules"]:
            if verbs := set(rule["verbs"]) - {"get", "list", "watch"}:
                for group, resource in product(rule["apiGroups"], rule["resources"]):
                    own = writes.setdefault(component(o), {})
                    own.setdefault(f"{resource}.{group}".rstrip("."), set()).update(verbs)
    assert writes == {part: {what: {*verbs} for what, verbs in own.items()} for part, own in WRITES.items()}


def test_people_read_all_and_those_who_edit_change_policies(helm: Helm) -> None:
    """By the cluster's own roles, which take ours in (tests/cluster/admission has the column of `edit`)."""
    ours = {o["metadata"]["name"].rpartition("-")[2]: o for o in of_kind(helm.objects(), "ClusterRole")}
    into = "rbac.authorization.k8s.io/aggregate-to-"
    takes_in = {
        role: {
            name for name in ("view", "edit") if ours[name]["metadata"]["labels"].get(into + role) == "true"
        }
        for role in ("view", "edit", "admin")
    }
    assert takes_in == {"view": {"view"}, "edit": {"view", "edit"}, "admin": {"view", "edit"}}
    [rule] = ours["view"]["rules"]
    assert rule["verbs"] == ["get", "list", "watch"]
    assert {"gpuvalidationpolicies", "nodereports", "nodereadings", "nodehistories"} <= {*rule["resources"]}


NAMESPACED = {"pods", "events", "leases", "deployments/scale", "daemonsets", "secrets", "configmaps"}


def test_rights_on_pods_are_namespaced(helm: Helm) -> None:
    """But to list those that wait for GPUs, whom our runs give way to."""
    for (kind, namespace, name), rules in roles(helm.objects()).items():
        resources = {r for rule in rules for r in rule["resources"]}
        if name.endswith("-give-way"):
            assert [rule["verbs"] for rule in rules] == [["list", "watch"], ["get"]]
        elif kind == "ClusterRole":
            assert not resources & NAMESPACED
        else:
            in_default = {"events", "leases"} >= resources
            assert namespace == ("default" if in_default else NAMESPACE)


@pytest.mark.parametrize(
    ("resource", "verb", "name"),
    [
        ("deployments/scale", "patch", "ng-nodegauge"),
        ("leases", "delete", "nodegauge"),
        ("gpuvalidationpolicies", "delete", "default"),
        ("gpuvalidationpolicies", "create", "default"),
        ("gpuvalidationpolicies", "patch", "default"),
    ],
)
def test_hooks_may_change_only_their_own_objects(helm: Helm, resource: str, verb: str, name: str) -> None:
    (rule,) = allowing(helm.objects(), verb, resource)
    assert rule["resourceNames"] == [name]


@variants
def test_the_operator_reads_one_admission_policy_and_writes_none(helm: Helm, values: Object) -> None:
    """That of NodeReadings and its binding, by name: it must know that they stand."""
    of_admission = [
        rule
        for rules in roles(helm.objects(values)).values()
        for rule in rules
        if "admissionregistration.k8s.io" in rule["apiGroups"]
    ]
    [rule] = of_admission
    assert (rule["verbs"], rule["resourceNames"]) == (["get"], ["readings.nodegauge.dev"])
    assert rule["resources"] == ["validatingadmissionpolicies", "validatingadmissionpolicybindings"]


def test_without_a_policy_the_cleanup_may_delete_none(helm: Helm) -> None:
    objects = helm.objects({"policy": {"create": False}})
    (container,) = only(objects, "Job")["spec"]["template"]["spec"]["containers"]
    assert allowing(objects, "delete", "gpuvalidationpolicies") == []
    assert [word for word in container["args"] if "policy" in word] == []


@variants
def test_each_role_is_bound_once(helm: Helm, values: Object) -> None:
    """To the account of its own component; those for people add to others."""
    objects = helm.objects(values)
    accounts = {o["metadata"]["name"] for o in of_kind(objects, "ServiceAccount")} | {"someone", "nobody"}
    bound = []
    for o in of_kind(objects, "ClusterRoleBinding") + of_kind(objects, "RoleBinding"):
        (subject,) = o["subjects"]
        assert (subject["kind"], subject["namespace"]) == ("ServiceAccount", NAMESPACE)
        assert subject["name"] in accounts
        for own in ("cleanup", "policy", "probe"):
            if (own, subject["name"]) != ("probe", "nobody"):
                assert subject["name"].endswith(own) == o["metadata"]["name"].endswith(own)
        bound.append((o["roleRef"]["kind"], o["metadata"].get("namespace", ""), o["roleRef"]["name"]))
    assert sorted(bound) == sorted(of_accounts(objects))
    of_people = 0 if values.get("peopleRoles") else len(PEOPLE)
    assert len(of_accounts(objects)) == len(roles(objects)) - of_people


@variants
def test_only_pods_that_need_a_token_mount_one(helm: Helm, values: Object) -> None:
    """They ask for it; no service account does by default."""
    objects = helm.objects(values)
    assert [
        o for o in of_kind(objects, "ServiceAccount") if o["automountServiceAccountToken"] is not False
    ] == []
    for pod in pods(objects).values():
        assert pod["spec"]["automountServiceAccountToken"] is True
