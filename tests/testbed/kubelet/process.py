"""One container as a process, started below a shim (`shim.py`).  The socket to the shim is not read through
asyncio's streams, which drop what was received as soon as a write fails."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testbed import forkserver
from testbed.kubelet.errors import StartFailed
from testbed.kubelet.images import default_images

SHIM = "testbed.kubelet.shim"
LOST = 137
"""Exit code of a container whose shim was killed: it goes with its shim, by SIGKILL."""


class ContainerProcess:
    def __init__(self, end: socket.socket) -> None:
        self.pid = 0
        self._exit: asyncio.Future[int]
        self._socket = end
        self._buffer = b""
        self._loop = asyncio.get_running_loop()
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._closed = asyncio.Event()
        """The shim has ended."""
        end.setblocking(False)
        self._loop.add_reader(end, self._read)

    @classmethod
    async def launch(cls, *, argv: list[str], env: dict[str, str], cwd: Path, log: Path) -> ContainerProcess:
        """argv[0] is a path; env is the whole environment; output is appended to log."""
        ours, theirs = socket.socketpair()
        with theirs:
            _start_shim(theirs, forkserver.needs(forkserver.forked(argv, env, _servers()[0].environment)))
        process = cls(ours)
        order = {"argv": argv, "env": env, "cwd": str(cwd), "log": str(log)}
        try:
            with contextlib.suppress(OSError):
                await process._loop.sock_sendall(ours, json.dumps(order).encode() + b"\n")
            answer = await process._messages.get()
            if "pid" not in answer:
                raise StartFailed(answer.get("error", "the shim died"))
        except BaseException:
            process.abandon()
            await process._closed.wait()
            raise
        process.pid = answer["pid"]
        process._exit = asyncio.ensure_future(process._await_exit())
        return process

    async def wait(self) -> int:
        return await asyncio.shield(self._exit)

    def signal(self, number: signal.Signals) -> None:
        """SIGKILL goes to every process of the container, others to the first; no error when it is over."""
        with contextlib.suppress(OSError):
            self._socket.send(bytes([number]))

    async def stop(self, *, grace: float) -> int:
        self.signal(signal.SIGTERM)
        done, _ = await asyncio.wait({self._exit}, timeout=grace)
        if not done:
            self.signal(signal.SIGKILL)
        return await self.wait()

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    async def _await_exit(self) -> int:
        message = await self._messages.get()
        self.abandon()
        await self._closed.wait()
        return int(message.get("exit", LOST))

    def _read(self) -> None:
        try:
            data = self._socket.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._messages.put_nowait({})
            self._closed.set()
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._messages.put_nowait(json.loads(line))


@functools.cache
def _servers() -> tuple[forkserver.Server, forkserver.Server]:
    """Start this kubelet's shims; containers of nodegauge's images have their interpreter variables."""
    own = {key: value for key, value in os.environ.items() if key == "LD_LIBRARY_PATH"}
    environment = own | dict(default_images()["nodegauge/operator"].env)
    return forkserver.Server(environment), forkserver.Server(environment)


def _start_shim(channel: socket.socket, modules: Sequence[str]) -> None:
    server = forkserver.server_for(modules, *_servers())
    order = {
        "arguments": [],
        "environment": server.environment,
        "cwd": "/",
        "session": True,
        "call": ["-m", SHIM],
        "lasting": True,
    }
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, Path(os.devnull).open("wb") as nothing:
        descriptors = [channel.fileno(), nothing.fileno(), 2, theirs.fileno()]
        server.order(order, descriptors, loaded=[SHIM, *modules])
