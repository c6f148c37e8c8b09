"""A process of its own that asks NVML through the real pynvml, one question per line: for tests.

The driver library is chosen by LD_LIBRARY_PATH before a process starts, so whoever wants to ask simulated
hardware needs another process.  This one stays, so that hardware can change between two questions of the same
NVML client.

    with NvmlClient(hardware.env()) as nvml:
        nvml.ask("nvmlDeviceGetPowerUsage", GPU(0))     # 72020, or NvmlRefused with the error's number
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed import forkserver

TESTS = Path(__file__).parents[2]
CHILD = "import sys; sys.path.insert(0, sys.argv[1]); from testbed.driver.client import main; main()"
LISTEN, EVENTS = "listen", "events"
"""Questions that this process answers with several calls: an event set cannot be told as JSON."""
XID, TIMEOUT, MOST_EVENTS = 0x8, 10, 8

kept: dict[str, Any] = {}
"""In the child: its event set."""


class NvmlRefused(Exception):
    """NVML answered with an error; `code` is its number."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call}: NVML error {code}")
        self.code = code


class NvmlClientError(Exception):
    """The client process ended, or the question was not one that pynvml knows."""


@dataclass(frozen=True)
class GPU:
    """The GPU at this NVML index, as an argument."""

    index: int


@dataclass(frozen=True)
class Struct:
    """A structure that the call fills, as an argument: its fields are the answer."""

    name: str
    version: int | None = None


class NvmlClient:
    """Asks a child process, which has initialised NVML unless `initialise` is False."""

    def __init__(self, env: Mapping[str, str], *, initialise: bool = True) -> None:
        self._process = forkserver.popen(
            [sys.executable, "-c", CHILD, str(TESTS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )
        if initialise:
            self.ask("nvmlInit")

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> NvmlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.communicate()

    def send(self, call: str, *arguments: object) -> None:
        """Ask without waiting for the answer."""
        question = {"call": call, "arguments": [_pack(argument) for argument in arguments]}
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(question)}\n")
        self._process.stdin.flush()

    def receive(self, call: str = "") -> Any:
        """Wait for the next answer.  Raises NvmlRefused for an NVML error."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise NvmlClientError(f"the NVML client ended during {call}")
        answer = json.loads(line)
        if "code" in answer:
            raise NvmlRefused(call, answer["code"])
        if "error" in answer:
            raise NvmlClientError(answer["error"])
        return answer["value"]

    def silent(self, *, seconds: float) -> bool:
        """Whether no answer comes, and the process does not end, for this long."""
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], seconds)
        return not readable

    def ask(self, call: str, *arguments: object) -> Any:
        """The answer to a question: numbers, text, lists, or a structure's fields as a dictionary."""
        self.send(call, *arguments)
        return self.receive(call)

    def refusal(self, call: str, *arguments: object) -> int:
        """The number of the error that NVML answers with; 0 when it answers at all."""
        try:
            self.ask(call, *arguments)
        except NvmlRefused as refused:
            return refused.code
        return 0

    def listen(self, *gpus: int, types: int = XID) -> None:
        """Register these GPUs for events, in a set that the process keeps."""
        self.ask(LISTEN, types, *[GPU(gpu) for gpu in gpus])

    def events(self, *, milliseconds: int) -> list[list[int]]:
        """[PCI bus, type, data] until none has come for this long, but not more than MOST_EVENTS."""
        result: list[list[int]] = self.ask(EVENTS, milliseconds)
        return result

    def field(self, gpu: int, number: int, scope: int = 0) -> dict[str, Any]:
        """One field of nvmlDeviceGetFieldValues: its error, type and value."""
        fields: list[dict[str, Any]] = self.ask("nvmlDeviceGetFieldValues", GPU(gpu), [[number, scope]])
        return fields[0]


def _pack(argument: object) -> object:
    if isinstance(argument, GPU):
        return {"gpu": argument.index}
    if isinstance(argument, Struct):
        return {"struct": argument.name, "version": argument.version}
    return argument


def _plain(value: Any) -> Any:
    """What JSON can carry."""
    if isinstance(value, ctypes.Union):
        return {name: getattr(value, name) for name in ("uiVal", "ullVal", "siVal")}
    if isinstance(value, ctypes.Structure):
        return {field[0]: _plain(getattr(value, field[0])) for field in value._fields_}
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (list, tuple, ctypes.Array)):
        return [_plain(element) for element in value]
    return value


def _listen(pynvml: Any, types: int, *handles: Any) -> None:
    kept["set"] = pynvml.nvmlEventSetCreate()
    for handle in handles:
        pynvml.nvmlDeviceRegisterEvents(handle, types, kept["set"])


def _events(pynvml: Any, milliseconds: int) -> list[list[int]]:
    result: list[list[int]] = []
    while len(result) < MOST_EVENTS:
        try:
            event = pynvml.nvmlEventSetWait_v2(kept["set"], milliseconds)
        except pynvml.NVMLError as error:
            if error.value != TIMEOUT:
                raise
            break
        bus = pynvml.nvmlDeviceGetPciInfo(event.device).bus
        result.append([bus, event.eventType, event.eventData])
    return result


def _answer(pynvml: Any, question: Mapping[str, Any]) -> dict[str, Any]:
    filled: list[Any] = []

    def unpack(argument: Any) -> Any:
        if isinstance(argument, dict) and "gpu" in argument:
            return pynvml.nvmlDeviceGetHandleByIndex(argument["gpu"])
        if isinstance(argument, dict) and "struct" in argument:
            structure = getattr(pynvml, argument["struct"])()
            if argument["version"] is not None:
                structure.version = argument["version"]
            filled.append(structure)
            return ctypes.byref(structure)
        if isinstance(argument, list):
            return [tuple(element) if isinstance(element, list) else element for element in argument]
        return argument

    try:
        arguments = [unpack(argument) for argument in question["arguments"]]
        if question["call"] == LISTEN:
            _listen(pynvml, *arguments)
            value: Any = None
        elif question["call"] == EVENTS:
            value = _events(pynvml, *arguments)
        else:
            value = getattr(pynvml, question["call"])(*arguments)
    except pynvml.NVMLError as error:
        return {"code": error.value}
    except (AttributeError, TypeError, ctypes.ArgumentError) as error:
        return {"error": f"{question['call']}: {error!r}"}
    return {"value": _plain(filled[0] if filled else value)}


def main() -> None:
    """Answer questions from standard input until it ends."""
    import pynvml

    for line in sys.stdin:
        print(json.dumps(_answer(pynvml, json.loads(line)), default=repr), flush=True)
