"""Writes a result to the termination log, which the kubelet passes to the operator, and to standard output.

Writes go directly to the descriptors: a result may be written in a signal handler, where a buffered stream
may be locked.  Nothing else on the machine is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from nodegauge_contract import Problem, ProblemKind, Result, decode, encode, encode_message
from nodegauge_probes.page import page
from nodegauge_probes.settings import Format

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
