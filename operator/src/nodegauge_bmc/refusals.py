"""What a BMC says when it refuses a request, and the way out: status, `@Message.ExtendedInfo`, `Retry-After`.

The one table from a message to what helps.  A BMC's words are foreign: they are quoted, bounded, on one line,
and without the secrets that it may repeat; they choose a text, and never a verdict.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

MAX_BODY = 65_536
"""Bytes of a refusal that are looked at; one with messages has about 2 KB."""
MAX_OBJECTS = 500
"""Objects of a refusal that are looked at."""
MAX_QUOTE = 160
"""Characters of the BMC's words that are repeated."""
MAX_WAIT = 86_400.0
"""Longest `Retry-After` that is believed, seconds."""
SHORTEST_SECRET = 4
"""Characters of a password's beginning that are not repeated: a BMC cuts what it quotes."""
GENERIC = frozenset({"generalerror", "extendedinfo", "extendederror", "success", "internalerror", ""})
"""Messages that say nothing: the status says as much."""
_ACCOUNT = re.compile(r"/redfish/v1/AccountService/Accounts/[\w.%~-]{1,64}", re.ASCII)


class Kind(StrEnum):
    """What hinders."""

    PASSWORD = "password"
    SESSIONS = "sessions"
    LOCKED = "locked"
    LICENSE = "license"
    ROLE = "role"
    LOGIN = "login"
    BUSY = "busy"
    BROKEN = "broken"
    OTHER = "other"


class Way(Struct, frozen=True, kw_only=True):
    """One row: last parts of MessageIds in lower case, words of firmware without an id, and the way out."""

    kind: Kind
    ids: frozenset[str] = frozenset()
    pattern: str = r"(?!)"
    way_out: str


WAYS = (
    # DSP0266, "Password change required handling"; SWC1908: iDRAC, the default password.
    Way(
        kind=Kind.PASSWORD,
        ids=frozenset({"passwordchangerequired", "passwordexpired", "swc1908"}),
        pattern=r"password .{0,40}(must|has to|needs to|required to) be (changed|reset)"
        r"|password (has |is )?expired|(must|have to|required to) change .{0,20}password",
        way_out="the user's password must be changed first: change it{account}, then correct "
        "--user and --password-file",
    ),
    # Base.*.SessionLimitExceeded; CreateLimitReachedForResource: iLO; RAC0218: iDRAC, 503.
    Way(
        kind=Kind.SESSIONS,
        ids=frozenset({"sessionlimitexceeded", "createlimitreachedforresource", "rac0218"}),
        pattern=r"(max|limit|exceed|too many|no (more|free)).{0,40}\bsessions?\b"
        r"|\bsessions?\b.{0,40}(limit|max|exceed|are in use)",
        way_out="other sessions hold all that the BMC has: end them in its web page, wait until they "
        "expire, or restart the BMC, which ends all",
    ),
    # iLO.*.LoginAttemptDelayed; iDRAC blocks an address after refused logins (RAC0212 names the seconds).
    Way(
        kind=Kind.LOCKED,
        ids=frozenset({"loginattemptdelayed", "loginattemptdelayedseconds", "accountlocked", "userlocked"}),
        pattern=r"(account|user)\b.{0,40}\block(ed|out)|\block(ed|out)\b.{0,40}(account|user)"
        r"|login (is |will be )?delayed",
        way_out="the user is locked for a while after wrong passwords: correct --user and --password-file, "
        "and unlock it or wait",
    ),
    # SMC.*.OemLicenseNotPassed: Supermicro without SFT-OOB-LIC or SFT-DCMS; iLO.*.LicenseKeyRequired.
    Way(
        kind=Kind.LICENSE,
        ids=frozenset({"oemlicensenotpassed", "licensekeyrequired", "licenserequired"}),
        pattern=r"not licensed|licen[cs]e (key )?(is )?(required|missing)",
        way_out="the BMC lacks a license for this: activate it there, or read the machine by ipmi://HOST",
    ),
    Way(
        kind=Kind.ROLE,
        ids=frozenset({"insufficientprivilege", "insufficientprivileges", "nooperationprivilege"}),
        pattern=r"(insufficient|not enough|lacks?|required) privilege|not authori[sz]ed to|permission denied",
        way_out="the user's role may not read this: give the user one that may, such as ReadOnly or Operator",
    ),
    Way(
        kind=Kind.LOGIN,
        ids=frozenset({"unauthorizedloginattempt", "novalidsession", "rac0212", "invalidcredentials"}),
        way_out="check --user and --password-file",
    ),
    Way(
        kind=Kind.BUSY,
        ids=frozenset(
            {
                "servicetemporarilyunavailable",
                "serviceshuttingdown",
                "resourceinuse",
                "resourcenotready",
                "resourceexhaustion",
            }
        ),
        pattern=r"temporarily unavailable|try again later"
        r"|(is|are|still) (initiali[sz]ing|booting|starting|busy)",
        way_out="the BMC is busy: try again {when}",
    ),
    Way(kind=Kind.BROKEN, way_out="try again {when}; if it stays, restart the BMC"),
    Way(kind=Kind.OTHER, way_out=""),
)
_WAY = {way.kind: way for way in WAYS}


class Message(Struct, frozen=True, kw_only=True):
    """One message: the last part of its id, its text, what the BMC advises, and its arguments."""

    id: str = ""
    text: str = ""
    advice: str = ""
    arguments: str = ""


