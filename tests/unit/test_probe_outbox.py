"""The outbox of the watch probe: the newest reading waits, and tries do not come too often."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from nodegauge_contract.reading import Part
from nodegauge_probes.api_client import KEPT_S, Refused
from nodegauge_probes.watch.outbox import FIRST_PAUSE_S, LONGEST_PAUSE_S, SPREAD_S, Outbox
from testbed.wait import DEADLINE_SECONDS, wait_for

Waits = list[float]


def part(sequence: int) -> Part:
    who = {"pod": "p", "pod_uid": "u", "node_uid": "n"}
    return Part(sequence=sequence, at="2026-11-27T00:00:00.000Z", reading="{}", **who)


class Api:
    """An API server: `written` is what it accepted, `answers` what it raises, one a try."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.tried: list[int] = []
        self.answers: list[Refused] = []
        self.idle = 0
        """How often an idle connection was to be closed."""
        self.gate = threading.Event()
        self.gate.set()

    def write(self, name: str, part: Part) -> None:
        assert name == "health"
        self.tried.append(part.sequence)
        assert self.gate.wait(DEADLINE_SECONDS)
        if self.answers:
            raise self.answers.pop(0)
        self.written.append(part.sequence)

    def close_idle(self) -> None:
        self.idle += 1


class Stepped(Outbox):
    """An outbox by a clock that stands; a wait of its thread moves the clock by what it waits for."""

    def __init__(self, api: Api, *, jitter: float = 0.5) -> None:
        self.now = 1000.0
        self.messages: list[str] = []
        super().__init__(
            api, "health", say=self.messages.append, jitter=lambda: jitter, clock=lambda: self.now
        )
        self.api = api

    def tries(self, wanted: int) -> Waits:
        waits, last = [], self.now
        for _ in range(wanted):
            self.now = max(self.now, self._not_before)
            waits.append(self.now - last)
            last = self.now
            self._write(self._next())
        return waits[1:]


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def outbox(api: Api) -> Stepped:
    return Stepped(api)


@pytest.fixture
def started(api: Api) -> Iterator[Callable[[], Outbox]]:
    """An outbox whose thread runs."""
    messages: list[str] = []

    def start() -> Outbox:
        outbox = Outbox(api, "health", say=messages.append, jitter=lambda: 0.0)
        outbox.start()
        return outbox

    yield start
    api.gate.set()


def test_the_newest_reading_overwrites_those_that_wait(api: Api, started: Callable[[], Outbox]) -> None:
    """`put` waits for no write under way, which ends; of those after it the newest alone is written."""
    outbox = started()
    api.gate.clear()
    outbox.put(part(1))
    wait_for(lambda: api.tried == [1], what="the first try")
    for number in (2, 3, 4):
        outbox.put(part(number))
    assert not outbox.is_empty
    api.gate.set()
    wait_for(lambda: outbox.is_empty, what="the writes")
    assert (api.written, outbox.accepted) == ([1, 4], 2)


def test_after_a_refusal_the_newest_reading_is_tried(outbox: Stepped) -> None:
    outbox.api.answers = [Refused("no answer")]
    outbox.put(part(1))
    outbox.tries(1)
    outbox.put(part(2))
    outbox.tries(1)
    assert (outbox.api.tried, outbox.api.written, outbox.overwritten) == ([1, 2], [2], 1)


def test_a_newer_reading_ends_no_pause(outbox: Stepped) -> None:
    """A node on which everything flaps asks a troubled API server no more often than a calm one."""
    outbox.api.answers = [Refused("no answer", retry_after=30.0)]
    outbox.put(part(1))
    outbox.tries(1)
    outbox.put(part(2))
    assert outbox._not_before == outbox.now + 30.0


