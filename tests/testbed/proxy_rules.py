"""What a fault proxy is told to do: requests as a rule sees them, what it may answer, and which it matches.

Plain data and matching, no network.  A rule belongs to one moment, before a request is passed on or after the
API server has answered it, and may fire a limited number of times.
"""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from testbed.errors import TestbedError


class When(StrEnum):
    """The two moments at which a rule can act."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, kw_only=True)
class RequestInfo:
    """A request as the client sent it."""

    method: str
    path: str
    query: Mapping[str, str]
    content_type: str
    user_agent: str
    body: bytes = field(repr=False)

    @property
    def is_watch(self) -> bool:
        """Whether the answer is a stream without end."""
        return self.query.get("watch", "").lower() in {"1", "true"}

    def json(self) -> Any:
        """The decoded body; ValueError when it is no JSON."""
        return json.loads(self.body)


@dataclass(frozen=True, kw_only=True)
class ResponseInfo:
    """The API server's answer. A stream has no body here."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    def json(self) -> Any:
        """The decoded body, compressed or not; ValueError when it is no JSON."""
        packed = self.headers.get("Content-Encoding") == "gzip"
        return json.loads(gzip.decompress(self.body) if packed else self.body)


@dataclass(frozen=True, kw_only=True)
class Refuse:
    """Answer with an error and a Status object. Before: the API server sees nothing; after: it was done."""

    status: int
    reason: str
    message: str = "refused by the fault proxy"
    retry_after: int | None = None


@dataclass(frozen=True)
class Drop:
    """Cut the connection without an answer; before: without passing the request on."""


@dataclass(frozen=True)
class Delay:
    """Go on after so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Replace:
    """Send this body in place of the API server's; after only, and not for streams."""

    body: bytes


Action = Refuse | Drop | Delay | Replace | None
Do = Callable[[RequestInfo, ResponseInfo | None], Action] | Action
"""An action, or what decides on one; a callable that returns None lets things go on."""


@dataclass(kw_only=True)
class Rule:
    """One rule and what became of it. `times`: how often it may fire, None for ever."""

    method: str | None
    path: re.Pattern[str] | None
    when: When
    times: int | None
    where: Callable[[RequestInfo], bool] | None
    do: Do
    fired: list[RequestInfo] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition, repr=False)

    def claim(self, request: RequestInfo, when: When) -> bool:
        """Whether it fires for this request now; counts it."""
        if when is not self.when or not self._matches(request):
            return False
        with self._news:
            if self.times is not None and len(self.fired) >= self.times:
                return False
            self.fired.append(request)
            self._news.notify_all()
        return True

    def act(self, request: RequestInfo, response: ResponseInfo | None) -> Action:
        """What is to be done; runs the callable, which may take its time or raise."""
        return self.do(request, response) if callable(self.do) else self.do

    def wait(self, timeout: float, *, count: int = 1) -> RequestInfo:
        """The `count`-th request for which it fires; TestbedError after `timeout` seconds."""
        with self._news:
            if not self._news.wait_for(lambda: len(self.fired) >= count, timeout):
                raise TestbedError(f"after {timeout:g} s the rule has fired {len(self.fired)} times: {self}")
            return self.fired[count - 1]

    def cancel(self) -> None:
        """Fire no more."""
        with self._news:
            self.times = 0

    def _matches(self, request: RequestInfo) -> bool:
        return (
            (self.method is None or request.method == self.method)
            and (self.path is None or self.path.search(request.path) is not None)
            and (self.where is None or self.where(request))
        )
