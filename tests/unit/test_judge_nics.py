"""Network ports: what should be up is inferred, and a spare port must not warn for ever."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Problem, Result, Unavailable
from nodegauge_judge import History, Judgement, judge_health
from nodegauge_judge.history.model import PortHistory
from support.judge_results import codes, only

UP, DOWN = "ACTIVE", "DOWN"


def node(*states: str, **port: object) -> Result:
    """A healthy machine with one port of one kind for each state."""
    return made.with_ports(made.phb(), *states, **port)


def after(first: Result, *following: Result) -> Judgement:
    """The last judgement of a node that was read at one interval after the other."""
    judgement = judge_health(first)
    for number, result in enumerate(following, 1):
        judgement = judge_health(made.later(result, seconds=900 * number), history=judgement.history)
    return judgement


def test_a_port_that_was_up_before_warns_as_long_as_it_is_down() -> None:
    """The node's own past tells, with no sibling and no counter of the kernel; repeats do not wear off."""
    down = node(DOWN, link_downed=Unavailable("no such file"))
    for judgement in (after(node(UP), down), after(node(UP), down, down, down)):
        finding = only(judgement)
        assert (finding.code, finding.severity) == ("nic-down", "warn")
        assert finding.subject == "port mlx5_0/1"
        assert "DOWN; it was up before." in finding.message


OFF = made.with_port(node(UP), 0, state=DOWN, physical="Disabled")
UNREAD = made.with_port(node(UP), 0, state=Unavailable("EINVAL"))
ERRORS = node(UP, symbol_errors=5000)
SLOW_ALONE = made.with_port(node(UP, DOWN, DOWN, DOWN, rate_gbps=400), 0, rate_gbps=100)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        pytest.param((node(UP), node(DOWN), node(UP)), [], id="came-back"),
        pytest.param((node(UP), node(DOWN), node(UP), node(DOWN)), ["nic-down/warn"], id="down-again"),
        pytest.param((node(UP), OFF), ["nic-down/info"], id="switched-off"),
        pytest.param((node(UP), UNREAD), [], id="unreadable-state"),
        pytest.param(
            (node(UP), node(DOWN), node(UP, rate_gbps=200)), ["nic-slow/warn"], id="back-but-slower"
        ),
        pytest.param((SLOW_ALONE,), [], id="ports-that-are-down-set-no-rate"),
        pytest.param((ERRORS, node(UP, symbol_errors=40)), [], id="counters-restarted"),
        pytest.param((node(UP), ERRORS), ["nic-slow/warn"], id="errors-in-one-interval"),
        pytest.param((node(UP), node(DOWN), ERRORS), [], id="errors-over-an-unknown-time"),
    ],
)
def test_a_port_is_judged_by_its_history(results: tuple[Result, ...], expected: list[str]) -> None:
    """It should be up if it was, at the rate that it had; errors count over one interval only."""
    assert codes(after(*results)) == expected


def test_a_port_that_lost_its_link_warns_without_a_history() -> None:
    """The kernel counts lost links since its driver was loaded."""
    finding = only(judge_health(node(DOWN, link_downed=2)))
    assert "it lost its link 2 times since its driver was loaded" in finding.message
    assert finding.evidence["link_downed"] == 2


def test_the_only_port_of_its_kind_that_is_down_warns_once() -> None:
    """A new node may have a bad cable; a spare port is only mentioned from the second run on."""
    new = node(UP, UP, UP, DOWN)
    assert codes(judge_health(new)) == ["nic-down/warn"]
    again = after(new, new)
    assert codes(again) == ["nic-down/info"]
    assert "no run ever saw it up: a spare, or without a cable" in only(again).message


@pytest.mark.parametrize(
    "result",
    [
        node(DOWN),
        node(UP, DOWN),
        node(UP, UP, DOWN),
        node(UP, UP, UP, DOWN, DOWN),
        node(UP, UP, UP, UP),
        made.phb(),
    ],
)
def test_few_siblings_prove_nothing(result: Result) -> None:
    """Spares are common, and two of them as well."""
    assert codes(judge_health(result)) == []


@pytest.mark.parametrize(
    "other", [{"pci": "0000:83:00.1"}, {"link_layer": "Ethernet"}, {"port": 2}, {"to_gpu": ["SYS", "SYS"]}]
)
def test_a_port_of_another_kind_is_no_sibling(other: dict[str, object]) -> None:
    """A card's second function, another network, another port number, a card far from every GPU."""
    result = made.with_ports(made.hgx_a100_4(), UP, UP, UP, DOWN)
    nics = result.nics
    port = {name: value for name, value in other.items() if name in ("link_layer", "port")}
    nics = replace(
        nics,
        ports=[*nics.ports[:3], replace(nics.ports[3], **port)],
        pci=[*nics.pci[:3], str(other.get("pci", nics.pci[3]))],
        to_gpu=[*nics.to_gpu[:3], other.get("to_gpu", nics.to_gpu[3])],
    )
    assert codes(judge_health(result)) == ["nic-down/warn"]
    assert codes(judge_health(replace(result, nics=nics))) == []


