"""Errors of the testbed.  Those of subprocess, urllib and aiohttp stop at the modules that use them."""

import json


class TestbedError(Exception):
    """Base of all errors raised here."""

    __test__ = False


class BinaryError(TestbedError):
    """A program that the control plane needs cannot be found or used; the text says what to do."""


class ControlPlaneError(TestbedError):
    """The control plane did not reach, or is not in, the state that was asked for."""


class ApiError(TestbedError):
    """The API server refused. `status` is the HTTP code, `reason` the machine-readable word of its Status."""

    def __init__(self, status: int, *, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason

    @classmethod
    def of(cls, status: int, body: bytes) -> "ApiError":
        """The error of an answer: its Status, or whatever stands there instead."""
        try:
            answer = json.loads(body)
        except ValueError:
            answer = {"message": body.decode("utf-8", errors="replace").strip()[:300]}
        return cls(status, reason=str(answer.get("reason", "")), message=str(answer.get("message", "")))
