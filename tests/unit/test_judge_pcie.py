"""PCIe links by width, generation and errors; network ports, of which what should be up is inferred."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Pcie, Problem, Result, Unavailable
from nodegauge_judge import Answer, History, Judgement, Thresholds, Verdict, judge_health
from nodegauge_judge.history.model import PortHistory
from support.judge_results import codes, only

FULL = {"max_generation": 4, "max_width": 16, "card_generation": 4}


def link(generation: int = 4, width: int = 16, *, utilization: int = 97, **more: int) -> Pcie:
    """A generation 4 x16 card in a slot that gives all of it, read at this utilisation."""
    known = FULL | {"replays": 0, "correctable": 0} | more
    return Pcie(generation=generation, width=width, utilization=utilization, **known)


def node(*links: Pcie) -> Result:
    """Four GPUs of one model whose links are these; the last one stands for those that are left out."""
    result = made.hgx_a100_4()
    for gpu_index in range(4):
        result = made.with_gpu(result, gpu_index, pcie=links[min(gpu_index, len(links) - 1)])
    return result


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (link(), []),
        (link(3), ["pcie-narrow/warn"]),
        (link(width=8), ["pcie-narrow/warn"]),
        (link(width=4), ["pcie-narrow/fail"]),
        (link(1, 1), ["pcie-narrow/fail"]),
        (link(1, utilization=49), []),
        (link(3, utilization=50), ["pcie-narrow/warn"]),
        (Pcie(generation=1, width=16, **FULL), []),
        (Pcie(utilization=99, **FULL), []),
        (Pcie(generation=4, width=4, utilization=99), []),
        (link(0, 0), []),
    ],
)
def test_a_busy_link_is_compared_with_what_card_and_slot_support(first: Pcie, expected: list[str]) -> None:
    """Half the lanes warn, less than half of the others' fail; idle generations and unread links have no
    opinion."""
    assert codes(judge_health(node(first, link()))) == expected


IDLE = {"utilization": 0, "generation": 1}


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        ([link(width=8, **IDLE), link(**IDLE)], ["pcie-narrow/warn"]),
        ([link(width=8, **IDLE), link()], ["pcie-narrow/warn"]),
        ([link(width=1, **IDLE), link(**IDLE)], ["pcie-narrow/warn"]),
        ([link(width=4, **IDLE), link(width=8, **IDLE)], ["pcie-narrow/warn"]),
        ([Pcie(generation=1, width=8, **FULL), link(**IDLE)], ["pcie-narrow/warn"]),
        ([link(width=4, **IDLE)], ["pcie-narrow/warn"]),
        ([link(width=8, **IDLE)], ["pcie-narrow/info"]),
        ([link(width=8)], ["pcie-narrow/info"]),
        ([link(3, width=8)], ["pcie-narrow/warn"]),
        ([link(width=8, max_width=8, **IDLE)], []),
        ([link(width=8, max_width=8, **IDLE), link(**IDLE)], []),
        ([link(width=0, **IDLE), link(**IDLE)], []),
        ([link(**IDLE)], []),
    ],
)
def test_missing_lanes_are_said_at_idle(links: list[Pcie], expected: list[str]) -> None:
    """An idle link lowers its generation and keeps its lanes (janhq/jan issue 183).  A card or slot with
    eight lanes is complete, and one width everywhere is how the board was built."""
    assert codes(judge_health(node(*links))) == expected


def test_a_single_idle_gpu_with_half_of_its_lanes_warns() -> None:
    """No sibling shows that the board was built so; no gate counts an idle run."""
    judgement = judge_health(made.with_gpu(made.h100(1), 0, pcie=link(width=8, **IDLE)))
    assert codes(judgement) == ["pcie-narrow/warn"]
    assert "x8 of x16 that card and slot support" in only(judgement).message
    assert judgement.answers["pcie-narrow"] is Answer.NO_LOAD


@pytest.mark.parametrize(
    ("address", "width", "expected"),
    [
        ("0000:00:1e.0", 8, ["pcie-narrow/info"]),
        ("0000:00:04.0", 8, ["pcie-narrow/info"]),
        ("0001:00:00.0", 8, ["pcie-narrow/info"]),
        ("0000:00:1e.0", 4, ["pcie-narrow/warn"]),
        ("0000:3b:00.0", 8, ["pcie-narrow/warn"]),
    ],
)
def test_a_virtual_machine_may_hide_that_the_slot_has_half_of_the_lanes(
    address: str, width: int, expected: list[str]
) -> None:
    """A T4 of AWS g4dn, idle, has 8 of 16 lanes (tests/fixtures/nvidia-smi-qx_tesla-t4.xml), directly below
    the host bridge; on bare metal, a GPU always sits below a port."""
    t4 = made.with_gpu(made.h100(1), 0, pci=address, name="Tesla T4", pcie=link(1, width, utilization=0))
    assert [code for code in codes(judge_health(t4)) if "pcie" in code] == expected
    passed_through = made.with_gpu(t4, 0, pci="0000:3b:00.0", virtualization=1)
    assert ("pcie-narrow/warn" in codes(judge_health(passed_through))) == (width < 8)


def test_a_gpu_without_memory_of_its_own_has_no_pcie_link_to_judge() -> None:
    """GB10 is part of the processor and reports generation 1 x1 (Syllo/nvtop pull request 499)."""
    placeholder = link(1, 1)
    gb10 = {"pcie": placeholder, "memory_mib": Unavailable("nvmlDeviceGetMemoryInfo: NOT_SUPPORTED")}
    assert codes(judge_health(made.with_gpu(node(link()), 0, **gb10))) == []


def test_a_narrow_or_old_slot_is_not_a_fault() -> None:
    """x4 by wiring is what card and slot can do together; an older slot is only mentioned."""
    assert codes(judge_health(node(link(width=4, max_width=4), link()))) == []
    old = judge_health(node(link(3, max_generation=3)))
    assert (codes(old), old.verdict) == (["pcie-narrow/info"], Verdict.PASS)
    assert "The card supports generation 4, its slot only 3." in only(old).message


def test_a_narrow_link_without_other_busy_gpus_warns() -> None:
    """The comparison needs GPUs of the same model that were read under load as well."""
    idle = link(utilization=0)
    assert codes(judge_health(node(link(width=2), idle))) == ["pcie-narrow/warn"]
    other = made.with_gpu(made.with_gpu(node(link(width=2), idle), 1, pcie=link()), 1, name="NVIDIA A10")
    assert codes(judge_health(other)) == ["pcie-narrow/warn", "mixed-gpus/info"]


def test_a_narrow_link_is_described_with_the_utilisation_at_which_it_was_read() -> None:
    """Now, at most, the others, and how busy."""
    finding = only(judge_health(node(link(width=4), link())))
    assert finding.subject == "GPU 0 (0000:0f:00.0)"
    assert "Generation 4 x4 at 97 % utilisation; card and slot support 4 x16" in finding.message
    assert "the node's other GPUs have x16" in finding.message
    assert finding.evidence["width"] == 4
    assert finding.evidence["utilization_percent"] == 97


@pytest.mark.parametrize(
    ("first", "answer"),
    [
        (link(), Answer.GOOD),
        (link(width=4), Answer.BAD),
        (link(width=8), Answer.UNSURE),
        (Pcie(utilization=99), Answer.UNSURE),
    ],
)
def test_a_link_answers_good_only_at_full_width(first: Pcie, answer: Answer) -> None:
    """Between entering and leaving there is room."""
    assert judge_health(node(first, link())).answers["pcie-narrow"] is answer


def test_idle_pcie_links_are_no_load() -> None:
    """And load on GPU 1 does not heal GPU 0."""
    bad = judge_health(node(link(width=4), link()))
    idle = judge_health(made.later(node(link(utilization=0))), history=bad.history)
    assert idle.answers["pcie-narrow"] is Answer.NO_LOAD
    elsewhere = made.later(node(link(utilization=0), link()))
    assert judge_health(elsewhere, history=bad.history).answers["pcie-narrow"] is Answer.NO_LOAD
    healed = judge_health(made.later(node(link())), history=bad.history)
    assert healed.answers["pcie-narrow"] is Answer.GOOD


def test_the_policy_sets_the_share_of_pcie_width() -> None:
    """Half by default."""
    strict = Thresholds(pcie_width_ratio=0.6)
    assert codes(judge_health(node(link(width=8), link()), thresholds=strict)) == ["pcie-narrow/fail"]


@pytest.mark.parametrize(
    ("counter", "grown", "expected"),
    [
        ("replays", 25, []),
        ("replays", 26, ["pcie-errors/warn"]),
        ("correctable", 25, []),
        ("correctable", 26, ["pcie-errors/warn"]),
        ("replays", 0, []),
    ],
)
def test_pcie_errors_are_judged_by_their_rate(counter: str, grown: int, expected: list[str]) -> None:
    """100 an hour are 25 in 15 minutes; the absolute value says nothing."""
    history = judge_health(node(link(**{counter: 70_000}))).history
    now = made.later(node(link(**{counter: 70_000 + grown}), link(**{counter: 70_000})))
    judgement = judge_health(now, history=history)
    assert codes(judgement) == expected
    if expected:
        assert "26 " in only(judgement).message
        assert "104 an hour (warns above 100)" in only(judgement).message


def test_pcie_errors_need_an_earlier_reading() -> None:
    """A first run and a reboot have no growth."""
    first = node(link(replays=70_000))
    assert codes(judge_health(first)) == []
    again = made.rebooted(made.later(node(link(replays=90_000))))
    assert codes(judge_health(again, history=judge_health(first).history)) == []


UP, DOWN = "ACTIVE", "DOWN"


def rdma(*states: str, **port: object) -> Result:
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
    down = rdma(DOWN, link_downed=Unavailable("no such file"))
    for judgement in (after(rdma(UP), down), after(rdma(UP), down, down, down)):
        finding = only(judgement)
        assert (finding.code, finding.severity) == ("nic-down", "warn")
        assert finding.subject == "port mlx5_0/1"
        assert "DOWN; it was up before." in finding.message


OFF = made.with_port(rdma(UP), 0, state=DOWN, physical="Disabled")
UNREAD = made.with_port(rdma(UP), 0, state=Unavailable("EINVAL"))
ERRORS = rdma(UP, symbol_errors=5000)
SLOW_ALONE = made.with_port(rdma(UP, DOWN, DOWN, DOWN, rate_gbps=400), 0, rate_gbps=100)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        pytest.param((rdma(UP), rdma(DOWN), rdma(UP)), [], id="came-back"),
        pytest.param((rdma(UP), rdma(DOWN), rdma(UP), rdma(DOWN)), ["nic-down/warn"], id="down-again"),
        pytest.param((rdma(UP), OFF), ["nic-down/info"], id="switched-off"),
        pytest.param((rdma(UP), UNREAD), [], id="unreadable-state"),
        pytest.param(
            (rdma(UP), rdma(DOWN), rdma(UP, rate_gbps=200)),
            ["nic-slow/warn"],
            id="back-but-slower",
        ),
        pytest.param((SLOW_ALONE,), [], id="ports-that-are-down-set-no-rate"),
        pytest.param((ERRORS, rdma(UP, symbol_errors=40)), [], id="counters-restarted"),
        pytest.param((rdma(UP), ERRORS), ["nic-slow/warn"], id="errors-in-one-interval"),
        pytest.param((rdma(UP), rdma(DOWN), ERRORS), [], id="errors-over-an-unknown-time"),
    ],
)
def test_a_port_is_judged_by_its_history(results: tuple[Result, ...], expected: list[str]) -> None:
    """It should be up if it was, at the rate that it had; errors count over one interval only."""
    assert codes(after(*results)) == expected


def test_a_port_that_lost_its_link_warns_without_a_history() -> None:
    """The kernel counts lost links since its driver was loaded."""
    finding = only(judge_health(rdma(DOWN, link_downed=2)))
    assert "it lost its link 2 times since its driver was loaded" in finding.message
    assert finding.evidence["link_downed"] == 2


def test_the_only_port_of_its_kind_that_is_down_warns_once() -> None:
    """A new node may have a bad cable; a spare port is only mentioned from the second run on."""
    new = rdma(UP, UP, UP, DOWN)
    assert codes(judge_health(new)) == ["nic-down/warn"]
    again = after(new, new)
    assert codes(again) == ["nic-down/info"]
    assert "no run ever saw it up: a spare, or without a cable" in only(again).message


@pytest.mark.parametrize(
    "result",
    [
        rdma(DOWN),
        rdma(UP, DOWN),
        rdma(UP, UP, DOWN),
        rdma(UP, UP, UP, DOWN, DOWN),
        rdma(UP, UP, UP, UP),
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
    finding = only(after(rdma(UP), made.with_port(rdma(UP), 0, state="INIT", physical="LinkUp")))
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
    result = rdma(*[UP] * len(rates))
    for number, rate in enumerate(rates):
        result = made.with_port(result, number, rate_gbps=rate)
    judgement = judge_health(result)
    assert codes(judgement) == expected
    if expected:
        assert "100 Gb/s; " in only(judgement).message
        assert only(judgement).evidence.items() >= {"rate_gbps": 100, "expected_gbps": 400}.items()


def test_a_port_that_became_slower_warns_until_it_is_forgotten() -> None:
    """No sibling needed, and a lower rate does not become the usual one."""
    fast, slow = rdma(UP), rdma(UP, rate_gbps=200)
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
    before, now = rdma(UP, **{counter: 5_000}), rdma(UP, **{counter: 5_000 + grown})
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
    unread = replace(replace(rdma(), nics=replace(rdma(UP).nics, ports=[])), omitted=[late])
    assert codes(after(rdma(UP), unread, rdma(DOWN))) == ["nic-down/warn"]


def test_ports_outlive_a_run_that_was_cut_off() -> None:
    """A GPU that fails makes the run count, but nobody came to look at the ports."""
    cut = made.with_gpu(made.phb(), 0, error=Problem(kind="gpu-lost", call="x", message="lost"))
    cut = replace(cut, problem=Problem(kind="call-hung", call="x", message="hung"))
    assert codes(after(rdma(UP), cut, rdma(DOWN))) == ["nic-down/warn"]
    gone = made.rebooted(replace(cut, problem=None))
    assert codes(after(rdma(UP), gone, made.rebooted(rdma(DOWN)))) == ["nic-down/warn"]


@pytest.mark.parametrize(("now", "times"), [(4, "once"), (6, "3 times")])
def test_a_port_that_lost_its_link_and_came_back_warns(now: int, times: str) -> None:
    """Both runs saw it up; every job over it has died meanwhile."""
    before, back = (
        rdma(UP, UP, link_downed=3),
        made.with_port(rdma(UP, UP, link_downed=3), 1, link_downed=now),
    )
    finding = only(after(before, back))
    assert (finding.code, finding.severity, finding.subject) == ("nic-down", "warn", "port mlx5_1/1")
    assert f"Lost its link {times} since the last run and came back." in finding.message
    assert codes(after(before, back, back)) == []


def test_lost_links_are_reported_only_for_the_last_interval() -> None:
    """Before the first run, in another boot, while it was seen down, and after its counter began anew."""
    for results in (
        (rdma(UP, link_downed=9),),
        (rdma(UP), made.rebooted(rdma(UP, link_downed=9))),
        (rdma(UP), rdma(DOWN, link_downed=1), rdma(UP, link_downed=1)),
        (rdma(UP, link_downed=9), rdma(UP, link_downed=1)),
    ):
        assert "Lost its link" not in str(after(*results).findings)


def test_ports_written_by_an_earlier_version_are_read() -> None:
    """Without its lost links; longer than any version wrote it, it is not read at all."""
    assert PortHistory.unpacked("7.25") == PortHistory(7, 2 * 64 + 5)
    assert PortHistory.unpacked("7.25.3").downs == 3
    with pytest.raises(ValueError, match="more than a port has"):
        PortHistory.unpacked("7.25.3.1")
