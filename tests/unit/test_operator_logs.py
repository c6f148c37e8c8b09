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
    log.info("node %s:\nsecond line", "n", extra={"node": "n", "probe": "health", "run": 3, "other": "x"})
    log.debug("not said")
    (line,) = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert (record["level"], record["logger"], record["message"]) == (
        "info",
        "nodegauge.test",
        "node n:\nsecond line",
    )
    assert (record["node"], record["probe"], record["run"]) == ("n", "health", 3)
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


HOSTILE = "\x1b[2J\x1b]0;title\x07 first\r\n2026-01-01 00:00:00,000 ERROR forged\u2028\x9b31m\ud800 last"


@pytest.mark.parametrize("logger", ["nodegauge.node", "kopf.objects", "aiohttp.server", "py.warnings"])
@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("how", ["message", "argument", "exception", "cause", "stack"])
def test_nothing_that_somebody_else_wrote_breaks_a_line(
    log: logging.Logger, capsys: pytest.CaptureFixture[str], logger: str, form: str, how: str
) -> None:
    """Neither escape sequences nor line breaks come through, whoever logs them and wherever they stand."""
    logs.configure(level="info", form=form)
    to = logging.getLogger(logger)
    try:
        raise ValueError(HOSTILE if how == "exception" else "plain") from ValueError(HOSTILE)
    except ValueError as error:
        shown = error if how in ("exception", "cause") else None
        text = HOSTILE if how == "message" else "%s"
        args = (HOSTILE,) if how == "argument" else () if how == "message" else ("fine",)
        to.error(text, *args, exc_info=shown, stack_info=how == "stack")
    out = capsys.readouterr().err
    assert all(char.isprintable() for char in out.replace("\n", ""))
    first, *rest = out.splitlines()
    assert "forged" in out or how == "stack"
    assert all(line.startswith("    ") for line in rest), "only a traceback follows, and it is indented"
    assert len(first) > 20
