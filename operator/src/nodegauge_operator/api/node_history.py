"""NodeHistory: what a node measured day by day, and the record of its faults, which survives the node.

Named as its node, without an owner (ADR 0053).  The operator alone writes it: `status.days` holds a text a
day, `status.record` what a ticket needs when the node is gone.  It is never read to decide anything.

A day's text is `key=value` with a space between, such as `allReduce=463 hottest=74 throttled=0 gpus=8/8
verdict=pass driver=550.90.07`.  What was not measured that day has no key; a day on which no run ended has
no text.  Keys may come and go: a reader skips those that it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from nodegauge_judge import GpuIdentity, Verdict
from nodegauge_operator.api.fault import Fault
from nodegauge_operator.api.history import Transition
from nodegauge_operator.api.report import BEST_FIRST
from nodegauge_operator.api.times import stamp
from nodegauge_operator.api.tolerance import readable

MAX_DAYS = 60
"""Days that are kept.  Chosen by this project: a driver's two releases, and 8 KB a node."""
MAX_UNWRITTEN = 4
"""Complete days that a report keeps while they cannot be written, the newest.  Chosen by this project: a long
weekend."""
MAX_VALUE = 64
"""Characters of a version in a day's text."""
LAST = ("all_reduce", "all_gather", "reduce_scatter", "tflops", "driver", "vbios", "kernel")
LARGEST, LEAST = ("hottest", "of"), ("spare", "gpus")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_SPACE = re.compile(r"\s+")


