"""`nodegauge explain`: what a node carries, why, what lifts it, what to do, on one screen of 80 columns."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from nodegauge_cli.__main__ import main
from nodegauge_cli.cluster import POLICIES, REPORTS
from nodegauge_cli.explain import lines
from nodegauge_cli.explanation import explained
from nodegauge_cli.output import WIDTH
from support import explained as nodes
from support.kubectl import FakeKubectl, body_of, policy_body
from support.objects import NOW, AReport, make_policy

SCREEN = 48
"""Lines of a terminal that fills a screen."""
FAULT = (
    "FAIL      gpu-7: a GPU computes wrong results, GPU 3 (0000:12:00.0), serial",
    "carries   unhealthy=corruption:NoSchedule",
    "condition GPUValidated: False (FaultsFound)",
    "since   2027-01-15T08:01:00Z (59s ago)",
    "3, PCI 0000:12:00.0, serial 1654922000003",
    "135 wrong results in 1000 checked launches",
    "lifts   3 good runs in a row (0 so far), not before 2027-01-15T08:11:00Z",
    "to do   1. `kubectl cordon gpu-7`",
    "load      read 2027-01-15T08:01:00Z (59s ago): fail",
)


@pytest.mark.parametrize(
    ("make", "later", "says"),
    [
        (nodes.corrupting, 0, FAULT),
        (
            nodes.healthy,
            0,
            ("PASS      gpu-7", "carries   no taint", "[measured]", "load      not read: no run yet"),
        ),
        (
            nodes.never_read,
            0,
            ("UNREAD    gpu-7: Never read (OOMKilled: no result).", "1. `kubectl get pods"),
        ),
        (
            nodes.hanging,
            0,
            ("UNREAD    gpu-7: Not readable since", "(call-hung)", "5. Reboot.", "not read: since"),
        ),
        (nodes.healthy, 5 * 3600, ("UNREAD    gpu-7: Nobody has looked since", "is the operator")),
        (nodes.corrupting, 5 * 3600, ("FAIL      gpu-7", "unread    Nobody has looked since")),
        (
            nodes.overruled,
            0,
            ("override  healthy by jo until 2027-01-16T00:00:00Z: the board is ordered", "taken as healthy"),
        ),
        (
            nodes.observed,
            0,
            (
                "carries   nothing: the policy is in mode Observe. In mode Enforce:",
                "unhealthy=corruption:NoSchedule",
            ),
        ),
    ],
)
def test_it_says_what_a_person_asks_at_night(
    make: Callable[[], AReport], later: float, says: tuple[str, ...]
) -> None:
    policy = make_policy().observing() if make is nodes.observed else make_policy()
    now = NOW + 119 + later
    shown = list(lines(explained(make(), policy, now=now), now=now))
    text = "\n".join(shown)
    assert [part for part in says if part not in text] == []
    assert max(map(len, "\n".join(shown).splitlines())) <= WIDTH
    assert len(text.splitlines()) <= SCREEN
    assert ("PASS" in text) == (says[0].startswith("PASS"))


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKubectl:
    fake = FakeKubectl(tmp_path, monkeypatch)
    fake.serve(REPORTS, [body_of(nodes.corrupting())])
    fake.serve(POLICIES, [policy_body()])
    return fake


def test_it_asks_for_two_objects_and_gives_programs_the_same(kubectl: FakeKubectl) -> None:
    result = CliRunner().invoke(main, ["explain", "gpu-7", "-o", "json"])
    fault = json.loads(result.output)["faults"][0]
    assert (fault["code"], fault["cause"], fault["gpus"][0]["index"], fault["tainted"]) == (
        "load-corruption",
        "corruption",
        3,
        True,
    )
    assert sorted(kubectl.calls) == [f"get --raw {POLICIES}", f"get --raw {REPORTS}/gpu-7"]


@pytest.mark.parametrize(
    ("arguments", "refused", "code", "says"),
    [
        (["gpu-7"], "", 0, "FAIL"),
        (["gpu-7", "--exit-code"], "", 3, "FAIL"),
        (["gpu-8"], "", 1, "has no NodeReport: nodegauge has never looked at it"),
        ([], "", 2, "Missing argument 'NODE'"),
        (["gpu-7"], 'Error from server (Forbidden): User "jo" cannot get', 1, "ClusterRole nodegauge-view"),
        (["gpu-7"], "Error from server (Conflict): it has been modified", 1, "Others have changed it"),
        (["gpu-7"], "Error from server (InternalError): etcd has no leader", 1, "etcd has no leader"),
        (["gpu-7"], "The connection to the server was refused", 1, "Set KUBECONFIG or --context"),
    ],
)
def test_exit_codes_and_the_way_out(
    kubectl: FakeKubectl, arguments: list[str], refused: str, code: int, says: str
) -> None:
    if refused:
        kubectl.refuse(f"{REPORTS}/gpu-7", refused)
    result = CliRunner().invoke(main, ["explain", *arguments])
    assert (result.exit_code, says in result.output) == (code, True), result.output
    assert ("KUBECONFIG" in result.output) == ("connection" in refused), (
        "a server that answers is the right one"
    )
