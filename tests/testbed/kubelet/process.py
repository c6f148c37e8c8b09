"""One container as a process: started below a shim, signalled, awaited.

The only module that starts processes.  What it promises: when this kubelet's process ends, however it ends,
every process of every container ends too (`shim.py` says how).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from testbed.kubelet.errors import StartFailed

SHIM = Path(__file__).with_name("shim.py")
LOST = 137
"""Exit code of a container whose shim was killed: it goes with its shim, by SIGKILL."""


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """What to execute. argv[0] is a path; env is the whole environment; output is appended to log."""

    argv: list[str]
    env: dict[str, str]
    cwd: Path
    log: Path


class ContainerProcess:
    """A running container. `pid` is its first process."""

    def __init__(
        self,
        shim: subprocess.Popen[bytes],
        *,
        pid: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.pid = pid
        self._shim = shim
        self._writer = writer
        self._exit = asyncio.ensure_future(self._await_exit(reader))

    @classmethod
    async def launch(cls, spec: ProcessSpec) -> ContainerProcess:
        """Start it; StartFailed with the system's words when the command cannot be executed."""
        ours, theirs = socket.socketpair()
        with theirs:
            shim = _start_shim(theirs)
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            document = {"argv": spec.argv, "env": spec.env, "cwd": str(spec.cwd), "log": str(spec.log)}
            writer.write(json.dumps(document).encode() + b"\n")
            answer = json.loads(await reader.readline() or b'{"error": "the shim died"}')
            if "error" in answer:
                raise StartFailed(answer["error"])
        except BaseException:
            writer.close()  # the shim kills what it may have started
            await _reap(shim)
            raise
        return cls(shim, pid=answer["pid"], reader=reader, writer=writer)

    async def wait(self) -> int:
        """The exit code (128 + n after signal n), once no process of the container is left."""
        return await asyncio.shield(self._exit)

    def signal(self, number: signal.Signals) -> None:
        """SIGKILL goes to every process of the container, others to the first; no error when it is over."""
        if not self._exit.done():
            self._writer.write(bytes([number]))

    async def stop(self, *, grace: float) -> int:
        """SIGTERM, `grace` seconds, SIGKILL; returns the exit code."""
        self.signal(signal.SIGTERM)
        done, _ = await asyncio.wait({self._exit}, timeout=grace)
        if not done:
            self.signal(signal.SIGKILL)
        return await self.wait()

    def abandon(self) -> None:
        """Close the line to the shim, which then kills everything; for a kubelet that stops at once."""
        self._writer.close()

    async def _await_exit(self, reader: asyncio.StreamReader) -> int:
        try:
            line = await reader.readline()
        except OSError:
            line = b""
        self._writer.close()
        await _reap(self._shim)
        return int(json.loads(line)["exit"]) if line else LOST


def _start_shim(channel: socket.socket) -> subprocess.Popen[bytes]:
    """A shim with one end of a socket pair as its standard input."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(SHIM)],
        stdin=channel.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"},  # some Pythons need it
    )


async def _reap(shim: subprocess.Popen[bytes]) -> None:
    """Wait for the shim, which ends within milliseconds of its last word."""
    while shim.poll() is None:  # noqa: ASYNC110 - a child's end sends no event
        await asyncio.sleep(0.002)


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return os.fsdecode(stat[stat.rindex(b")") + 2 :]).split()[0] not in ("Z", "X")
