"""The operator's process: its settings, of which one error names every bad one; one JSON object a line in its
logs; /healthz, /readyz and /metrics as a kubelet and Prometheus ask for them.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import re
import resource
import sys
from collections.abc import AsyncIterator, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml

from nodegauge_operator import http_server, logs
from nodegauge_operator.__main__ import main
from nodegauge_operator.http_server import HttpServer
from nodegauge_operator.metrics import Metrics
from nodegauge_operator.settings import SettingsError, parse

NEEDED = {"POD_NAMESPACE": "nodegauge", "NODEGAUGE_PROBE_IMAGE": "localhost/nodegauge/probe:0.1.0"}


READ, BAD = yaml.safe_load(Path(__file__).with_name("operator-settings.yaml").read_text("utf-8")).values()


@pytest.mark.parametrize("name", READ)
def test_every_variable_is_read(name: str) -> None:
    text, field, value = READ[name]
    read = attrgetter(field)(parse(NEEDED | {name: text}))
    assert (list(read) if isinstance(read, tuple) else read) == value


def test_one_error_lists_every_bad_value() -> None:
    with pytest.raises(SettingsError) as caught:
        parse(BAD)
    lines = str(caught.value).splitlines()[1:]
    assert len(lines) == len(BAD)
    for name, value in BAD.items():
        (line,) = [line for line in lines if re.match(rf"\s*{name}\b", line)]
        assert value.strip() in line
        assert any(word in line for word in ("set it to", "must be", "write")), f"no way out in: {line}"


OUT_OF_RANGE = {
    "NODEGAUGE_API_RATE": ("inf", "0", "-1"),
    "NODEGAUGE_WORKERS": ("65", "eight"),
    "NODEGAUGE_HTTP_PORT": ("-1",),
    "NODEGAUGE_MAX_GATED_NODES": ("101%", "-1"),
    "NODEGAUGE_SWEEP_INTERVAL": ("0s", "1d", "99999h", "-5s"),
}


@pytest.mark.parametrize(("name", "value"), [(n, value) for n, bad in OUT_OF_RANGE.items() for value in bad])
def test_values_out_of_range_are_refused(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        parse(NEEDED | {name: value})


AWAY = NEEDED | {"KUBECONFIG": "/no such file", "NODEGAUGE_LOG_LEVEL": "error"}


@pytest.mark.parametrize(
    ("environ", "code", "parts"),
    [
        (BAD, 2, ["NODEGAUGE_WORKERS is 0: must be a number from 1 to 64"]),
        (AWAY, 1, ["no access to a cluster", "Set KUBECONFIG"]),
    ],
    ids=["bad settings", "no cluster"],
)
def test_the_process_ends_in_words(
    environ: dict[str, str],
    code: int,
    parts: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("os.environ", dict(environ))
    monkeypatch.setattr("nodegauge_operator.logs.configure", lambda **_: None)
    assert main() == code
    output = capsys.readouterr().err
    assert [part for part in parts if part not in output] == []


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    """All loggers are as they were, afterwards."""
    root = logging.getLogger()
    before = list(root.handlers)
    levels = {logger: logger.level for logger in (root, *map(logging.getLogger, logs.LEAST))}
    yield logging.getLogger("nodegauge.test")
    root.handlers[:] = before
    for logger, level in levels.items():
        logger.setLevel(level)


def test_a_line_is_one_json_object(log: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(level="info", form="json")
    extra = {"node": "n", "probe": "health", "run": 3, "verdict": object()}
    log.info("node %s:\nsecond line", "n", extra=extra | {"other": "x"})
    log.debug("not said")
    (line,) = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert record.pop("time").endswith("+00:00")
    message = {"level": "info", "logger": "nodegauge.test", "message": "node n:\nsecond line"}
    assert record == message | extra | {"verdict": str(extra["verdict"])}


def test_text_is_for_people_without_chatter(log: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    """kopf says a line per object and event; nobody asked.  Configured twice, it says things once."""
    for _ in range(2):
        logs.configure(level="debug", form="text")
    logging.getLogger("kopf.objects").info("chatter")
    logging.getLogger("aiohttp.access").info("GET /healthz")
    log.debug("said")
    (line,) = capsys.readouterr().err.splitlines()
    assert "DEBUG" in line
    assert line.endswith("said")


HOSTILE = "\x1b[2J\x1b]0;title\x07 first\r\n2026-01-01 00:00:00,000 ERROR forged\u2028\x9b31m\ud800 last"


@pytest.mark.parametrize("logger", ["nodegauge.node", "kopf.objects", "aiohttp.server", "py.warnings"])
@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("how", ["message", "argument", "exception", "cause", "stack"])
def test_nothing_that_somebody_else_wrote_breaks_a_line(
    log: logging.Logger, capsys: pytest.CaptureFixture[str], logger: str, form: str, how: str
) -> None:
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
    if form == "json":
        assert ("ValueError: " in json.loads(first).get("error", "")) is (shown is not None), "in one line"
    assert len(first) > 20


class Served:
    """A server on a free port, and what it is told to say."""

    def __init__(self) -> None:
        self.live, self.unready = True, ""
        self.metrics = Metrics()
        self.port = 0
        self.server = self.another()

    def another(self) -> HttpServer:
        asked: dict[str, Any] = {"live": lambda: self.live, "unready": lambda: self.unready}
        return HttpServer(host="127.0.0.1", port=self.port, metrics=self.metrics, **asked)

    async def get(self, path: str) -> tuple[int, str]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.port}{path}") as answer,
        ):
            return answer.status, await answer.text()


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    served.port = await served.server.start()
    yield served
    await served.server.stop()


async def test_live_and_ready_are_asked_at_each_request(served: Served) -> None:
    states = (("/healthz", "live", False, True), ("/readyz", "unready", "the reason why", ""))
    for path, name, bad, good in states:
        assert await served.get(path) == (200, "ok\n")
        setattr(served, name, bad)
        status, text = await served.get(path)
        assert (status, len(text) > 10) == (503, True)
        setattr(served, name, good)
        assert await served.get(path) == (200, "ok\n")


async def test_metrics_are_in_prometheus_words(served: Served) -> None:
    served.metrics.observe_call(verb="PATCH", resource="nodes", status=409, seconds=0.003)
    status, text = await served.get("/metrics")
    assert status == 200
    assert 'nodegauge_api_calls_total{resource="nodes",status="409",verb="PATCH"} 1.0' in text
    assert 'nodegauge_api_call_seconds_bucket{le="0.005",verb="PATCH"} 1.0' in text
    assert "nodegauge_pods_refused_total 0.0" in text
    assert "process_resident_memory_bytes" in text


async def test_a_taken_port_is_an_error_and_unknown_paths_are_404(served: Served) -> None:
    """The process must say so and end, not run deaf."""
    assert (await served.get("/"))[0] == 404
    second = served.another()
    with pytest.raises(OSError, match="address already in use"):
        await second.start()
    await second.stop()


SENT = {
    "nothing": b"",
    "half a request": b"GET /metrics HTTP/1.1\r\nHost: x\r\n",
    "a body that never comes": b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n",
    "many requests at once": b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 200,
    "no HTTP": b"\x16\x03\x01\x02\x00" * 100,
}


@contextlib.contextmanager
def few_descriptors(count: int) -> Iterator[None]:
    """This process may open so many files more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    free = (number for number in range(before[0]) if number not in taken)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(itertools.islice(free, count, None)), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


