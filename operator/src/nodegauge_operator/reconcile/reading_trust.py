"""Whether readings can be believed: does the admission policy stand that says who may write them?

It is looked at before the first reading is judged, and again every half minute.  While it is wrong, nothing
is judged, and nodes keep what they carry.  What was written meanwhile may be anybody's: once the policy is
right again, only readings count that were written after that was seen.

A refusal is believed when it comes twice: an API server that has just started refuses for a moment what it
allows (its authorizer does not know the roles yet).  In between nothing is decided.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from nodegauge_operator import names
from nodegauge_operator.core import reading_admission
from nodegauge_operator.kube import admission
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import Forbidden, KubeError, NotFound

log = logging.getLogger("nodegauge.trust")

LOOK_SECONDS, RETRY_SECONDS = 30.0, 5.0
"""Chosen by this project: two small reads a minute for the whole cluster."""
WAY_OUT = "upgrade or reinstall the chart, which brings it"


class Trust:
    """`problem`: why no reading counts now, empty if they do.  `identity`: of the policy and its binding as
    last seen right; another one means that readings may have been anybody's in between."""

    def __init__(self, *, client: Client, probe_user: str, monotonic: Callable[[], float]) -> None:
        self.problem = "the admission policy of NodeReadings has not been looked at yet"
        self.identity = ""
        self.looked = False
        """Whether it is known; nothing is decided before."""
        self._client = client
        self._probe_user = probe_user
        self._monotonic = monotonic
        self._due_at = monotonic()
        self._refused_once = False

    def due_in(self) -> float:
        """Seconds until it is to be looked at."""
        return self._due_at - self._monotonic()

    async def look(self, *, on_change: Callable[[], None]) -> None:
        """Read policy and binding; `on_change` if readings count now and did not, the other way round, or if
        it is another policy.

        An API server that does not answer changes nothing: nobody can write a reading there either."""
        try:
            policy, binding = await admission.get(self._client)
        except (NotFound, Forbidden) as error:
            known = self.looked and bool(self.problem)
            if known or self._refused_once:
                self._note(f"{error}; {WAY_OUT}", on_change=on_change)
            else:
                self._refused_once, self.looked = True, False
                self._due_at = self._monotonic() + RETRY_SECONDS
        except KubeError as error:
            log.log(error.log_level, "the admission policy of NodeReadings cannot be read: %s", error)
            self._due_at = self._monotonic() + RETRY_SECONDS
            self.looked = self.looked or self._refused_once
        else:
            why = reading_admission.wrong(policy, binding, probe_user=self._probe_user)
            text = f"the admission policy {reading_admission.NAME} does not protect them: {why}; {WAY_OUT}"
            before = self.identity
            if not why:
                self.identity = names.digest("/".join(_version(body) for body in (policy, binding)))
            self._note(text if why else "", on_change=on_change, other=self.identity != before)

    def _note(self, problem: str, *, on_change: Callable[[], None], other: bool = False) -> None:
        """`other`: the policy is another one, under which older pods write nothing that counts."""
        self._due_at, self.looked, self._refused_once = self._monotonic() + LOOK_SECONDS, True, False
        changed = bool(problem) != bool(self.problem)
        if problem and problem != self.problem:
            log.error("no reading counts: %s", problem)
        elif changed:
            log.info("the admission policy of NodeReadings stands")
        self.problem = problem
        if changed or other:
            on_change()


def _version(body: dict[str, object]) -> str:
    metadata = body.get("metadata") or {}
    assert isinstance(metadata, dict)
    return f"{metadata.get('uid')}-{metadata.get('generation')}"
