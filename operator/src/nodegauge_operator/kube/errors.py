"""Errors of API calls, as one tree; no exception of the library passes beyond `kube`.

KubeError
├── NotFound             404: the object, or its whole resource (CRD missing)
├── Conflict             409 on a write with resourceVersion or UID: read again, then try again
├── AlreadyExists        409 on a create: adopt
├── Forbidden            403: RBAC
├── Refused              400, 422 and other 4xx, or denied at admission with any status: the same request will
│                        fail again (webhook, quota, validation)
└── Unavailable          401 (the token is read again), 429, 5xx, timeout, invalid answer: try again later
    ├── WebhookFailed    500: a webhook that must answer did not (its cause is in the message)
    └── Unreachable      the connection was refused or cut, and perhaps the watches with it: try again later
"""

from __future__ import annotations

import logging


class KubeError(Exception):
    """A call that did not succeed; `status` is the HTTP status, or 0 without an answer.

    `log_level`: at which whoever tries again later says so.
    """

    log_level = logging.WARNING

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
    """Another 4xx, or denied at admission: repeating the same request will not help."""


class Unavailable(KubeError):
    """401, 429, 5xx, a timeout or no connection: worth another try later."""

    log_level = logging.DEBUG  # `outage` says it once a minute for all calls


class WebhookFailed(Unavailable):
    """The API server could not call an admission webhook that this write needs.  The API server is well, and
    other writes go on."""


class Unreachable(Unavailable):
    """No connection, or one that was cut: the API server may have restarted.  Not a slow answer."""


DENIED = ("denied the request", "denied request")
"""In every message of a webhook or an admission policy that refuses; the former chooses the status, such as
500, and the latter may say 401 (kubernetes, apiserver/pkg/admission: webhook/errors, policy/validating)."""
WEBHOOK = "failed calling webhook"
"""In every message about one (kubernetes, apiserver/pkg/admission/plugin/webhook: ErrCallingWebhook)."""


def error_of(status: int, reason: str, message: str) -> KubeError:
    """The error for an HTTP status and the `reason` and `message` of its Status body."""
    kind: type[KubeError]
    if any(text in message for text in DENIED):
        kind = Forbidden if status == 403 else Refused
    elif status == 404:
        kind = NotFound
    elif status == 409:
        kind = AlreadyExists if reason == "AlreadyExists" else Conflict
    elif status == 403:
        kind = Forbidden
    elif status >= 500 and WEBHOOK in message:
        kind = WebhookFailed
    elif status in (401, 429) or status >= 500:
        kind = Unavailable
    else:
        kind = Refused
    return kind(message or reason or f"HTTP {status}", status=status, reason=reason)
