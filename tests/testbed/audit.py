"""Reads a control plane's audit log: who wrote what (`audit-policy.yaml` decides what is in it)."""

import json
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from testbed.rest import Object, Rest
from testbed.wait import wait_for

READS = frozenset({"get", "list", "watch"})
LOOK_SECONDS = 0.01
SYNC_PATH = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
SYNC_BODY = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}


@dataclass(frozen=True, kw_only=True)
class Entry:
    user: str
    verb: str
    group: str
    resource: str
    name: str
    code: int
    user_agent: str
    path: str
    raw: Object = field(repr=False)

    @property
    def is_write(self) -> bool:
        """Anything but get, list and watch, accepted or refused."""
        return self.verb not in READS


def service_account(namespace: str, name: str) -> str:
    return f"system:serviceaccount:{namespace}:{name}"


class AuditTrail:
    """The entries of one audit log from now on; `rest` writes the marks that show the log to be complete."""

    def __init__(self, log: Path, rest: Rest) -> None:
        self._log = log
        self._rest = rest
        self._start = self._marked()

    def entries(self) -> list[Entry]:
        end = self._marked()
        with self._log.open("rb") as log:
            log.seek(self._start)
            lines = log.read(end - self._start).splitlines()
        return [entry for entry in map(entry_of, map(json.loads, lines)) if entry is not None]

    def writes(self, *, user_agent: str) -> list[Entry]:
        return [e for e in self.entries() if e.is_write and e.user_agent.startswith(user_agent)]

    def _marked(self) -> int:
        """Wait for the line of a request that can be recognised; the size of the log behind it."""
        mark = str(uuid.uuid4())
        before = self._log.stat().st_size
        self._rest.call("POST", SYNC_PATH, body=SYNC_BODY, headers={"Audit-ID": mark})

        def behind() -> int | None:
            position = before
            with self._log.open("rb") as log:
                log.seek(before)
                for line in log:
                    position += len(line)
                    if mark.encode() in line and line.endswith(b"\n"):
                        return position
            return None

        position = wait_for(behind, every=LOOK_SECONDS, what=f"a line of request {mark} in {self._log}")
        assert position is not None
        return position


def entry_of(event: Object) -> Entry | None:
    """None for the start of a long answer (its end is an event of its own) and for our own marks."""
    target = event.get("objectRef", {})
    if event["stage"] == "ResponseStarted" or target.get("resource") == "selfsubjectreviews":
        return None
    return Entry(
        user=event["user"]["username"],
        verb=event["verb"],
        group=target.get("apiGroup", ""),
        resource="/".join(filter(None, (target.get("resource"), target.get("subresource")))),
        name=target.get("name", ""),
        code=event.get("responseStatus", {}).get("code", 0),
        user_agent=event.get("userAgent", ""),
        path=event["requestURI"].partition("?")[0],
        raw=event,
    )
