"""The demo's starved node: its GPU waits for an old disk, which is no fault of the node."""

from __future__ import annotations

from testbed.demo.fleet import STARVED_NODE
from testbed.demo.session import Object, Session
from testbed.errors import TestbedError
from testbed.marks import probe_of, taints_of


def explain(session: Session) -> None:
    """The watch container saw it for a window, and the report says why."""
    session.until(lambda: bool(_findings(session)), f"a finding about the feeding of {STARVED_NODE}")
    [finding] = _findings(session)
    if finding["evidence"].get("cause") != "storage":
        raise TestbedError(f"{STARVED_NODE} waits for its disk, and the report says {finding}")
    if taints := taints_of(session.node(STARVED_NODE)):
        raise TestbedError(f"{STARVED_NODE} is tainted for what its job does: {taints}")
    session.say(f"{STARVED_NODE}: its job reads from an old disk; the GPU is busy for a third of the time")
    session.say(f"{STARVED_NODE} has no taint, and its report says why the GPU waits:")
    print(f"    {finding['subject']}: {finding['message']}", flush=True)


def _findings(session: Session) -> list[Object]:
    return list(probe_of(session.report(STARVED_NODE), "feed").get("findings") or [])
