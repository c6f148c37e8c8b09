"""Logs: one JSON object a line, whatever is logged."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from nodegauge_operator import logs


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    """The root logger as it was, afterwards."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    levels = {name: logging.getLogger(name).level for name in logs.LEAST}
    yield logging.getLogger("nodegauge.test")
    root.handlers[:] = before
    root.setLevel(level)
    for name, old in levels.items():
        logging.getLogger(name).setLevel(old)


def test_a_line_is_one_json_object(log: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    """Time, level, logger, message, and the node it is about; line breaks stay inside."""
    logs.configure(level="info", form="json")
    log.info("node %s:\nsecond line", "n", extra={"node": "n", "run": 3, "other": "x"})
    log.debug("not said")
    (line,) = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert (record["level"], record["logger"], record["message"]) == (
        "info",
        "nodegauge.test",
        "node n:\nsecond line",
    )
    assert (record["node"], record["run"]) == ("n", 3)
    assert record["time"].endswith("+00:00")
    assert "other" not in record


def test_an_error_carries_its_traceback(log: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, too."""
    logs.configure(level="info", form="json")
    try:
        raise ValueError("bad \u00b2")
    except ValueError:
        log.exception("it broke", extra={"verdict": object()})
    (line,) = capsys.readouterr().err.splitlines()
    assert "ValueError: bad" in json.loads(line)["error"]


def test_text_is_for_people_without_chatter(log: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    """kopf says a line per object and event; nobody asked."""
    logs.configure(level="debug", form="text")
    logging.getLogger("kopf.objects").info("chatter")
    logging.getLogger("aiohttp.access").info("GET /healthz")
    log.debug("said")
    (line,) = capsys.readouterr().err.splitlines()
    assert "DEBUG" in line
    assert line.endswith("said")


def test_configuring_twice_says_things_once(log: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    """Handlers are replaced, not added."""
    logs.configure(level="info", form="text")
    logs.configure(level="info", form="text")
    log.info("once")
    assert len(capsys.readouterr().err.splitlines()) == 1
