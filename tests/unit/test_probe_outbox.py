"""From a result to what is written: a part, tries, and the watch probe's outbox; and the age of its files."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Unavailable, decode, text
from nodegauge_contract.reading import PART_BYTES, Part
from nodegauge_probes import alive
from nodegauge_probes.api_client import KEPT_S, Refused
from nodegauge_probes.delivery import PAUSE_S, part_of, stamp, version, write_until
from nodegauge_probes.identity import Identity
from nodegauge_probes.watch.outbox import FIRST_PAUSE_S, LONGEST_PAUSE_S, REHEARSED_S, SPREAD_S, Outbox
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
        self.rehearsed: list[bool] = []
        self.answers: list[Refused] = []
        self.idle = 0
        """How often an idle connection was to be closed."""
        self.gate = threading.Event()
        self.gate.set()

    def write(self, name: str, part: Part, *, dry_run: bool = False) -> None:
        assert name == "health"
        self.tried.append(part.sequence)
        self.rehearsed.append(dry_run)
        assert self.gate.wait(DEADLINE_SECONDS)
        if self.answers:
            raise self.answers.pop(0)
        self.written.append(part.sequence)

    def close_idle(self) -> None:
        self.idle += 1


class Stepped(Outbox):
    """An outbox by a clock that stands; a wait of its thread moves the clock by what it waits for."""

    def __init__(self, api: Api, *, jitter: float = 0.5, heard_before: bool = False) -> None:
        self.now = 1000.0
        self.messages: list[str] = []
        super().__init__(
            api,
            "health",
            say=self.messages.append,
            heard_before=heard_before,
            jitter=lambda: jitter,
            clock=lambda: self.now,
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


def test_the_newest_reading_overwrites_those_that_wait(api: Api) -> None:
    outbox = Outbox(api, "health", say=print, jitter=lambda: 0.0)
    outbox.start()
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
    outbox.api.answers = [Refused("no answer", retry_after=30.0)]
    outbox.put(part(1))
    outbox.tries(1)
    outbox.put(part(2))
    assert outbox._not_before == outbox.now + 30.0


@pytest.mark.parametrize(("jitter", "share"), [(0.0, 0.5), (0.5, 1.0), (1.0, 1.5)])
def test_pauses_grow_and_are_drawn_anew(api: Api, jitter: float, share: float) -> None:
    """Doubled up to a minute, half more or less: a fleet's containers do not return at one moment."""
    outbox = Stepped(api, jitter=jitter)
    api.answers = [Refused("no answer")] * 12
    outbox.put(part(1))
    expected = [share * min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**n) for n in range(11)]
    assert outbox.tries(12) == pytest.approx(expected)


DENIED = Refused("the API server answered 422: denied", final=True)


@pytest.mark.parametrize(
    ("answers", "last"),
    [
        ([Refused("busy", retry_after=after) for after in (0.1, 300.0, 7.0)], [FIRST_PAUSE_S, 300.0, 7.0]),
        ([DENIED] * 3, [FIRST_PAUSE_S * 2**n for n in range(3)]),
        ([Refused("no answer")] * 1500, [LONGEST_PAUSE_S] * 3),
    ],
    ids=["as long as the API server asks", "also after a refusal for good", "a thousand are no overflow"],
)
def test_a_reading_is_tried_until_written(outbox: Stepped, answers: list[Refused], last: list[float]) -> None:
    """The admission policy may be wrong for a while: nothing that was read is lost by that."""
    outbox.api.answers = list(answers)
    outbox.put(part(1))
    assert outbox.tries(len(answers) + 1)[-3:] == last
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


@pytest.mark.parametrize("heard_before", [False, True])
def test_a_calm_node_notices_that_its_writes_are_refused(api: Api, heard_before: bool) -> None:
    """It tries its last reading a minute after a write, and soon after a refusal, until it would be taken."""
    outbox = Stepped(api, heard_before=heard_before)
    outbox.put(part(1))
    assert outbox.is_heard is heard_before
    outbox.tries(1)
    assert outbox.is_heard
    api.answers = [Refused("role"), Refused("role")]
    heard = []
    for wait in (REHEARSED_S, FIRST_PAUSE_S, 2 * FIRST_PAUSE_S):
        outbox.now += wait
        outbox._write(outbox._next())
        heard.append(outbox.is_heard)
    assert (heard, api.rehearsed) == ([False, False, True], [False, True, True, True])
    assert (outbox.accepted, outbox.is_empty) == (1, True)
    outbox.put(part(2))
    outbox.tries(1)
    assert (outbox.accepted, api.rehearsed[-1]) == (2, False)


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


WHO = Identity(pod="watch-1", pod_uid="pod-uid", node="gpu-1", node_uid="node-uid")
RESULT = replace(made.titan(), run="pod-uid", node="gpu-1")
AT = 1_800_000_000.1239


