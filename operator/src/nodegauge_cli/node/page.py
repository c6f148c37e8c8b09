"""The page of this machine: that of `nodegauge report`, made from its judged readings."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from nodegauge_cli.judge import Section
from nodegauge_cli.judging import Criteria
from nodegauge_cli.page.fleet import own_version
from nodegauge_cli.page.html import page
from nodegauge_cli.page.judged import Part, from_judged, part_of
from nodegauge_cli.page.links import numbered
from nodegauge_cli.page.model import FleetData, RunData
from nodegauge_cli.reported import ReportJudgement, Unusable
from nodegauge_contract import Result
from nodegauge_judge.feed.judge import FeedJudgement
from nodegauge_operator.core.usable import Lost

SOURCE = "nodegauge node"
OTHERS = (Unusable, ReportJudgement, FeedJudgement)
"""What no probe of `nodegauge node` leads to, or what is not judged."""


def of_sections(sections: Sequence[Section], *, criteria: Criteria, at: str) -> str:
    """The HTML.  `at`: when the last reading was judged, RFC 3339."""
    host = _host(sections, criteria, at)
    data = FleetData(
        title=host.data.name,
        made_at=at,
        source=SOURCE,
        version=own_version(),
        unit="host",
        nodes=[host.data],
        matrices=numbered([(host.data, host.matrix)]),
        trend=[],
        problems=[],
    )
    return page(data)


def _host(sections: Sequence[Section], criteria: Criteria, at: str) -> Part:
    """Also with the probes that read nothing, and why."""
    parts: list[Part] = []
    unread: list[RunData] = []
    for probe, document, judgement in sections:
        if isinstance(document, Result) and not isinstance(judgement, OTHERS):
            read_at = at if judgement.readable else ""
            parts.append(part_of(document, judgement, criteria=criteria, at=read_at))
        else:
            unread.append(RunData(probe=probe, verdict=Lost.UNREAD.value, summary=str(judgement)))
    host = from_judged(socket.gethostname(), parts)
    host.data.runs += unread
    host.data.read_at = host.data.read_at if host.data.gpus else ""
    host.data.summary = host.data.summary or next((run.summary for run in unread), "")
    return host