class Refusal(Struct, frozen=True, kw_only=True):
    """A request that the BMC refused.  Its text has the way out before the BMC's words, which may be cut off.

    `by_message`: whether the BMC said so itself, not a status alone.  `wait`: seconds that it asks for.
    """

    status: int
    kind: Kind
    by_message: bool = False
    id: str = ""
    quote: str = ""
    way_out: str = ""
    wait: float | None = None

    @property
    def reason(self) -> str:
        """Status, message id and `Retry-After`."""
        asked = "" if self.wait is None else f"it asks to wait {self.wait:.0f} s"
        listed = ", ".join(part for part in (self.id, asked) if part)
        return f"HTTP status {self.status}" + (f" ({listed})" if listed else "")

    @property
    def named(self) -> str:
        """Status and message id, for between brackets."""
        return ", ".join(part for part in (str(self.status), self.id) if part)

    @property
    def quoted(self) -> str:
        """The BMC's own words as a sentence after another, or nothing."""
        return f'; the BMC says "{self.quote}"' if self.quote else ""

    def __str__(self) -> str:
        return self.reason + (f": {self.way_out}" if self.way_out else "") + self.quoted


def refusal(
    status: int, headers: Mapping[str, str], body: bytes, *, secrets: tuple[str, ...] = ()
) -> Refusal:
    """What an answer says, whatever it is made of; it never raises."""
    messages = list(_messages(body))
    wait = _wait(headers)
    way, message = _row(messages)
    by_message = way is not None
    if way is None:
        way = _WAY[_by_status(status)]
        message = next(
            (one for one in messages if one.id.lower() not in GENERIC), messages[0] if messages else Message()
        )
    account = _ACCOUNT.search(f"{message.arguments} {message.text}") if way.kind is Kind.PASSWORD else None
    when = "in a minute" if not wait else f"after {wait:.0f} s"
    way_out = way.way_out.format(
        account=f" (PATCH {account[0]})" if account else " in the BMC's web page", when=when
    )
    quote = message.text
    if way.kind is Kind.OTHER and message.advice.lower().rstrip(".") not in ("", "none"):
        quote += f" {message.advice}"
    return Refusal(
        status=status,
        kind=way.kind,
        by_message=by_message,
        id=_plain(message.id, secrets, limit=48) if message.id.lower() not in GENERIC else "",
        quote=_plain(quote, secrets, limit=MAX_QUOTE),
        way_out=way_out,
        wait=wait,
    )


def of_the_role(refused: Refusal) -> Refusal:
    """The same refusal, of one resource by the user's role."""
    return replace(refused, kind=Kind.ROLE, way_out=_WAY[Kind.ROLE].way_out)


def _row(messages: list[Message]) -> tuple[Way | None, Message]:
    """The first row that a message's id names, else that its words do."""
    for way in WAYS:
        for message in messages:
            if message.id.lower() in way.ids:
                return way, message
    for way in WAYS:
        for message in messages:
            if re.search(way.pattern, message.text[:1024], re.IGNORECASE):
                return way, message
    return None, Message()


def _by_status(status: int) -> Kind:
    """What a status means without a message (RFC 9110)."""
    if status >= 500 and status not in (501, 503):
        return Kind.BROKEN
    return {401: Kind.LOGIN, 403: Kind.ROLE, 429: Kind.BUSY, 503: Kind.BUSY}.get(status, Kind.OTHER)


def _messages(body: bytes) -> Iterator[Message]:
    """The messages in an answer: in `error`, at the top, beside a property, in a list or alone, nested, or as
    text."""
    if not body or len(body) > MAX_BODY:
        return
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        text = body.decode("utf-8", "replace").strip()
        if "<" not in text and len(text) <= 1024:  # no page of HTML
            yield Message(text=text)
        return
    waiting, seen = [value], 0
    while waiting and seen < MAX_OBJECTS:
        value, seen = waiting.pop(0), seen + 1
        if isinstance(value, list):
            waiting += value[:MAX_OBJECTS]
        elif isinstance(value, str):  # a text in a list of messages, or alone
            yield Message(text=value)
        elif isinstance(value, dict):
            yield from _message(value)
            waiting += [inner for inner in value.values() if isinstance(inner, dict)]
            waiting += [
                inner
                for name, inner in value.items()
                if isinstance(inner, list)
                and name.lower().endswith(("extendedinfo", "messages", "error", "errors"))
            ]


def _message(value: dict[str, Any]) -> Iterator[Message]:
    """The object as a message, if it is one."""
    fields = {name.lower(): field for name, field in value.items()}

    def text(*names: str) -> str:
        return next((fields[name] for name in names if isinstance(fields.get(name), str)), "")

    named = re.split(r"[./#:]", text("messageid", "code").strip())[-1]
    sentence = text("message", "error", "error_description")
    if named or sentence:
        arguments = fields.get("messageargs")
        listed = [one for one in arguments if isinstance(one, str)] if isinstance(arguments, list) else []
        yield Message(id=named, text=sentence, advice=text("resolution"), arguments=" ".join(listed)[:1024])


def _plain(text: str, secrets: tuple[str, ...], *, limit: int) -> str:
    """The text on one line, bounded, in no quotes of its own, and without secrets or their beginnings."""
    for secret in filter(None, secrets):
        for length in range(len(secret), min(SHORTEST_SECRET, len(secret)) - 1, -1):
            text = text.replace(secret[:length], "***")
    line = "".join(char if char.isprintable() else "?" for char in " ".join(text.split()).replace('"', "'"))
    return line if len(line) <= limit else line[: limit - 3] + "..."


def _wait(headers: Mapping[str, str]) -> float | None:
    """Seconds of `Retry-After`: a number, or a date (RFC 9110, 10.2.3), which counts from the BMC's own."""
    text = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d{1,9}", text, re.ASCII):
        return min(float(text), MAX_WAIT)
    try:
        until = parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    try:
        now = parsedate_to_datetime(headers.get("Date", "")).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        now = time.time()
    return min(max(0.0, until - now), MAX_WAIT)
