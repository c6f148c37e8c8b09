"""The probes by name, their settings, where a result goes, and the exit codes; see probes/README.md.

A result goes to the termination log, which a kubelet hands to the operator, and to standard output.  Writes
use the descriptors directly: a signal handler writes the last result, and a buffered stream may be in use
then.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from nodegauge_contract import Problem, ProblemKind, Result, decode, encode, encode_message
from nodegauge_probes import health, pull
from nodegauge_probes.load import probe as load
from nodegauge_probes.nccl import probe as nccl
from nodegauge_probes.nccl.supervisor import LOAD_S, Limits
from nodegauge_probes.page import page
from nodegauge_probes.result_builder import ResultBuilder
from nodegauge_probes.runner import CallWatch, Run
from nodegauge_probes.settings import BadSettings, Format, Settings, parse
from nodegauge_probes.watch import probe as watching
from nodegauge_probes.watch import schedule

STDOUT, STDERR = 1, 2


def write(result: Result, *, form: Format, termination_log: Path | None) -> int:
    """Write the result to both; returns 0 if at least one write succeeded, else 1."""
    written = False
    if termination_log is not None:
        written = _to_file(termination_log, _or_problem(result, _message))
    written = _to_descriptor(STDOUT, _or_problem(result, _page if form is Format.TABLE else _json)) or written
    return 0 if written else 1


def _message(result: Result) -> bytes:
    """Encoded, and decoded once to make sure that the operator can read it."""
    message = encode_message(result)
    decode(message)
    return message.encode()


def _json(result: Result) -> bytes:
    return encode(result) + b"\n"


def _page(result: Result) -> bytes:
    return page.render(result, terminal=terminal_width()).encode()


def _or_problem(result: Result, serialize: Callable[[Result], bytes]) -> bytes:
    """The serialized result, or a document that reports why that failed."""
    try:
        return serialize(result)
    except Exception as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        problem = Problem(kind=ProblemKind.CRASHED, call="output", message=_clean(message))
        run, node = _clean(result.run), _clean(result.node)
        return encode(Result(probe=result.probe, run=run, node=node, problem=problem)) + b"\n"


def _clean(text: str) -> str:
    """Text that can be encoded: the environment may contain invalid bytes."""
    return text.encode("utf-8", "replace").decode()


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


BAD_ARGUMENTS = 2


def _health(result: ResultBuilder, watch: CallWatch, *, settings: Settings) -> None:
    health.measure(result, watch=watch, settings=_health_settings(settings))


def _health_settings(settings: Settings) -> health.Settings:
    return health.Settings(
        sysfs=settings.sysfs,
        procfs=settings.procfs,
        window=settings.window,
        hz=settings.hz,
        slowed_window=settings.slowed_window,
    )


def _watch(result: ResultBuilder, watch: CallWatch, *, settings: Settings) -> None:
    interval = schedule.due_after(settings.watch.interval, node=settings.node)
    options = replace(settings.watch, interval=interval)
    own = watching.Settings(reading=_health_settings(settings), options=options)
    watching.measure(result, watch=watch, settings=own)


def _nccl(result: ResultBuilder, watch: CallWatch, *, settings: Settings) -> None:
    nccl.measure(result, watch=watch, settings=_nccl_settings(settings))


def _pull(result: ResultBuilder, watch: CallWatch, *, settings: Settings) -> None:
    pull.run(result, watch=watch, settings=_nccl_settings(settings))


def _nccl_settings(settings: Settings) -> nccl.Settings:
    startup, measure, teardown = settings.limits
    return nccl.Settings(
        engine=settings.engine,
        child=settings.child,
        processes=settings.processes,
        expected=settings.expected,
        shared=settings.shared,
        nccl_variables=settings.nccl_variables,
        environment=os.environ,
        limits=Limits(startup=startup, load=startup or LOAD_S, measure=measure, teardown=teardown),
        deadline=settings.deadline,
        budget=settings.budget,
        sysfs=settings.sysfs,
        procfs=settings.procfs,
    )


def _load(result: ResultBuilder, watch: CallWatch, *, settings: Settings) -> None:
    own = load.Settings(
        seconds=settings.seconds,
        hz=settings.hz,
        stop_below=settings.stop_below,
        expected=settings.expected,
        shared=settings.shared,
        environment=os.environ,
        deadline=settings.deadline,
        sysfs=settings.sysfs,
        procfs=settings.procfs,
    )
    load.measure(result, watch=watch, settings=own)


PROBES = {
    health.NAME: _health,
    nccl.NAME: _nccl,
    pull.NAME: _pull,
    load.NAME: _load,
    watching.NAME: _watch,
}
REPORTS = {watching.NAME: health.NAME}
"""Whose document a probe writes, if not its own."""


def main() -> int:
    """Run one probe with the settings of command line and environment; returns the exit code."""
    try:
        settings = parse(sys.argv[1:], os.environ, probes=list(PROBES), engines=list(nccl.ENGINES))
    except BadSettings as error:
        print(error, file=sys.stderr)
        return BAD_ARGUMENTS
    probe = REPORTS.get(settings.probe, settings.probe)
    result = ResultBuilder(probe=probe, run=settings.run, node=settings.node)
    output = partial(write, form=settings.format, termination_log=settings.termination_log)
    run = Run(result=result, deadline=settings.deadline, write=output)
    return run.run(partial(PROBES[settings.probe], settings=settings))
