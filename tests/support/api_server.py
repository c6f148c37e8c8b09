"""An API server in memory, for the operator's adapter; tests/cluster checks the same on a real one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from nodegauge_operator import names
from nodegauge_operator.api.times import stamp
from nodegauge_operator.kube import admission
from nodegauge_operator.kube.leases import PATH as LEASES
from support import schema

Body = dict[str, Any]
NAMESPACE = "nodegauge"
NO_BREAKER = {"nodes": 100_000, "share": "100%"}
"""A policy's `spec.breaker` with which no cause is an incident."""
NODES = "/api/v1/nodes"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
EVENTS = "/api/v1/namespaces/default/events"
POLICIES = f"/apis/{names.API_VERSION}/{names.POLICY_PLURAL}"
REPORTS = f"/apis/{names.API_VERSION}/{names.REPORT_PLURAL}"
READINGS = f"/apis/{names.API_VERSION}/{names.READING_PLURAL}"
HISTORIES = f"/apis/{names.API_VERSION}/{names.HISTORY_PLURAL}"
CHASSIS = f"/apis/{names.API_VERSION}/{names.CHASSIS_PLURAL}"
DAEMONSETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
DRA = f"/apis/{names.DRA_API}"
SLICES = f"{DRA}/{names.SLICE_PLURAL}"
TEMPLATES = f"{DRA}/namespaces/{NAMESPACE}/resourceclaimtemplates"
ADMISSION, BINDINGS = (path.rpartition("/")[0] for path in (admission.POLICY, admission.BINDING))
CORE = (NODES, PODS, EVENTS, DAEMONSETS, LEASES, ADMISSION, BINDINGS, SLICES, TEMPLATES)
COLLECTIONS = (*CORE, POLICIES, REPORTS, READINGS, CHASSIS, HISTORIES)
EFFECTS = {"NoSchedule", "PreferNoSchedule", "NoExecute"}
CUSTOM = {POLICIES: names.POLICY_PLURAL, REPORTS: names.REPORT_PLURAL, READINGS: names.READING_PLURAL}