class Day(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """One day (UTC) of one node, from its judged runs.  None or empty: not measured that day."""

    all_reduce: int | None = None
    """Bus bandwidth of the last NCCL run of the day, GB/s."""
    all_gather: int | None = None
    """As `all_reduce`."""
    reduce_scatter: int | None = None
    """As `all_reduce`."""
    tflops: float | None = None
    """Computing speed of the median GPU in the last load run of the day, TFLOPS."""
    hottest: int | None = None
    """Highest temperature of a GPU, °C."""
    throttled: float | None = None
    """Seconds in which heat or the power brake held clocks down, summed over GPUs; of each GPU the counter of
    the driver that grew most, because several count the same second."""
    spare: int | None = None
    """Least watts that the power supplies could still give, by the BMC."""
    gpus: int | None = None
    """Fewest GPUs that a run read."""
    of: int | None = None
    """GPUs that the node had then, those that it lost included."""
    verdict: Verdict | None = None
    """The node's worst of the day; unknown only if no run could judge it."""
    driver: str = ""
    """Version of the driver; only on the day on which it was first seen or changed."""
    vbios: str = ""
    """As `driver`: versions of the GPUs' VBIOS."""
    kernel: str = ""
    """As `driver`: release of the kernel."""


_FIELDS = msgspec.structs.fields(Day)
"""Once: to ask for them takes a millisecond."""


class XidSeen(Struct, frozen=True, rename="camel", kw_only=True):
    """One Xid on one GPU, as far as the policy counts it (`spec.xids`)."""

    xid: int
    """Its number."""
    gpu: str = ""
    """Start of the GPU's UUID."""
    count: int = 0
    """How many are remembered."""
    last_seen: str = ""
    """When the last of them came (RFC 3339, UTC)."""


class NodeRecord(Struct, frozen=True, rename="camel", kw_only=True):
    """What was known of a node when its faults last changed."""

    written_at: str = ""
    """End of the last run before it was written (RFC 3339, UTC)."""
    node_uid: str = msgspec.field(default="", name="nodeUID")
    """UID of the node: another machine may have taken the name since."""
    policy: str = ""
    """The policy that the node followed."""
    verdict: Verdict = Verdict.UNKNOWN
    """Its verdict."""
    product: str = ""
    """Product name of its GPUs."""
    driver: str = ""
    """Version of the driver."""
    vbios: str = ""
    """Versions of the GPUs' VBIOS, each once."""
    kernel: str = ""
    """Release of the kernel."""
    boot_id: str = msgspec.field(default="", name="bootID")
    """Boot id of the node in the last health reading."""
    gpus: list[GpuIdentity] = []
    """Every GPU that the node has, or had and lost."""
    faults: list[Fault] = []
    """What is wrong with it, the worst first; empty once all has ended."""
    transitions: list[Transition] = []
    """What changed on it, oldest first."""
    xids: list[XidSeen] = []
    """The Xids that the policy counts; empty where nothing reads them."""


class HistoryStatus(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """`status` of a NodeHistory, as it is written."""

    node_uid: str = msgspec.field(default="", name="nodeUID")
    """UID of the node of the last write: another machine may have had the name before."""
    installation: str = ""
    """`NAMESPACE/RELEASE` of the operator that wrote it."""
    days: dict[str, str] = {}
    """By date (`2026-11-24`, UTC) the day in one text (`parse_day`); at most `MAX_DAYS`."""
    record: NodeRecord | None = None
    """None: the node never had a fault."""
    gone_at: str = ""
    """When the operator first saw that the node is gone (RFC 3339, UTC); empty while it is there."""


class NodeHistory(Struct, frozen=True, kw_only=True):
    """A NodeHistory as it was read."""

    name: str
    """Name of the object and of its node."""
    uid: str = ""
    """UID of the object."""
    node_uid: str = ""
    """UID of the node of the last write."""
    installation: str = ""
    """`NAMESPACE/RELEASE` of the operator that wrote it."""
    days: dict[str, Day] = {}
    """By date, oldest first.  A date that is missing: no run ended that day."""
    record: NodeRecord | None = None
    """None: the node never had a fault."""
    gone_at: str = ""
    """When the node was first seen gone (RFC 3339, UTC); empty while it is there."""


def parse_node_history(body: Mapping[str, Any]) -> NodeHistory:
    """The typed history in a Kubernetes object; what cannot be read of it is left out."""
    metadata = body.get("metadata") or {}
    status, _ = readable(body.get("status") or {}, HistoryStatus)
    dates = sorted(date for date in status.days if _DATE.fullmatch(date))
    return NodeHistory(
        name=metadata.get("name", ""),
        uid=metadata.get("uid", ""),
        node_uid=status.node_uid,
        installation=status.installation,
        days={date: parse_day(status.days[date]) for date in dates},
        record=status.record,
        gone_at=status.gone_at,
    )


def all_days(history: NodeHistory | None, report: Mapping[str, str]) -> dict[str, Day]:
    """By date, oldest first: the days of the NodeHistory, if there is one, and of the report
    (`ReportStatus.days`), which has the one that goes on."""
    known = history.days if history is not None else {}
    newer = {date: parse_day(text) for date, text in report.items() if _DATE.fullmatch(date)}
    return dict(sorted((known | newer).items()))


def parse_day(text: str) -> Day:
    """The day in a text; a key that is unknown and a value that cannot be read are skipped."""
    raw: dict[str, Any] = {}
    for key, value in _pairs(text):
        raw[key] = value
        if key == "gpus":
            seen, _, of = value.partition("/")
            raw |= {"gpus": seen} | ({"of": of} if of else {})
    known = {}
    for field in _FIELDS:
        try:
            known[field.name] = msgspec.convert(raw[field.encode_name], field.type, strict=False)
        except (KeyError, msgspec.ValidationError):
            continue
    return Day(**known)


def day_text(day: Day) -> str:
    """The text of a day, its keys in the order of `Day`; empty for a day without a measurement."""
    values = {key: value for key, value in msgspec.to_builtins(day).items() if value not in (None, "")}
    if (of := values.pop("of", None)) is not None and "gpus" in values:
        values["gpus"] = f"{values['gpus']}/{of}"
    return " ".join(f"{key}={_printed(value)}" for key, value in values.items())


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for word in text.split():
        key, equals, value = word.partition("=")
        if key and equals and value:
            yield key, value


def _printed(value: object) -> str:
    """A number without a needless fraction; a version without blanks."""
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return _SPACE.sub("_", str(value))[:MAX_VALUE]


def noted(days: Mapping[str, str], figures: Day, *, now: float) -> dict[str, str]:
    """A report's days with what a run measured at `now`; complete ones stay, the newest `MAX_UNWRITTEN`."""
    today = date_of(now)
    closed = sorted(date for date in days if date < today)[-MAX_UNWRITTEN:]
    day = _folded(parse_day(days.get(today, "")), figures)
    return {date: days[date] for date in closed} | {today: day_text(day)}


def date_of(now: float) -> str:
    """`2026-11-24`, UTC."""
    return stamp(now)[:10]


def _folded(before: Day, new: Day) -> Day:
    """A day with one more run's figures."""
    old, added = asdict(before), {key: value for key, value in asdict(new).items() if value not in (None, "")}
    after = old | {key: added[key] for key in LAST if key in added}
    for keys, choose in ((LARGEST, max), (LEAST, min)):
        for key in keys:
            values = [each[key] for each in (old, added) if each.get(key) is not None]
            after[key] = choose(values, default=None)
    if "throttled" in added:
        after["throttled"] = (before.throttled or 0.0) + added["throttled"]
    if new.verdict is not None:
        after["verdict"] = max((before.verdict or new.verdict, new.verdict), key=_badness)
    return Day(**after)


def _badness(verdict: Verdict) -> int:
    """The worse, the higher; one that says nothing comes last."""
    return BEST_FIRST.index(verdict) if verdict in BEST_FIRST else -1
