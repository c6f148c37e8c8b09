"""Whatever a pod's status says, in any text and time: its run ends, is recorded, and frees its slot."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nodegauge_operator import names
from support.api_server import PODS, REPORTS
from support.operator import one_node
from support.properties import tried

HOUR = 3600.0
TEXT = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["", "X" * 70_000, "\x1b[2J\r\n\x00\x9b", "\u2028\u202e\ufffe\U0010ffff", "é" * 600, "%s %n {0}"]
    ),
)
TIME = st.sampled_from(
    [
        "0001-01-01T00:00:00Z",
        "0002-01-01T00:00:00Z",
        "1969-12-31T23:59:59Z",
        "2027-01-15T08:00:00Z",
        "2027-01-15T08:00:00.999999999Z",
        "9999-12-31T23:59:59Z",
        "9999-12-31T23:59:59-23:59",
        "soon",
        "",
    ]
)
ENDED = st.fixed_dictionaries(
    {"exitCode": st.sampled_from([0, 1, 137, 255, -1, 2**31 - 1, -(2**31)])},
    optional={"signal": st.integers(0, 64)}
    | dict.fromkeys(("reason", "message"), TEXT)
    | dict.fromkeys(("startedAt", "finishedAt"), TIME),
)
STATE = st.one_of(
    st.fixed_dictionaries({"terminated": ENDED}),
    st.fixed_dictionaries({"running": st.fixed_dictionaries({"startedAt": TIME})}),
    st.fixed_dictionaries({"waiting": st.fixed_dictionaries({"reason": TEXT, "message": TEXT})}),
)
CONDITION = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["PodScheduled", "DisruptionTarget", "Ready"]),
        "status": st.sampled_from(["True", "False"]),
    },
    optional={"reason": TEXT, "message": TEXT, "lastTransitionTime": TIME},
)
STATUS = st.fixed_dictionaries(
    {
        "phase": st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown", "Odd"]),
        "containerStatuses": STATE.map(lambda state: [{"name": names.PROBE_CONTAINER, "state": state}]),
        "conditions": st.lists(CONDITION, max_size=2),
    },
    optional={"reason": TEXT, "message": TEXT},
)
ANNOTATIONS = st.dictionaries(
    st.sampled_from([names.POD_REQUEST, names.POD_BOOT, names.POD_IMAGE]), TEXT, max_size=3
)


@tried(300)
@given(status=STATUS, annotations=ANNOTATIONS, on_node=st.booleans())
def test_an_odd_pod_ends_its_run_and_frees_its_slot(
    status: dict[str, Any], annotations: dict[str, str], on_node: bool
) -> None:
    """What is written of it is valid, so that nothing is tried for ever."""
    operator = one_node()
    operator.catch_up()
    [pod] = operator.cluster.pods()
    operator.cluster.objects[PODS][pod["metadata"]["name"]]["metadata"]["annotations"] |= annotations
    operator.cluster.pod_status(pod["metadata"]["name"], status, node="node-1" if on_node else "")
    operator.catch_up(granted=False)
    operator.cluster.pass_time(HOUR)
    operator.catch_up(granted=False)
    run = operator.cluster.objects[REPORTS]["node-1"]["status"]["probes"][0]["lastRun"]
    assert run["number"] == 1
    assert run["reason"] != "ReportRefused"
    assert all(char.isprintable() for char in run["reason"] + run["message"])
    assert not [p for p in operator.cluster.pods() if not p["metadata"].get("deletionTimestamp")]
