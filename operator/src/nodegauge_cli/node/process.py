"""One run of a probe's program on this machine, followed until it ends.

The probe is a process of its own: a call that hangs in the driver can only be left behind.  It gets SIGTERM
if this program is told to end, and dies with it in any case; it kills what it has started itself.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence

from nodegauge_cli.documents import READ_LIMIT
from nodegauge_cli.node.progress import Progress
from nodegauge_cli.output import printable
from nodegauge_cli.reported import Unusable
from nodegauge_contract import ContractError, Result, decode

TICK_S = 0.2
GRACE_S = 5.0
"""Seconds for a probe to end, once it has written its result or was told to end.  Chosen by this project: it
needs one."""
BAD_ARGUMENTS = 2
MAX_WORDS = 2000
"""Characters of what a probe wrote on standard error that are shown."""


class BadOptions(Exception):
    """The probe refuses its options; the message is its own."""


def run(probe: str, options: Sequence[str], *, gpus: int, progress: Progress) -> Result:
    """The result.  `gpus`: how many GPUs the machine should have; 0 if unknown.

    Raises `BadOptions`, and `Unusable` if the probe returned no result.
    """
    from nodegauge_probes.nccl.process_tree import DIES_WITH_PARENT

    shown = ("--progress",) if progress.is_shown else ()
    program = ("-P", "-m", "nodegauge_probes", probe, *options, *shown, "--format", "json")
    # no name: the steps of a finding would be those of a cluster
    environment = os.environ | {"NODEGAUGE_NODE": ""} | ({"NODEGAUGE_GPUS": str(gpus)} if gpus else {})
    environment.pop("NODEGAUGE_TOKEN_FOLDER", None)
    process = subprocess.Popen(
        [*DIES_WITH_PARENT, str(os.getpid()), sys.executable, *program],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        output, messages = _follow(process, progress)
    except BaseException:
        process.terminate()
        raise
    finally:
        _end(process)
    return _result(probe, process.returncode, output, messages)


def _follow(process: subprocess.Popen[bytes], progress: Progress) -> tuple[bytes, bytes]:
    """All that it writes, until it ends, or has written its result and does not end."""
    assert process.stdout is not None
    assert process.stderr is not None
    output, messages = bytearray(), bytearray()
    until = None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, output)
        selector.register(process.stderr, selectors.EVENT_READ, messages)
        while selector.get_map() and (until is None or time.monotonic() < until):
            for key, _ in selector.select(TICK_S):
                data = os.read(key.fd, READ_LIMIT)
                key.data.extend(data)
                if not data:
                    selector.unregister(key.fileobj)
            if until is None and output.endswith(b"\n"):
                until = time.monotonic() + GRACE_S
            progress.show(_last_line(messages))
    return bytes(output), bytes(messages)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for its end, and see to it; one that is stuck in the driver is left behind, and named."""
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()  # nothing that it still writes may hold it up
    for then in (process.terminate, process.kill, None):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
            return
        if then is not None:
            then()
    print(f"The probe (process {process.pid}) does not end: it is stuck in the driver.", file=sys.stderr)


def _result(probe: str, code: int | None, output: bytes, messages: bytes) -> Result:
    message = _shown(messages.decode(errors="replace"))
    if code == BAD_ARGUMENTS and not output:
        raise BadOptions(message)
    try:
        return decode(output.decode(errors="replace"))
    except ContractError as error:
        why = message or (f"exit code {code}" if not output else str(error))
        raise Unusable(f"the {probe} probe returned no result: {why}") from None


def _shown(text: str) -> str:
    """The end of what a probe wrote, without control characters."""
    return "\n".join(printable(line) for line in text.strip()[-MAX_WORDS:].splitlines())


def _last_line(messages: bytearray) -> str:
    """What it does, by its last whole line."""
    lines = messages.rpartition(b"\n")[0].splitlines()
    return printable(lines[-1].decode(errors="replace")) if lines else ""
