"""`nodegauge watch`: a line per change on the nodes, as the reports change.

A change is a difference of two readings of a report, so none is told twice or lost: also after a stream that
broke, or that the API server no longer holds (410), the reports are compared with what was told before.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import click
import msgspec
from msgspec import Struct

from nodegauge_cli.cluster import POLICIES, REPORTS, Cluster, NoCluster, context_option
from nodegauge_cli.inputs import duration
from nodegauge_cli.output import BAD, GOOD, TITLE, WORTH_A_LOOK, output_option, styled
from nodegauge_cli.standing import UNREAD, Standing, applied, policies_of, standing_of
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.api.report import Report, parse_report
from nodegauge_operator.api.times import stamp
from nodegauge_operator.core.faults import faults, sentence

STREAM_SECONDS = 300
"""The API server ends a stream after this time; then all reports are judged by the clock again, so that one
that nobody renews is told as well."""
REST_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Between tries while no API server answers."""
GONE = "gone"
OF_FAULTS = ("health", "taint", "held back")
MAX_WHY = 400
"""Bytes of a fault in a line: place, number, since when, next step."""
HTTP_GONE, TOO_OLD = 410, "too old resource version"
"""How the API server says that it no longer holds them, within a stream and in place of one (Kubernetes API
concepts, "410 Gone responses")."""
STYLES = {"pass": GOOD, "fail": BAD, UNREAD: BAD, "warn": WORTH_A_LOOK}


class Change(Struct, frozen=True, rename="camel", kw_only=True):
    """One change of one thing on a node."""

    at: str
    """When it was seen (RFC 3339, UTC)."""
    node: str
    what: str
    """health, taint, held back, interconnect, override, policy or report."""
    before: str = msgspec.field(default="", name="from")
    to: str = ""
    why: str = ""
    """As the report says it."""


class Expired(Exception):
    """The API server no longer holds the changes since then: everything is listed again."""