def test_a_port_without_a_subnet_manager_is_down_too() -> None:
    """INIT carries nothing; the words say which state it is."""
    finding = only(after(node(UP), made.with_port(node(UP), 0, state="INIT", physical="LinkUp")))
    assert finding.message.startswith("INIT, LinkUp; it was up before.")


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([400, 400, 400, 400], []),
        ([400, 400, 400, 100], ["nic-slow/warn"]),
        ([100, 400, 400, 400, 400], ["nic-slow/warn"]),
        ([400, 400, 100], []),
        ([400, 400, 200, 200], []),
        ([400, 200, 100, 50], []),
        ([100, 100, 100, 400], []),
    ],
)
def test_a_port_below_three_of_its_kind_that_agree_warns(rates: list[int], expected: list[str]) -> None:
    """A faster one is no reason to call the others slow, and where nobody agrees there is no measure."""
    result = node(*[UP] * len(rates))
    for number, rate in enumerate(rates):
        result = made.with_port(result, number, rate_gbps=rate)
    judgement = judge_health(result)
    assert codes(judgement) == expected
    if expected:
        assert "100 Gb/s; " in only(judgement).message
        assert only(judgement).evidence.items() >= {"rate_gbps": 100, "expected_gbps": 400}.items()


def test_a_port_that_became_slower_warns_until_it_is_forgotten() -> None:
    """No sibling needed, and a lower rate does not become the usual one."""
    fast, slow = node(UP), node(UP, rate_gbps=200)
    for judgement in (after(fast, slow), after(fast, slow, slow, slow), after(slow, fast, slow)):
        assert codes(judgement) == ["nic-slow/warn"]
        assert only(judgement).message.startswith("200 Gb/s; earlier runs saw 400 Gb/s.")
    assert codes(after(slow, fast, fast)) == []
    assert codes(after(slow, slow)) == []


@pytest.mark.parametrize(
    ("counter", "grown", "expected"),
    [
        ("symbol_errors", 25, []),
        ("symbol_errors", 26, ["nic-slow/warn"]),
        ("receive_errors", 26, ["nic-slow/warn"]),
    ],
)
def test_errors_of_a_port_are_judged_by_their_rate(counter: str, grown: int, expected: list[str]) -> None:
    """100 an hour are 25 in 15 minutes; what was counted before does not matter."""
    before, now = node(UP, **{counter: 5_000}), node(UP, **{counter: 5_000 + grown})
    assert codes(judge_health(before)) == []
    judgement = after(before, now)
    assert codes(judgement) == expected
    if expected:
        assert "26 errors in 900 s since the last run: 104 an hour" in only(judgement).message


@pytest.mark.parametrize("ports", ["x", "mlx5_0/1", "mlx5_0/1 1", "mlx5_0/1 1.2.3.4", "mlx5_0/1 é.1", ","])
def test_an_unreadable_list_of_ports_drops_the_history(ports: str) -> None:
    """A report that was edited by hand: what cannot be read counts as nothing."""
    assert History.decode(json.dumps({"boot": "b", "ports": ports})) is None


def test_ports_survive_a_report() -> None:
    """Errors, rates and what is not known; a name that cannot be written is forgotten alone."""
    ports = {"mlx5_0/1": PortHistory(7, 25), "mlx 5/2": PortHistory(None, 0), "a,b/1": PortHistory(1, 1)}
    kept = History.decode(History(boot="b", ports=ports).encode())
    assert kept.ports == {"mlx5_0/1": PortHistory(7, 25), "mlx 5/2": PortHistory(None, 0)}


@pytest.mark.parametrize("late", ["nics.ports", "nics"])
def test_ports_that_were_still_being_read_are_not_forgotten(late: str) -> None:
    """The probe gave up waiting for them: a port that went down meanwhile must still be known."""
    unread = replace(replace(node(), nics=replace(node(UP).nics, ports=[])), omitted=[late])
    assert codes(after(node(UP), unread, node(DOWN))) == ["nic-down/warn"]


def test_ports_outlive_a_run_that_was_cut_off() -> None:
    """A GPU that fails makes the run count, but nobody came to look at the ports."""
    cut = made.with_gpu(made.phb(), 0, error=Problem(kind="gpu-lost", call="x", message="lost"))
    cut = replace(cut, problem=Problem(kind="call-hung", call="x", message="hung"))
    assert codes(after(node(UP), cut, node(DOWN))) == ["nic-down/warn"]
    gone = made.rebooted(replace(cut, problem=None))
    assert codes(after(node(UP), gone, made.rebooted(node(DOWN)))) == ["nic-down/warn"]


@pytest.mark.parametrize(("now", "times"), [(4, "once"), (6, "3 times")])
def test_a_port_that_lost_its_link_and_came_back_warns(now: int, times: str) -> None:
    """Both runs saw it up; every job over it has died meanwhile."""
    before, back = (
        node(UP, UP, link_downed=3),
        made.with_port(node(UP, UP, link_downed=3), 1, link_downed=now),
    )
    finding = only(after(before, back))
    assert (finding.code, finding.severity, finding.subject) == ("nic-down", "warn", "port mlx5_1/1")
    assert f"Lost its link {times} since the last run and came back." in finding.message
    assert codes(after(before, back, back)) == []


def test_lost_links_are_reported_only_for_the_last_interval() -> None:
    """Before the first run, in another boot, while it was seen down, and after its counter began anew."""
    for results in (
        (node(UP, link_downed=9),),
        (node(UP), made.rebooted(node(UP, link_downed=9))),
        (node(UP), node(DOWN, link_downed=1), node(UP, link_downed=1)),
        (node(UP, link_downed=9), node(UP, link_downed=1)),
    ):
        assert "Lost its link" not in str(after(*results).findings)


def test_ports_written_by_an_earlier_version_are_read() -> None:
    """Without its lost links; longer than any version wrote it, it is not read at all."""
    assert PortHistory.unpacked("7.25") == PortHistory(7, 2 * 64 + 5)
    assert PortHistory.unpacked("7.25.3").downs == 3
    with pytest.raises(ValueError, match="more than a port has"):
        PortHistory.unpacked("7.25.3.1")