class ApiError(Exception):
    """An answer other than success."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


def copied(body: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(body))


def not_found(name: str) -> ApiError:
    return ApiError(404, "NotFound", f'"{name}" not found')


def conflict(message: str) -> ApiError:
    return ApiError(409, "Conflict", message)


class FakeApiServer:
    """All objects, by collection and name.  `clock` gives epoch seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.objects: dict[str, dict[str, Body]] = {path: {} for path in COLLECTIONS}
        self.subscribers: list[Callable[[str, str, Body], None]] = []
        self.created: Counter[str] = Counter()
        self.judged: list[tuple[str, int, str]] = []
        """Node, number and pod UID of each run that was written to a report, in order."""
        self._version = 100
        self._uids = 0

    def backup(self) -> Callable[[int], None]:
        """Puts back what is there now when it is called: with its version, or later by so much."""
        objects = {path: copied(bodies) for path, bodies in self.objects.items()}
        version = self._version

        def restore(bumped: int) -> None:
            self.objects.update({path: copied(bodies) for path, bodies in objects.items()})
            self._version = version + bumped

        return restore

    def get(self, path: str, name: str) -> Body:
        if name not in self.objects[path]:
            raise not_found(name)
        return copied(self.objects[path][name])

    def list(self, path: str, query: Mapping[str, Any]) -> Body:
        selector, only = query.get("labelSelector", ""), query.get("fieldSelector", "")
        limit, start = query.get("limit", 0), query.get("continue", "")
        unwanted = [term.partition("!=") for term in selector.split(",") if "!=" in term]
        terms = [term.partition("=") for term in selector.split(",") if term and "!=" not in term]
        matching = sorted(
            name
            for name, body in self.objects[path].items()
            if (only.startswith("spec.") or only in ("", f"metadata.name={name}"))
            and all(k in _labels(body) and (not v or _labels(body)[k] == v) for k, _, v in terms)
            and all(_labels(body).get(k) != v for k, _, v in unwanted)
        )
        rest = [name for name in matching if name > start]
        page = rest[:limit] if limit else rest
        metadata: Body = {"resourceVersion": str(self._version)}
        if len(page) < len(rest):
            metadata["continue"] = page[-1]
        return {"metadata": metadata, "items": [copied(self.objects[path][n]) for n in page]}

    def create(self, path: str, body: Body) -> Body:
        """Make an object; the status of a custom resource is dropped, as the API server does."""
        body = copied(body)
        name = body["metadata"]["name"]
        if name in self.objects[path]:
            raise ApiError(409, "AlreadyExists", f"{name} already exists")
        if path in CUSTOM:
            body.pop("status", None)
        self._uids += 1
        body["metadata"] |= {"uid": f"uid-{self._uids}", "creationTimestamp": stamp(self.clock())}
        if path == PODS:
            self.created[name] += 1
            body["status"] = {"phase": "Pending"}
        self._check(path, body)
        return self._store(path, body, "ADDED")

    def patch(self, path: str, name: str, patch: Body, *, sub: str = "", manager: str = "") -> Body:
        before = self.objects[path].get(name)
        if before is None:
            raise not_found(name)
        metadata = patch.get("metadata", {})
        self._preconditions(before, version=metadata.get("resourceVersion"), uid=metadata.get("uid"))
        after = merged(before, patch)
        after["metadata"] = after["metadata"] | {k: before["metadata"][k] for k in ("resourceVersion", "uid")}
        if path in CUSTOM:
            kept = "spec" if sub else "status"
            own = {kept: before[kept]} if kept in before else {}
            after = {k: v for k, v in after.items() if k != kept} | own
            pruned = schema.prune(after, schema.schema(CUSTOM[path]) | {"metadata": {}})
            after = pruned | {"metadata": after["metadata"]}
        if path == NODES:
            _own_labels(before, after, manager)
        self._check(path, after)
        if before == after:
            return copied(before)
        if path == REPORTS:
            old, new = _last_run(before), _last_run(after)
            if new and new != old:
                self.judged.append((after["metadata"]["name"], new["number"], new["podUID"]))
        return self._store(path, after, "MODIFIED")

    def json_patch(self, path: str, name: str, patch: list[Body]) -> Body:
        if name not in self.objects[path]:
            raise not_found(name)
        before = self.objects[path][name]
        tests = {step["value"] for step in patch if step["op"] == "test"}
        if tests - {before["metadata"]["uid"]}:
            raise ApiError(422, "Invalid", "the server rejected our request: test failed")
        parts = {step["path"].strip("/"): step["value"] for step in patch if step["op"] == "replace"}
        after = copied(before) | copied(parts)
        return copied(before) if before == after else self._store(path, after, "MODIFIED")

    def patch_conditions(self, name: str, patch: Body) -> Body:
        before = self.objects[NODES].get(name)
        if before is None:
            raise not_found(name)
        self._preconditions(before, version=None, uid=patch.get("metadata", {}).get("uid"))
        after = copied(before)
        conditions = {c["type"]: c for c in after["status"]["conditions"]}
        for entry in patch["status"]["conditions"]:
            if entry.get("$patch") == "delete":
                conditions.pop(entry["type"], None)
            else:
                conditions[entry["type"]] = conditions.get(entry["type"], {}) | entry
        after["status"]["conditions"] = list(conditions.values())
        return copied(before) if before == after else self._store(NODES, after, "MODIFIED")

    def delete(self, path: str, name: str, options: Body) -> Body:
        """Delete now, or, for a pod on a node, once its kubelet confirms."""
        body = self.objects[path].get(name)
        if body is None:
            raise not_found(name)
        self._preconditions(body, version=None, uid=options.get("preconditions", {}).get("uid"))
        usual = body.get("spec", {}).get("terminationGracePeriodSeconds", 0)
        grace = options.get("gracePeriodSeconds", usual)
        finished = body.get("status", {}).get("phase") in ("Succeeded", "Failed")
        if path != PODS or grace == 0 or finished or not body["spec"].get("nodeName"):
            self._remove(path, name)
            return body if path == PODS else {"kind": "Status", "status": "Success"}
        if "deletionTimestamp" not in body["metadata"]:
            body = copied(body)
            body["metadata"]["deletionTimestamp"] = stamp(self.clock() + grace)
            body["metadata"]["deletionGracePeriodSeconds"] = grace
            self._store(path, body, "MODIFIED")
        return copied(self.objects[path][name])

    def _preconditions(self, body: Body, *, version: str | None, uid: str | None) -> None:
        metadata = body["metadata"]
        if uid is not None and uid != metadata["uid"]:
            raise conflict(f"Precondition failed: UID {uid}, is {metadata['uid']}")
        if version is not None and version != metadata["resourceVersion"]:
            raise conflict(f"the object has been modified: {version}, is {metadata['resourceVersion']}")

    def _check(self, path: str, body: Body) -> None:
        if kind := CUSTOM.get(path) or {HISTORIES: names.HISTORY_PLURAL}.get(path):
            wrong = schema.errors(body | {"metadata": {}}, schema.schema(kind))
            if wrong:
                raise ApiError(422, "Invalid", "; ".join(wrong))
        if path == NODES:
            taints = [(t["key"], t["effect"]) for t in body["spec"].get("taints") or ()]
            if len(set(taints)) < len(taints) or {effect for _, effect in taints} - EFFECTS:
                raise ApiError(422, "Invalid", f"spec.taints: {taints}")
        note = body.get("message", "")
        if path == EVENTS and len(note.encode()) > 1024:
            raise ApiError(422, "Invalid", "message: can have at most 1024 bytes")

    def _store(self, path: str, body: Body, kind: str) -> Body:
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        if path == DAEMONSETS:
            before = self.objects[path].get(body["metadata"]["name"], {"metadata": {}})
            changed = before.get("spec") != body.get("spec")
            body["metadata"]["generation"] = before["metadata"].get("generation", 0) + changed
        self.objects[path][body["metadata"]["name"]] = body
        return self._tell(path, kind, body)

    def _remove(self, path: str, name: str) -> None:
        body = self.objects[path].pop(name)
        self._version += 1
        last = body["metadata"] | {"resourceVersion": str(self._version)}
        self._tell(path, "DELETED", body | {"metadata": last})

    def _tell(self, path: str, kind: str, body: Body) -> Body:
        """One copy for all who hear of it, and for who asked: nobody changes it."""
        copy = copied(body)
        for subscriber in self.subscribers:
            subscriber(path, kind, copy)
        return copy