def test_a_part_says_who_read_what_and_when() -> None:
    """By the token, not by what the probe was told in its environment."""
    part = part_of(RESULT, identity=WHO, sequence=7, reason="first", at=AT)
    assert (part.sequence, part.reason, part.at) == (7, "first", "2027-01-15T08:00:00.123Z")
    assert (part.pod, part.pod_uid, part.node_uid) == ("watch-1", "pod-uid", "node-uid")
    assert (part.boot_id, part.probe_version) == (RESULT.host.boot_id, version())
    assert part.reading == text(RESULT)
    assert decode(part.reading) == RESULT
    assert stamp(0.0) == "1970-01-01T00:00:00.000Z"
    result = replace(RESULT, host=replace(RESULT.host, boot_id=Unavailable("no procfs")))
    part = part_of(result, identity=WHO, sequence=1, reason="x" * 9999, at=AT)
    assert (part.boot_id, part.reason) == ("", "x" * 500)


@pytest.mark.parametrize("probe", sorted(PART_BYTES))
def test_a_document_that_does_not_fit_says_so(probe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of it would be judged as if it were whole.  Whose it is stays, and it fits into every part."""
    result, smallest = replace(RESULT, probe=probe), min(PART_BYTES.values())
    size = len(text(result))
    monkeypatch.setitem(PART_BYTES, probe, size)
    assert decode(part_of(result, identity=WHO, sequence=1, reason="run", at=AT).reading) == result
    monkeypatch.setitem(PART_BYTES, probe, size - 1)
    part = part_of(result, identity=WHO, sequence=1, reason="run", at=AT)
    assert len(part.reading) <= smallest
    written = decode(part.reading)
    whose = (written.probe, written.run, written.node, written.host)
    assert whose == (probe, RESULT.run, RESULT.node, RESULT.host)
    assert (written.problem.kind, written.gpus) == ("result-too-large", [])
    message = f"the document has {size} characters, a NodeReading holds {size - 1}"
    assert written.problem.message == message


class Tries:
    """Writes that fail so, by a clock that only pauses move."""

    def __init__(self, *failures: Refused) -> None:
        self.failures, self.now = list(failures), 0.0
        self.pauses: list[float] = []
        self.messages: list[str] = []
        self.tried = 0

    def write(self) -> None:
        self.tried += 1
        if self.failures:
            raise self.failures.pop(0)

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def run(self, seconds: float) -> bool:
        return write_until(
            self.write, seconds=seconds, failed=self.messages.append, clock=lambda: self.now, pause=self.pause
        )


def test_a_pod_that_runs_once_tries_again() -> None:
    """Each failure is said at once, for the kubelet may end the pod any time."""
    tries = Tries(Refused("no answer"), Refused("busy", retry_after=9.0))
    assert tries.run(120) is True
    assert (tries.pauses, tries.messages) == ([PAUSE_S, 9.0], ["no answer", "busy"])


def test_it_gives_up_in_time_and_after_a_final_refusal() -> None:
    tries = Tries(*[Refused("no answer")] * 100)
    assert tries.run(10) is False
    assert (tries.now, tries.tried) == (8.0, 5)
    tries = Tries(Refused("busy", retry_after=600.0))
    assert tries.run(120) is False
    assert tries.pauses == []
    tries = Tries(Refused("too large", final=True))
    assert tries.run(120) is False
    assert (tries.tried, tries.messages) == (1, ["too large"])


HOUR = 3600.0


def asked(folder: Path, seconds: float, *file: str) -> int:
    """The exit code of the question, asked as a kubelet asks it."""
    command = [sys.executable, "-m", "nodegauge_probes.alive", str(folder), f"{seconds:g}", *file]
    return subprocess.run(command, timeout=DEADLINE_SECONDS, check=False).returncode


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


@pytest.mark.parametrize("name", [alive.ALIVE, alive.READY])
def test_a_file_is_young_for_so_many_seconds(tmp_path: Path, name: str) -> None:
    """Touching it makes it, and makes it young again; a clock that somebody set back makes it old, too."""
    path = tmp_path / name
    assert not alive.is_young(path, HOUR)
    for _ in range(2):
        alive.touch(str(tmp_path), name)
        assert alive.is_young(path, HOUR)
        age(path, 2 * HOUR)
        assert not alive.is_young(path, HOUR)
    age(path, -2 * HOUR)
    assert not alive.is_young(path, HOUR)
    alive.touch(str(tmp_path / "missing"), name)
    assert not alive.is_young(tmp_path / "missing" / name, HOUR)


def test_the_kubelets_question_is_answered_by_the_exit_code(tmp_path: Path) -> None:
    assert asked(tmp_path, HOUR) == 1
    alive.touch(str(tmp_path), alive.ALIVE)
    assert (asked(tmp_path, HOUR), asked(tmp_path, HOUR, alive.READY)) == (0, 1)
    alive.touch(str(tmp_path), alive.READY)
    assert asked(tmp_path, HOUR, alive.READY) == 0


def test_the_question_loads_nothing_of_the_probe() -> None:
    """Nor what is slow to load: it runs four times a minute on each node."""
    none_of = ("msgspec", "nvml", "pathlib")
    code = f"import sys, nodegauge_probes.alive; print([n for n in sys.modules for w in {none_of} if w in n])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
