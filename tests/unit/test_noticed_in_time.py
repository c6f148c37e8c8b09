"""What people and time change is noticed while the containers of mode Watch have nothing to report."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.api_server import NODES
from support.calm_fleet import CalmFleet
from support.judging import listening
from support.virtual_operator import VirtualTimeOperator, on_virtual_time

SOON = 10.0
"""Two looks of the loop at what is due (`operator.sweepInterval`)."""
LOST = "gpu-lost=b"


@pytest.fixture(autouse=True)
def stated_answers() -> Iterator[None]:
    with listening():
        yield


@on_virtual_time
async def test_a_slot_that_becomes_free_is_used_at_once(operator: VirtualTimeOperator) -> None:
    """By a node that was looked at, without a slot, since it began to wait."""
    fleet = CalmFleet(operator)
    await fleet.begin(3, budget={"gatedNodes": 1})
    await fleet.becomes("node-0", LOST)
    await fleet.becomes("node-1", LOST)
    operator.cluster.change(NODES, "node-1", {"metadata": {"labels": {"rack": "r1"}}})
    await operator.after(1000)
    assert not fleet.tainted("node-1")
    operator.cluster.remove(NODES, "node-0")
    assert await fleet.until(lambda: fleet.tainted("node-1")) <= SOON


@on_virtual_time
async def test_a_node_that_waits_for_the_hour_is_tainted_as_it_passes(operator: VirtualTimeOperator) -> None:
    """`gatedNodesPerHour`: not with its next reading, but when the first taint is an hour old."""
    fleet = CalmFleet(operator)
    await fleet.begin(3, budget={"gatedNodes": 3, "gatedNodesPerHour": 1})
    began = operator.loop.time()
    await fleet.becomes("node-0", LOST)
    await fleet.becomes("node-1", LOST)
    await fleet.until(lambda: fleet.tainted("node-1"))
    assert 3600 <= operator.loop.time() - began <= 3600 + SOON
