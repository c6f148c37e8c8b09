"""One container as a process: started below a shim, signalled, awaited.

The only module that starts processes.  What it promises: when this kubelet's process ends, however it ends,
every process of every container ends too (`shim.py` says how).

The socket to the shim is read and written directly, not through asyncio's streams: those throw away what was
received as soon as a write fails, and a container's last word often crosses with a signal to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


class Channel:
    """The line to one shim: messages in, signals out; `closed` is done when the shim has hung up."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._buffer = b""
        self._loop = asyncio.get_running_loop()
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        end.setblocking(False)
        self._loop.add_reader(end, self._read)

    async def order(self, document: dict[str, Any]) -> dict[str, Any]:
        """Send what to start and wait for the answer; empty when there is none."""
        with contextlib.suppress(OSError):
            await self._loop.sock_sendall(self._socket, json.dumps(document).encode() + b"\n")
        return await self.message()

    async def message(self) -> dict[str, Any]:
        """The shim's next message; empty when it has hung up."""
        return await self._messages.get()

    def signal(self, number: int) -> None:
        """Pass a signal on; a shim that has just ended does not mind."""
        with contextlib.suppress(OSError):
            self._socket.send(bytes([number]))

    def close(self) -> None:
        """Hang up: the shim kills everything and ends."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._messages.put_nowait({})

    def _read(self) -> None:
        try:
            data = self._socket.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._messages.put_nowait(json.loads(line))


class ContainerProcess:
    """A running container. `pid` is its first process."""

    def __init__(self, shim: subprocess.Popen[bytes], channel: Channel, *, pid: int) -> None:
        self.pid = pid
        self._shim = shim
        self._channel = channel
        self._exit = asyncio.ensure_future(self._await_exit())

    @classmethod
    async def launch(cls, spec: ProcessSpec) -> ContainerProcess:
        """Start it; StartFailed with the system's words when the command cannot be executed."""
        ours, theirs = socket.socketpair()
        with theirs:
            shim = _start_shim(theirs)
        channel = Channel(ours)
        try:
            answer = await channel.order(
                {"argv": spec.argv, "env": spec.env, "cwd": str(spec.cwd), "log": str(spec.log)}
            )
            if "pid" not in answer:
                raise StartFailed(answer.get("error", "the shim died"))
        except BaseException:
            channel.close()  # the shim kills what it may have started
            await _reap(shim)
            raise
        return cls(shim, channel, pid=answer["pid"])

    async def wait(self) -> int:
        """The exit code (128 + n after signal n), once no process of the container is left."""
        return await asyncio.shield(self._exit)

    def signal(self, number: signal.Signals) -> None:
        """SIGKILL goes to every process of the container, others to the first; no error when it is over."""
        self._channel.signal(number)

    async def stop(self, *, grace: float) -> int:
        """SIGTERM, `grace` seconds, SIGKILL; returns the exit code."""
        self.signal(signal.SIGTERM)
        done, _ = await asyncio.wait({self._exit}, timeout=grace)
        if not done:
            self.signal(signal.SIGKILL)
        return await self.wait()

    def abandon(self) -> None:
        """Hang up on the shim, which then kills everything; for a kubelet that stops at once."""
        self._channel.close()

    async def _await_exit(self) -> int:
        message = await self._channel.message()
        self._channel.close()
        await _reap(self._shim)
        return int(message.get("exit", LOST))


def _start_shim(channel: socket.socket) -> subprocess.Popen[bytes]:
    """A shim with one end of a socket pair as its standard input; its own troubles go to our error output."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(SHIM)],
        stdin=channel.fileno(),
        stdout=subprocess.DEVNULL,
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
