"""What is remembered between runs, Xids and links: no fault is forgotten, nothing wrong is learned."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Host, Problem, RepeatedXid, Result, Unavailable, WatchReport, XidCount, Xids
from nodegauge_judge import Answer, History, Judgement, NodeFacts, Severity, Verdict, judge_health
from nodegauge_judge.history import growth
from nodegauge_judge.history.model import (
    FEW_XIDS,
    LIMIT,
    ClockHistory,
    Counts,
    GpuHistory,
    LinkHistory,
    PortHistory,
)
from nodegauge_judge.history.xid_times import MOST_TIMES, XidHistory
from nodegauge_judge.history.xids import MOST_XIDS, ends_at
from nodegauge_judge.model import XidRule
from support.judge_results import codes, judge, only
from support.watched import at

HOUR, DAY = 3600, 86_400
BOOT = 1_800_000_000
"""When the node was booted, seconds since the epoch."""
THRICE = XidRule(codes=(63, 94), severity=Severity.FAIL, count=3)
Came = Mapping[tuple[int, int], XidCount]
"""By GPU and code."""
Step = tuple[Any, ...]


def document(came: Came, *, up: int, boot: str = "boot-1", gpus: int = 8) -> Result:
    result = replace(made.h100(gpus), host=Host(boot_id=boot, boottime_ms=up * 1000))
    for index in range(gpus):
        own = {code: count for (gpu, code), count in came.items() if gpu == index}
        xids = Xids(registered=True, seen=list(own), counts=list(own.values()))
        result = made.with_gpu(result, index, xids=xids)
    return result


class Node:
    """A node whose documents are judged one after the other, its history kept as a report keeps it."""

    def __init__(self, *rules: XidRule) -> None:
        self.rules, self.history, self.booted = rules, "", BOOT

    def judged(self, result: Result, *, late: float = 0.0) -> Judgement:
        up = result.host.boottime_ms
        judgement = judge_health(
            result,
            history=History.decode(self.history),
            node=NodeFacts(xids=self.rules),
            read_at=self.booted + up / 1000 + late if isinstance(up, int) else 0.0,
        )
        self.history = judgement.history.encode()
        return judgement

    def came(self, came: Came, *, up: int, boot: str = "boot-1") -> Judgement:
        return self.judged(document(came, up=up, boot=boot))


def test_the_sentence_names_code_gpu_count_and_window() -> None:
    judgement = Node(THRICE).came({(3, 94): at(50, 60, 70)}, up=100)
    finding = only(judgement)
    assert finding.message.startswith("Xid 94 came 3 times within 24 h on GPU 3 (the policy's limit is 3). ")
    assert (finding.code, finding.severity, finding.gpus[0].index) == ("xid", Severity.FAIL, 3)
    assert finding.evidence == {"xids": "94", "count": 3, "within_seconds": DAY}
    assert judgement.answers["xid"] is Answer.BAD


def rule(count: int = 1, *, of: int = 94, severity: Severity | None = Severity.FAIL, **more: Any) -> XidRule:
    return XidRule(codes=(of,), severity=severity, count=count, **more)


BOTH = "xid/fail xid/warn"
TWICE: Came = {(0, 94): at(50, 60)}
BOTH_CODES: Came = {(1, 94): at(50, 60), (1, 63): at(70)}
LATER: Came = {(0, 94): at(2000, 2070)}
STORIES: dict[str, tuple[list[XidRule], list[Step]]] = {
    # what: the rules; of each document its Xids, when it was made, the findings, the boot (the second begins
    # two hours after a day)
    "a warning": ([rule(2, severity=Severity.WARN)], [(TWICE, 100, "xid/warn")]),
    "ignored": ([rule(severity=None)], [(TWICE, 100, "")]),
    "another code has the catalogue's severity": ([rule(of=13, severity=None)], [(TWICE, 100, "xid/fail")]),
    "codes of a rule are counted together": ([THRICE], [(BOTH_CODES, 100, "xid/fail")]),
    "GPUs are not": ([THRICE], [({(1, 94): at(50, 60), (2, 63): at(70)}, 100, "")]),
    "two rules about a code both count, beside the catalogue": (
        [THRICE, rule(severity=Severity.WARN, window=HOUR)],
        [({(0, 94): at(50)}, 100, "xid/warn"), ({(0, 94): at(150, 160), (0, 79): at(170)}, 200, BOTH)],
    ),
    "a count lasts over documents until its window is over": (
        [THRICE],
        [
            *(({(0, 94): at(HOUR * n - 5)}, HOUR * n, "xid/fail" if n > 2 else "") for n in (1, 2, 3)),
            *(({}, HOUR + DAY - 10, "xid/fail"), ({}, HOUR + DAY, "")),
        ],
    ),
    "a reboot does not forget": (
        [THRICE],
        [
            ({(0, 94): at(DAY - 100, DAY - 50)}, DAY, ""),
            ({(0, 94): at(20)}, 30, "xid/fail", "boot-2"),
            ({}, 21 * HOUR, "xid/fail", "boot-2"),
            ({}, 22 * HOUR, "", "boot-2"),
        ],
    ),
    "a document that came late is judged by its own time": (
        [rule(2, window=60)],
        [({(0, 94): at(1000, 1050)}, 1300, "xid/fail"), ({}, 1360, ""), (LATER, 2080, "")],
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_xids_are_counted_by_the_rules(name: str) -> None:
    rules, steps = STORIES[name]
    node = Node(*rules)
    for came, up, expected, *boot in steps:
        node.booted = BOOT + (DAY + 2 * HOUR) * bool(boot)
        judgement = node.came(came, up=up, boot=(*boot, "boot-1")[0])
        assert " ".join(codes(judgement)) == expected
        assert (judgement.answers["xid"] is Answer.BAD) is ("xid/fail" in expected)


def test_nothing_is_kept_without_need() -> None:
    node = Node(THRICE, rule(of=31, severity=None))
    assert node.came({(0, 31): at(20)}, up=30).history.xids == {}
    assert node.came({(0, 94): at(50)}, up=100).history.xids
    assert node.came({}, up=3 * DAY).history.xids == {}
    node.rules = ()
    assert node.came({(0, 94): at(3 * DAY)}, up=3 * DAY + 9).history.xids == {}


def test_without_the_time_of_reading_a_boot_is_counted_for_itself() -> None:
    facts = NodeFacts(xids=(THRICE,))
    history = judge_health(document(TWICE, up=100), node=facts).history
    for boot, expected in (("boot-1", ["xid/fail"]), ("boot-2", [])):
        later = document({(0, 94): at(150)}, up=200, boot=boot)
        assert codes(judge_health(later, node=facts, history=history)) == expected


@pytest.mark.parametrize("late", [0.0, 1.4, -1.4, 40.0])
def test_the_same_document_is_counted_once(late: float) -> None:
    node, twice = Node(THRICE), document({(0, 94): at(50, 90)}, up=100)
    for each in (0.0, late, late):
        assert codes(node.judged(twice, late=each)) == []
    heard_too = document({(0, 94): at(51, 90)}, up=101)
    assert codes(node.judged(heard_too, late=late)) == []
    assert codes(node.came({(0, 94): at(92)}, up=110)) == ["xid/fail"]


def test_a_document_of_an_earlier_version_counts_each_code_once() -> None:
    node, old = Node(THRICE), Xids(registered=True, seen=[94, 63])
    for up, expected in ((100, []), (200, ["xid/fail"])):
        result = made.with_gpu(document({}, up=up), 0, xids=old)
        for _ in range(2):
            assert codes(node.judged(result)) == expected


ODD = [at(-50), at(90, 50), at(2**62), *(XidCount(count=n, first=9, last=9) for n in (-3, 2**62))]


@pytest.mark.parametrize("odd", ODD)
def test_impossible_counts_and_times_are_one_xid_now(odd: XidCount) -> None:
    judgement = Node(THRICE).came({(0, 94): odd}, up=100)
    assert judgement.history.xids == {"00000000 94": XidHistory(((BOOT + 100, 1),))}


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
def test_a_lost_gpu_is_counted_as_the_one_that_is_missing(boot: str) -> None:
    node = Node(rule(2, of=79))
    node.came({}, up=50)
    node.booted += HOUR * (boot == "boot-2")
    document_lost = document({(5, 79): at(90)}, up=100, boot=boot)
    lost = made.with_gpu(document_lost, 5, uuid=Unavailable("x"), error=Problem(kind="gpu-lost"))
    assert "xid/fail" not in codes(node.judged(lost))
    node.booted += HOUR
    judgement = node.came({(5, 79): at(20)}, up=30, boot="boot-3")
    assert "Xid 79 came 2 times within 24 h on GPU 5" in only(judgement).message


def test_a_long_row_is_counted_rather_low_than_high() -> None:
    """One every ten minutes for three days: about 144 are within a day, and few times are kept."""
    node = Node(rule(of=13, severity=Severity.WARN))
    for up in range(600, 3 * DAY, 600):
        judgement = node.judged(document({(0, 13): at(up - 1)}, up=up, gpus=1))
        count = judgement.findings[0].evidence["count"]
        assert 0.8 * min(144, up // 600) <= count <= min(144, up // 600)
    assert len(judgement.history.xids["00000000 13"].times) <= MOST_TIMES


def test_the_newest_keeps_its_time_in_a_long_row() -> None:
    node = Node(rule(of=13, severity=Severity.WARN))
    ups = [*range(1000, 1000 * MOST_TIMES + 1, 1000), 1000 * MOST_TIMES + 5]
    for up in (*ups, ups[-1]):
        judgement = node.came({(0, 13): at(up)}, up=up)
    assert judgement.findings[0].evidence["count"] == len(ups)


def full(gpus: int, *, ports: int) -> History:
    """Of a node up for a year on which everything has been counted, its GPUs busy, hot and bad for long."""
    year, each = 31_536_000_000, Counts.__struct_fields__
    counts = Counts(**{name: year if name in growth.CLOCKLIKE else 46_656 for name in each})
    counts = replace(counts, energy_cj=year * 70)
    links = LinkHistory(18, True, 36, 1)
    memory = GpuHistory(links=links, counts=counts, idle_dw=1234, bad=0b111111, warm="10110111", braked=3)
    return History(
        boot="c0ffee00-0000-4000-8000-000000000000",
        driver="580.105.08",
        boottime_ms=year,
        gpus={f"{gpu_index:08x}": memory for gpu_index in range(gpus)},
        ports={f"mlx5_{port}/1": PortHistory(46_656, 4000) for port in range(ports)},
        clock=ClockHistory("0123abcd", 1980),
    )


def test_the_newest_are_kept_and_the_history_stays_small() -> None:
    node = Node(XidRule(codes=(13, 31, 63, 94), severity=Severity.WARN))
    came = {(gpu, code): at(100 + gpu) for gpu in range(16) for code in node.rules[0].codes}
    xids = node.judged(document(came, up=200, gpus=16)).history.xids
    assert len(xids) == MOST_XIDS
    assert min(one.times for one in xids.values()) == ((BOOT + 104, 1),)
    large = replace(full(16, ports=10), xids=xids, booted=BOOT)
    assert len(large.encode()) <= LIMIT
    kept = History.decode(large.encode())
    assert (len(kept.xids), kept.gpus) == (FEW_XIDS // 2, large.gpus)
    assert min(one.times for one in kept.xids.values()) == ((BOOT + 114, 1),)
    some = replace(full(8, ports=10), xids=xids, booted=BOOT)
    assert len(some.trimmed().xids) == FEW_XIDS
    assert some.trimmed().ports


def reports(*came: Came, ups: tuple[int, ...]) -> list[Result]:
    result: list[Result] = []
    earlier: list[RepeatedXid] = []
    for own, up in zip(came, ups, strict=True):
        watch = WatchReport(at=up, repeated=list(earlier))
        result.append(replace(document(own, up=up), watch=watch))
        for (gpu, code), one in own.items():
            earlier.append(RepeatedXid(gpu=gpu, code=code, count=one.count, first=one.first, last=one.last))
    return result


THREE = ({(0, 79): at(90), (0, 94): at(80, 90)}, {(0, 94): at(500)}, {})


def test_xids_of_reports_that_never_arrived_are_judged_with_the_next() -> None:
    node = Node(THRICE)
    node.judged(reports({}, ups=(50,))[0])
    assert codes(node.came({}, up=60)) == []  # a run of a pod says nothing of the container's reports
    judgement = node.judged(reports(*THREE, ups=(100, 510, 3600))[-1])
    assert judgement.answers["xid"] is Answer.BAD
    (finding,) = judgement.findings
    assert "came 3 times within 24 h on GPU 0" in finding.message
    assert "Xid 79 (GPU has fallen off the bus)" in finding.message


def test_what_was_judged_is_none_of_a_later_report_that_repeats_it() -> None:
    node = Node(THRICE)
    first, _, third = reports(*THREE, ups=(100, 510, 3600))
    assert codes(node.judged(first)) == ["xid/fail"]
    judgement = node.judged(third)
    assert "came 3 times within 24 h on GPU 0" in only(judgement).message
    assert "79" not in only(judgement).message
    assert node.judged(third).history == judgement.history
    calm = replace(document({}, up=2 * DAY), watch=replace(third.watch, at=2 * DAY))
    again = node.judged(calm)
    assert (codes(again), again.answers["xid"]) == ([], Answer.GOOD)


def test_another_boot_and_a_report_that_was_deleted_begin_anew() -> None:
    node = Node()
    _, late = reports({(3, 79): at(90)}, {}, ups=(100, 300))
    node.judged(reports({}, ups=(DAY,))[0])
    other = replace(late, host=replace(late.host, boot_id="boot-2"))
    node.booted += DAY + HOUR
    assert codes(node.judged(other)) == ["xid/fail"]
    assert codes(node.judged(other)) == []
    node.history = ""
    assert codes(node.judged(other)) == ["xid/fail"]


def test_a_burst_in_a_lost_report_is_judged_by_its_own_time() -> None:
    node = Node(rule(3, window=60))
    node.judged(reports({}, ups=(50,))[0])
    _, late = reports({(0, 94): at(90, 100, 110)}, {(0, 94): at(3600)}, ups=(120, 3610))
    assert "came 3 times within 1 min on GPU 0" in only(node.judged(late)).message
    assert codes(node.came({}, up=3700)) == []


def test_a_node_that_cannot_be_judged_does_not_forget_what_was_reported() -> None:
    node = Node()
    node.judged(reports({}, ups=(50,))[0])
    _, late = reports({(3, 13): at(90)}, {}, ups=(100, 300))
    half = replace(document({}, up=300, gpus=4), watch=late.watch)
    assert "xid/warn" in codes(node.judged(half))
    assert "xid/warn" not in codes(node.judged(half))


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("window", [HOUR, 2 * HOUR])
def test_a_finding_ends_when_it_was_said_to(count: int, window: int) -> None:
    rule = XidRule(codes=(63, 94), severity=Severity.WARN, count=count, window=window)
    node = Node(rule, XidRule(codes=(13,), severity=None))
    came = {(1, 94): at(50, 60), (1, 63): at(70), (2, 94): at(80), (3, 13): at(90)}
    stood = codes(node.came(came, up=100))
    history = History.decode(node.history)
    end = ends_at(history.xids, node.rules, after=BOOT + 100)
    assert (end is not None) == bool(stood) == (count < 4)
    while end is not None:
        assert codes(node.came({}, up=int(end) - BOOT - 1))
        assert end - window - BOOT in (50, 60, 70, 80)
        assert ends_at(history.xids, node.rules, after=end - 1) == end
        last, end = end, ends_at(history.xids, node.rules, after=end)
        assert bool(codes(node.came({}, up=int(last) - BOOT))) == (end is not None)


def test_xids_that_the_container_had_no_room_for_are_said() -> None:
    watch = WatchReport(at=2, lost=17)
    judgement = Node().judged(replace(document({}, up=10), watch=watch))
    [finding] = [one for one in judgement.findings if one.code == "xid"]
    assert (finding.severity, judgement.verdict) == (Severity.WARN, Verdict.WARN)
    assert finding.message.startswith("17 more Xids came than the watch container had room for")


def remembered(readings: list[int]) -> LinkHistory:
    memory = LinkHistory(readings[0])
    for reading in readings[1:]:
        memory = memory.after(reading)
    return memory


def degraded(links: int) -> Result:
    return made.without_links(made.titan(), 0, count=2 - links)


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([6], 6),
        ([6, 6, 5, 5, 5, 5, 5], 6),
        ([6, 5, 5, 5], 5),
        ([6, 5, 4, 5], 5),
        ([6, 5, 4, 4], 5),
        ([6, 5, 5, 6, 5, 5, 5, 5], 6),
        ([6, 12, 6, 6], 6),
        ([6, 12, 11], 11),
        ([4, 6, 6, 4, 4, 4, 4], 6),
        ([12, 6, 6, 6], 6),
        ([6, 12, 5, 5, 5, 5], 6),
    ],
)
def test_the_link_sum_rises_on_two_readings_and_falls_unconfirmed(readings: list[int], expected: int) -> None:
    assert remembered(readings).sum == expected


def test_a_repeated_reading_confirms_the_link_sum() -> None:
    assert remembered([6, 6]) == remembered([6, 5, 6]) == remembered([6, 9, 6]) == LinkHistory(6, True)


@pytest.mark.parametrize(
    ("before", "result"),
    [
        (made.titan(), replace(degraded(1), problem=Problem(kind="deadline"))),
        (made.titan(), made.with_gpu(degraded(1), 1, error=Problem(kind="gpu-lost"))),
        (made.titan(), made.with_gpu(degraded(1), 1, mig=1)),
        (made.titan(), Result(probe="health")),
        (made.dgx1(), made.dgx1([0, 1, 2, 3])),
    ],
    ids=["cut-off", "lost-gpu", "mig", "no-gpu", "hidden"],
)
def test_only_a_complete_reading_changes_the_history(before: Result, result: Result) -> None:
    history = judge(before).history
    assert judge_health(result, history=history).history == history


def test_unclear_links_do_not_change_the_history() -> None:
    history = judge(made.titan(), made.titan()).history
    asleep = made.with_links(made.with_links(made.titan(), 0, state=2), 1, state=2)
    assert judge_health(asleep, history=history).history.gpus == history.gpus
    assert {gpu.links.sum for gpu in judge(asleep).history.gpus.values()} == {0}


def test_a_replaced_gpu_takes_the_place_of_the_old_one_in_the_history() -> None:
    swapped = made.with_gpu(made.titan(), 1, uuid="GPU-new")
    assert set(judge(made.titan(), swapped).history.gpus) == {"00000000", "new"}


def test_sixteen_gpus_and_ten_ports_fit_with_everything_counted_for_a_year() -> None:
    """The largest machine (DGX-2: 16 GPUs, 10 network cards) loses nothing in 2 KiB."""
    history = full(16, ports=10)
    assert len(history.encode()) <= LIMIT
    assert History.decode(history.encode()) == history


def test_a_history_that_is_too_large_drops_whole_parts_in_order() -> None:
    seen = [History.decode(full(count, ports=128).encode()) for count in (16, 24, 60, 64, 100)]
    assert [history is not None and bool(history.ports) for history in seen] == [False] * 5
    assert [history.boottime_ms is not None for history in seen if history] == [True, *[False] * 4]
    assert all(len(full(count, ports=128).encode()) <= LIMIT for count in range(0, 200, 7))


def test_absurd_uuids_leave_an_empty_history() -> None:
    absurd = made.h100(64)
    for gpu_index in range(64):
        absurd = made.with_gpu(absurd, gpu_index, uuid="ü" * 100 + f"{gpu_index:03}")
    assert judge(absurd).history.gpus == {}


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "\ud800", "[" * 100_000, '{"at": -1}', '{"booted": -1}', '{"xids": "a 94 "}'),
        *('{"gpus": {"a": "+1"}}', '{"gpus": {"a": "zzzzzzzzzzzz"}}'),
        *(f'{{"ports": "mlx5_0/1{port}"}}' for port in ("", " 1", " 1.2.3.4.5.6.7.8.9.0", " é.1")),
        *('{"ports": "x"}', '{"ports": ","}'),
    ],
)
def test_a_history_that_cannot_be_read_is_none(text: str) -> None:
    """Somebody edited the report: measured anew, never guessed."""
    assert History.decode(text) is None


@pytest.mark.parametrize("number", [-1, -(2**63), 2**63, 10**40])
def test_a_number_that_no_counter_can_have_is_not_kept(number: int) -> None:
    history = History(gpus={"GPU-a": GpuHistory(links=LinkHistory(4), idle_dw=number, braked=number)})
    assert History.decode(history.encode()) == History(gpus={"GPU-a": GpuHistory(links=LinkHistory(4))})
