"""What an API call can end in, as one tree; library exceptions stop here.

KubeError
├── NotFound             404: the object, or its whole resource (CRD missing)
├── Conflict             409 on a write with resourceVersion or UID: read again, then try again
├── AlreadyExists        409 on a create: adopt
├── Forbidden            403: RBAC
├── Refused              400, 422 and other 4xx: this very request will not pass (webhook, quota, validation)
└── Unavailable          401 (a token is read anew), 429, 5xx, timeouts, an answer that is none: later
    └── Unreachable      the connection was refused or cut: later, and watches may have been cut with it
"""

from __future__ import annotations


class KubeError(Exception):
    """A call that did not succeed; `status` is the HTTP status, 0 where there was none."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class NotFound(KubeError):
    """404."""


class Conflict(KubeError):
    """409 with reason Conflict."""


class AlreadyExists(KubeError):
    """409 with reason AlreadyExists."""


class Forbidden(KubeError):
    """403."""


class Refused(KubeError):
    """Another 4xx: repeating the same request will not help."""


class Unavailable(KubeError):
    """401, 429, 5xx, a timeout or no connection: worth another try later."""


class Unreachable(Unavailable):
    """No connection, or one that was cut: the API server may have restarted.  A slow answer is none of it."""


def error_of(status: int, reason: str, message: str) -> KubeError:
    """The error for an HTTP status and the `reason` and `message` of its Status body."""
    kind: type[KubeError]
    if status == 404:
        kind = NotFound
    elif status == 409:
        kind = AlreadyExists if reason == "AlreadyExists" else Conflict
    elif status == 403:
        kind = Forbidden
    elif status in (401, 429) or status >= 500:
        kind = Unavailable
    else:
        kind = Refused
    return kind(message or reason or f"HTTP {status}", status=status, reason=reason)