def merged(before: Any, patch: Any) -> Any:
    """RFC 7386; what the patch leaves alone is shared with `before`."""
    if not isinstance(patch, dict):
        return copied(patch)
    after = dict(before) if isinstance(before, dict) else {}
    for key, value in patch.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = merged(after.get(key), value)
    return after


def _labels(body: Body) -> dict[str, str]:
    return body["metadata"].get("labels") or {}


def _last_run(report: Body) -> Body | None:
    probes = report.get("status", {}).get("probes") or [{}]
    return probes[0].get("lastRun")


def _own_labels(before: Body, after: Body, manager: str) -> None:
    """managedFields of labels: a changed value belongs to who changed it, a removed one to nobody."""
    old, new = _labels(before), _labels(after)
    fields = {
        entry["manager"]: {key[2:] for key in entry["fieldsV1"]["f:metadata"]["f:labels"]}
        for entry in before["metadata"].get("managedFields", ())
    }
    changed = {key for key in new if old.get(key) != new[key]}
    for owner in {*fields, manager}:
        kept = fields.get(owner, set()) - (old.keys() - new.keys()) - changed
        fields[owner] = kept | (changed if owner == manager else set())
    after["metadata"]["managedFields"] = [
        {"manager": owner, "fieldsV1": {"f:metadata": {"f:labels": {f"f:{k}": {} for k in sorted(keys)}}}}
        for owner, keys in sorted(fields.items())
        if keys
    ]