@pytest.mark.parametrize(("jitter", "share"), [(0.0, 0.5), (0.5, 1.0), (1.0, 1.5)])
def test_pauses_grow_and_are_drawn_anew(api: Api, jitter: float, share: float) -> None:
    """Each twice as long as the one before, up to a minute, and by half more or less: containers of a whole
    fleet do not come back at the same moment."""
    outbox = Stepped(api, jitter=jitter)
    api.answers = [Refused("no answer")] * 12
    outbox.put(part(1))
    expected = [share * min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**n) for n in range(11)]
    assert outbox.tries(12) == pytest.approx(expected)


def test_a_thousand_failures_are_no_overflow(outbox: Stepped) -> None:
    outbox.api.answers = [Refused("no answer")] * 1500
    outbox.put(part(1))
    assert outbox.tries(1500)[-1] == LONGEST_PAUSE_S


def test_retry_after_is_kept_to(outbox: Stepped) -> None:
    outbox.api.answers = [Refused("busy", retry_after=after) for after in (0.1, 300.0, 7.0)]
    outbox.put(part(1))
    assert outbox.tries(4) == [FIRST_PAUSE_S, 300.0, 7.0]
    assert outbox.api.written == [1]


def test_after_a_write_pauses_begin_anew(outbox: Stepped) -> None:
    outbox.api.answers = [Refused("no answer")] * 5
    outbox.put(part(1))
    outbox.tries(6)
    before = outbox.now
    outbox.api.answers = [Refused("no answer")]
    outbox.put(part(2))
    outbox.tries(2)
    assert outbox.now - before == FIRST_PAUSE_S


def test_a_reading_that_was_refused_for_good_is_tried_again(outbox: Stepped) -> None:
    """The admission policy may be wrong for a while: nothing that was read is lost by that."""
    outbox.api.answers = [Refused("the API server answered 422: denied", final=True)] * 3
    outbox.put(part(1))
    outbox.tries(4)
    assert outbox.api.written == [1]


def test_who_wrote_once_and_is_refused_now_is_late_until_a_write(outbox: Stepped) -> None:
    """A right, a network policy or a webhook that came later; newer readings do not begin the time anew."""
    outbox.put(part(1))
    outbox.tries(1)
    outbox.now += 7200
    outbox.api.answers = [Refused("no right")] * 4
    for number, late in ((2, False), (3, False), (4, True)):
        outbox.put(part(number))
        outbox.tries(1)
        assert outbox.is_late is late
        outbox.now += 61
    outbox.tries(2)
    assert not outbox.is_late


@pytest.mark.parametrize("jitter", [0.0, 0.25, 1.0])
def test_the_first_write_waits_for_a_moment_of_its_own(api: Api, jitter: float) -> None:
    """Containers of a whole fleet may start at once; later readings wait for nothing."""
    outbox = Stepped(api, jitter=jitter)
    began = outbox.now
    outbox.put(part(1))
    outbox.tries(1)
    assert outbox.now - began == jitter * SPREAD_S
    outbox.put(part(2))
    outbox.tries(1)
    assert (outbox.now - began, api.written) == (jitter * SPREAD_S, [1, 2])


def test_what_went_wrong_is_said_and_that_it_is_over(outbox: Stepped) -> None:
    outbox.api.answers = [Refused("no answer"), Refused("busy", retry_after=20.0)]
    outbox.put(part(7))
    outbox.tries(3)
    assert outbox.messages == [
        "reading 7 is not written: no answer; next try in 1 s",
        "reading 7 is not written: busy; next try in 20 s",
        "reading 7 is written, after 2 failed tries",
    ]


def test_an_idle_connection_is_looked_after(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody writes for hours: the thread wakes as often as a connection may be kept."""
    outbox = Stepped(api, jitter=0.0)
    waited: Waits = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            outbox._waiting = part(1)

    monkeypatch.setattr(outbox._changed, "wait", wait)
    assert outbox._next().sequence == 1
    assert (waited, api.idle) == ([KEPT_S, KEPT_S], 1)
