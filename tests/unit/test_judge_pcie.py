"""PCIe links: width always, generation under load, against card and slot; errors by their rate."""

from __future__ import annotations

import pytest

import support.results as made
from nodegauge_contract import Pcie, Result, Unavailable
from nodegauge_judge import Answer, Thresholds, Verdict, judge_health
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