HOLD = """
import resource, socket, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held = []
for _ in range(int(sys.argv[2])):
    held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1]))))
    try:
        held[-1].sendall(eval(sys.argv[3]))
    except OSError:
        pass
print("held", flush=True)
sys.stdin.read()
"""
"""A client that keeps connections, in a process of its own: ours may open few files."""


@pytest.mark.parametrize("sent", SENT)
async def test_a_client_that_keeps_connections_shuts_nobody_out(
    served: Served, sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many it opens, and whatever it sends: the kubelet gets its answer, and not by their age."""
    assert http_server.MAX_CONNECTIONS < 1024 / 2, "what a process may open by default"
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 50)
    monkeypatch.setattr(http_server, "CONNECTION_SECONDS", 3600.0)
    command = [sys.executable, "-c", HOLD, str(served.port), "500", repr(SENT[sent])]
    with few_descriptors(320):  # of which asyncio takes 128 at once
        client = await asyncio.create_subprocess_exec(*command, stdin=-1, stdout=-1)
        async with asyncio.timeout(60):
            assert await client.stdout.readline() == b"held\n"
        for _ in range(3):
            async with asyncio.timeout(60):
                assert await served.get("/healthz") == (200, "ok\n")
        client.stdin.close()
        await client.wait()


@pytest.mark.parametrize("sent", SENT)
async def test_a_connection_has_an_end(served: Served, sent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that sends nothing, or reads nothing of its answer."""
    monkeypatch.setattr(http_server, "CONNECTION_SECONDS", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(SENT[sent])
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(60):
            await reader.read()
    writer.close()
    assert not served.server._runner.server.connections  # type: ignore[union-attr]


async def test_other_methods_are_refused(served: Served) -> None:
    url = f"http://127.0.0.1:{served.port}/healthz"
    async with aiohttp.ClientSession() as session:
        async with session.head(url) as answer:
            assert answer.status == 200
        async with session.post(url, data=b"x") as answer:
            assert (answer.status, answer.headers["Connection"]) == (405, "close")
