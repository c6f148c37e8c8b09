"""From a result to a part of the NodeReading, and how long a pod that runs once tries to write it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Unavailable, decode, text
from nodegauge_contract.reading import PART_BYTES
from nodegauge_probes.api_client import Refused
from nodegauge_probes.delivery import PAUSE_S, part_of, stamp, version, write_until
from nodegauge_probes.identity import Identity

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


def test_a_boot_that_cannot_be_read_is_empty_and_a_long_reason_is_cut() -> None:
    """Many things may change at once."""
    result = replace(RESULT, host=replace(RESULT.host, boot_id=Unavailable("no procfs")))
    part = part_of(result, identity=WHO, sequence=1, reason="x" * 9999, at=AT)
    assert (part.boot_id, part.reason) == ("", "x" * 500)


@pytest.mark.parametrize("probe", sorted(PART_BYTES))
def test_a_document_that_does_not_fit_is_replaced_by_one_that_says_so(
    probe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of it would be judged as if it were whole.  Whose it is stays, and it fits into every part."""
    result, smallest = replace(RESULT, probe=probe), min(PART_BYTES.values())
    size = len(text(result))
    monkeypatch.setitem(PART_BYTES, probe, size - 1)
    part = part_of(result, identity=WHO, sequence=1, reason="run", at=AT)
    assert len(part.reading) <= smallest
    written = decode(part.reading)
    assert (written.probe, written.run, written.node, written.host) == (
        probe,
        RESULT.run,
        RESULT.node,
        RESULT.host,
    )
    assert written.problem is not None
    assert (written.problem.kind, written.gpus) == ("result-too-large", [])
    message = f"the document has {size} characters, a NodeReading holds {size - 1}"
    assert written.problem.message == message


def test_a_document_of_the_most_characters_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PART_BYTES, "health", len(text(RESULT)))
    part = part_of(RESULT, identity=WHO, sequence=1, reason="run", at=AT)
    assert decode(part.reading) == RESULT


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


def test_what_is_written_at_once_is_said_by_nobody() -> None:
    tries = Tries()
    assert tries.run(120) is True
    assert (tries.tried, tries.pauses, tries.messages) == (1, [], [])


def test_a_pod_that_runs_once_tries_again() -> None:
    """After two seconds, or as long as the API server asks; each failure is said at once, for the kubelet may
    end the pod any time."""
    tries = Tries(Refused("no answer"), Refused("busy", retry_after=9.0))
    assert tries.run(120) is True
    assert (tries.pauses, tries.messages) == ([PAUSE_S, 9.0], ["no answer", "busy"])


def test_it_gives_up_in_time() -> None:
    tries = Tries(*[Refused("no answer")] * 100)
    assert tries.run(10) is False
    assert (tries.now, tries.tried) == (8.0, 5)
    tries = Tries(Refused("busy", retry_after=600.0))
    assert tries.run(120) is False
    assert tries.pauses == []


def test_a_final_refusal_ends_it() -> None:
    """The same reading would be refused again."""
    tries = Tries(Refused("too large", final=True))
    assert tries.run(120) is False
    assert (tries.tried, tries.messages) == (1, ["too large"])