class Watch:
    """What is known of all nodes, and how it changes.  `clock`: epoch seconds; `rest`: waits so many seconds;
    `tell`: says what hinders."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        clock: Callable[[], float] = time.time,
        rest: Callable[[float], object] = time.sleep,
        tell: Callable[[str], object] = lambda text: None,
    ) -> None:
        self._cluster, self._clock, self._rest, self._tell = cluster, clock, rest, tell
        self._reports: dict[str, Report] = {}
        self._told: dict[str, Standing] = {}
        self._policies: dict[str, Policy] = {}
        self._version = ""

    def begin(self) -> int:
        """Read everything once; how many nodes there are.  Raises `NoCluster`."""
        self._cluster.need_kubectl("`watch`", "run `nodegauge nodes` again")
        self._policies = policies_of(self._cluster.each(POLICIES))
        self._list()
        self._told = {name: self._standing(name) for name in self._reports}
        return len(self._told)

    def changes(self, until: float) -> Iterator[Change]:
        """Every change, until so many epoch seconds."""
        failures = 0
        while (left := until - self._clock()) > 0:
            began = self._clock()
            try:
                self._policies = policies_of(self._cluster.each(POLICIES))
                if not self._version:
                    self._list()
                yield from self._compared()
                for event in self._stream(min(left, STREAM_SECONDS)):
                    yield from self._of(event)
                failures = 0
                wait = 0.0 if self._clock() - began >= REST_SECONDS[0] else REST_SECONDS[0]
            except Expired:
                self._version, wait = "", 0.0
            except NoCluster as error:
                self._tell(f"{error}\nTrying again.")
                self._version, wait = "", REST_SECONDS[min(failures, len(REST_SECONDS) - 1)]
                failures += 1
            self._rest(min(wait, max(0.0, until - self._clock())))

    def _list(self) -> None:
        version, reports = "", dict[str, Report]()
        for page in self._cluster.pages(REPORTS):
            version = page["metadata"]["resourceVersion"]
            reports |= {report.name: report for report in map(parse_report, page.get("items") or ())}
        self._reports, self._version = reports, version

    def _stream(self, seconds: float) -> Iterator[dict[str, Any]]:
        query = {"resourceVersion": self._version, "allowWatchBookmarks": "true"}
        try:
            yield from self._cluster.watch(REPORTS, **query, timeoutSeconds=max(1, round(seconds)))
        except msgspec.DecodeError:
            raise NoCluster("the stream of changes ended within a line") from None
        except NoCluster as error:
            raise Expired if TOO_OLD in error.message else error from None

    def _of(self, event: dict[str, Any]) -> Iterator[Change]:
        body, kind = event.get("object") or {}, event.get("type")
        if kind == "ERROR":
            if body.get("code") == HTTP_GONE:
                raise Expired
            raise NoCluster(f"the stream of changes ended: {body.get('message', '')}")
        self._version = body["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            return
        report = parse_report(body)
        if kind == "DELETED":
            self._reports.pop(report.name, None)
        else:
            self._reports[report.name] = report
        yield from self._compared_node(report.name)

    def _compared(self) -> Iterator[Change]:
        for name in sorted(self._reports.keys() | self._told.keys()):
            yield from self._compared_node(name)

    def _compared_node(self, name: str) -> Iterator[Change]:
        before = self._told.pop(name, None)
        after = self._standing(name) if name in self._reports else None
        if after is not None:
            self._told[name] = after
        at = stamp(self._clock())
        if after is None:
            yield Change(at=at, node=name, what="report", to=GONE)
            return
        old, new = _facts(before) if before is not None else {}, _facts(after)
        for what, value in new.items():
            if old.get(what, "") != value:
                why = _why(self._reports[name], self._policies.get(after.policy), after, what)
                yield Change(at=at, node=name, what=what, before=old.get(what, ""), to=value, why=why)

    def _standing(self, name: str) -> Standing:
        report = self._reports[name]
        return standing_of(report, self._policies.get(report.status.policy), now=self._clock())


def _facts(known: Standing) -> dict[str, str]:
    """What is watched of a node."""
    held_back = ", ".join(known.causes) if known.held_back else ""
    return {
        "health": known.health,
        "taint": ", ".join(known.taints),
        "held back": held_back,
        "interconnect": known.interconnect,
        "override": known.override,
        "policy": known.policy,
    }


def _why(report: Report, policy: Policy | None, known: Standing, what: str) -> str:
    """What is known of such a change: who decided, the worst fault, or what the report notes of it."""
    status, to = report.status, _facts(known)[what]
    if what == "override" and status.override is not None:
        return status.override.problem or f"{status.override.by}: {status.override.reason}"
    if to == UNREAD:
        return known.why_unread
    if what in OF_FAULTS and to not in ("", "pass"):
        worst = faults(status, policy=applied(policy, status), node=report.name)
        return sentence(worst[0], MAX_WHY) if worst else status.summary
    noted = [change.why for change in status.transitions if change.what == what and change.to == to]
    return noted[-1] if noted else status.summary


@click.command()
@click.argument("nodes", nargs=-1)
@click.option("--for", "length", callback=duration, default="8760h", help="End after this time, such as 10m.")
@output_option("json")
@context_option
def watch(nodes: tuple[str, ...], length: float, form: str | None, context: str) -> None:
    """A line per change, as it happens: time, node, what changed, from what to what, and why.

    NODES: only these. Needs kubectl and the ClusterRole nodegauge-view. Ctrl-C ends it. Exit codes: 0, 1 if
    the cluster cannot be asked at the start, 2 for wrong usage.
    """
    watched = Watch(Cluster(context=context), tell=lambda text: click.echo(text, err=True))
    try:
        count = watched.begin()
        click.echo(f"Watching {len(nodes) or count} nodes; Ctrl-C ends it.", err=True)
        for change in watched.changes(time.time() + length):
            if not nodes or change.node in nodes:
                click.echo(msgspec.json.encode(change).decode() if form else line(change))
                sys.stdout.flush()
    except KeyboardInterrupt:
        return


def line(change: Change) -> str:
    """The change as a line."""
    style = STYLES.get(change.to, BAD if change.what == "taint" and change.to else TITLE)
    what = f"{change.what}: {change.before or 'none'} -> "
    why = f"  {change.why}" if change.why else ""
    at = styled(f"{change.at[11:19]}  {change.node}  {what}")
    return f"{at}{styled(change.to or 'none', style)}{styled(why)}"
