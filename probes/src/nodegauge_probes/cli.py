"""Which probe runs, where its result goes, and the exit codes; see probes/README.md.

A result goes to standard output and, in a pod with a token, into the node's `NodeReading`.  The termination
log says in a sentence why there is none.  Writes use the descriptors directly: a signal handler writes the
last result, and a buffered stream may be in use then.  What only some runs need is imported where it is: the
watch container stays for months, and a run outside of a cluster needs no HTTP, which is a third of its start.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from nodegauge_contract import Problem, ProblemKind, Result, decode, encode, text
from nodegauge_probes import health
from nodegauge_probes.identity import BadToken, server_of
from nodegauge_probes.nccl.plan import ENGINES
from nodegauge_probes.result_builder import ResultBuilder
from nodegauge_probes.runner import Run
from nodegauge_probes.settings import DEADLINES, BadSettings, Format, Settings, parse

if TYPE_CHECKING:
    from nodegauge_probes.api_client import ReadingClient

STDOUT, STDERR = 1, 2
WRITE_SECONDS = 120.0
"""How long a pod that runs once tries to write; the kubelet ends it at its deadline, which is earlier for
most."""
BAD_ARGUMENTS = 2


class Output(Struct, frozen=True, kw_only=True):
    """Where the result of a probe that runs once goes."""

    form: Format
    termination_log: Path | None
    client: ReadingClient | None

    def write(self, result: Result) -> int:
        """Write the result; 0 if somebody can read it now, else 1."""
        result = readable(result)
        printed = _to_descriptor(STDOUT, _page(result) if self.form is Format.TABLE else _json(result))
        if result.problem is not None:
            self.explain(f"{result.problem.kind}: {result.problem.call} {result.problem.message}".strip())
        return int(not (printed if self.client is None else self._deliver(self.client, result)))

    def explain(self, why: str) -> None:
        """Say in the termination log why there is no reading."""
        if self.termination_log is not None:
            _to_file(self.termination_log, _clean(why).encode()[:1024])

    def _deliver(self, client: ReadingClient, result: Result) -> bool:
        from nodegauge_probes.delivery import part_of, write_until

        try:
            part = part_of(result, identity=client.identity(), sequence=1, reason="run", at=time.time())
        except BadToken as error:
            self.explain(f"the reading is not written: {error}")
            return False
        return write_until(
            partial(client.write, result.probe, part),
            seconds=WRITE_SECONDS,
            failed=lambda why: self.explain(f"the reading is not written: {why}"),
        )


def _json(result: Result) -> bytes:
    return encode(result) + b"\n"


def _page(result: Result) -> bytes:
    from nodegauge_probes.page import page

    return page.render(result, terminal=terminal_width()).encode()


def readable(result: Result) -> Result:
    """The result, or a document that says why nobody could read it: it is written and read once."""
    try:
        decode(text(result))
    except Exception as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        problem = Problem(kind=ProblemKind.CRASHED, call="output", message=_clean(message))
        return Result(probe=result.probe, run=_clean(result.run), node=_clean(result.node), problem=problem)
    return result


def _clean(text: str) -> str:
    """Text that can be encoded: the environment may contain invalid bytes."""
    return text.encode("utf-8", "replace").decode()


def _say(text: str) -> None:
    _to_descriptor(STDERR, f"{_clean(text)}\n".encode())


def _to_file(path: Path, data: bytes) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    except OSError as error:
        _to_descriptor(STDERR, f"termination log {path}: {error.strerror}\n".encode())
        return False
    try:
        return _to_descriptor(descriptor, data)
    finally:
        os.close(descriptor)


def _to_descriptor(descriptor: int, data: bytes) -> bool:
    left = memoryview(data)
    try:
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError:
        return False
    return True


def terminal_width() -> int | None:
    """Columns of the terminal; None for a pipe or a file."""
    try:
        return os.get_terminal_size(STDOUT).columns or None
    except OSError:
        return None


def _watch(settings: Settings, client: ReadingClient | None) -> int:
    """Watch until SIGTERM; the exit code."""
    import math

    from nodegauge_probes import alive
    from nodegauge_probes.api_client import ReadingClient
    from nodegauge_probes.delivery import part_of
    from nodegauge_probes.feed import probe as feed
    from nodegauge_probes.watch import probe as watching
    from nodegauge_probes.watch import schedule
    from nodegauge_probes.watch.outbox import Outbox

    interval = schedule.due_after(settings.watch.interval, node=settings.node)
    own = watching.Settings(
        reading=health.settings_of(settings),
        options=replace(settings.watch, interval=interval),
        run=settings.run,
        node=settings.node,
        deadline=settings.deadline,
        access=settings.access,
        kernel_log=settings.kernel_log,
        control_groups=settings.control_groups,
        dcgm=settings.dcgm,
    )
    folder = str(settings.watch.state.parent)
    outbox, windows, identity = None, None, None
    if client is not None:
        try:
            identity = client.identity()
        except BadToken as error:
            watching.say(str(error))
            if settings.termination_log is not None:
                _to_file(settings.termination_log, str(error).encode())
            return 1
        heard_before = Path(folder, alive.READY).exists()  # by an earlier container of this pod
        outbox = Outbox(client, health.NAME, say=watching.say, heard_before=heard_before)
        outbox.start()
        windows = Outbox(ReadingClient(client.server), feed.NAME, say=watching.say, rehearsed_after=math.inf)
        if settings.watch.feed_window:
            windows.start()

    def deliver(reading: watching.Reading) -> None:
        result = readable(reading.result)
        _to_descriptor(STDOUT, _json(result))
        box = outbox if result.probe == health.NAME else windows
        if box is not None and identity is not None:
            number, why = reading.sequence, reading.reason
            box.put(part_of(result, identity=identity, sequence=number, reason=why, at=time.time()))

    def progress() -> None:
        alive.touch(folder, alive.ALIVE)
        if outbox is not None and outbox.is_heard:
            alive.touch(folder, alive.READY)

    delivery = watching.Delivery(
        deliver=deliver,
        pending=lambda: outbox is not None and not outbox.is_empty,
        progress=progress,
    )
    code = watching.Resident(own, delivery).run()
    sys.stderr.flush()
    os._exit(code)  # without the exit handlers of the driver library, which may hang


def _client() -> ReadingClient | None:
    """To the API server of the pod that this is."""
    if (server := server_of(os.environ)) is None:
        return None
    from nodegauge_probes import delivery as _  # noqa: F401 - no signal handler must import it later
    from nodegauge_probes.api_client import ReadingClient

    return ReadingClient(server)


def main() -> int:
    """Run one probe with the settings of command line and environment; returns the exit code."""
    try:
        settings = parse(sys.argv[1:], os.environ, probes=list(DEADLINES), engines=list(ENGINES))
    except BadSettings as error:
        print(error, file=sys.stderr)
        return BAD_ARGUMENTS
    client = _client()
    if settings.probe == "watch":
        return _watch(settings, client)
    from nodegauge_probes.once import MEASURE

    result = ResultBuilder(probe=settings.probe, run=settings.run, node=settings.node, access=settings.access)
    output = Output(form=settings.format, termination_log=settings.termination_log, client=client)
    looked = None
    if settings.progress:
        from nodegauge_probes.progress import Progress

        looked = Progress(result, say=_say)
    run = Run(result=result, deadline=settings.deadline, write=output.write, looked=looked)
    return run.run(partial(MEASURE[settings.probe], settings=settings))
