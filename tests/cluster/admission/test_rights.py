"""SECURITY.md's table of who can do what, cell by cell, on a real API server."""

from collections.abc import Iterator
from typing import Any

import pytest

from support.guarded import Guarded
from support.rights import TABLE, Everybody, everybody

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def people(guarded: Guarded) -> Iterator[Everybody]:
    with everybody(guarded) as made:
        yield made


@pytest.mark.parametrize("row", TABLE["actions"], ids=lambda row: row["action"])
def test_everybody_can_do_what_the_table_says(people: Everybody, row: dict[str, Any]) -> None:
    outcomes = {who: people.outcome(who, row) for who in TABLE["identities"]}
    written = dict.fromkeys(TABLE["identities"], "no")
    written |= dict.fromkeys(row.get("allowed", ()), "yes") | dict.fromkeys(row.get("policy", ()), "policy")
    assert outcomes == written


def test_any_installation_may_hold_the_lease(people: Everybody) -> None:
    """Else of two installations one could never take over; what is measured is written by this one alone."""
    rows = {row["action"]: row for row in TABLE["actions"]}
    assert people.outcome("second", rows["take the Lease `nodegauge` in `default`"]) == "yes"
    assert people.outcome("second", rows["write a report's status"]) == "policy"
