"""A process of its own that asks NVML through the real pynvml, one question per line: for tests.

with NvmlClient(hardware.env()) as nvml:
    nvml.ask("nvmlDeviceGetPowerUsage", GPU(0))     # 72020, or NvmlRefused with the error's number
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed import forkserver

TESTS = Path(__file__).parents[2]
CHILD = "import sys; sys.path.insert(0, sys.argv[1]); from testbed.driver.client import main; main()"


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

    gpu: int


@dataclass(frozen=True)
class Struct:
    """A structure that the call fills, as an argument: its fields are the answer."""

    struct: str
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

    def __enter__(self) -> NvmlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, call: str, *arguments: object) -> Any:
        """The answer to a question: numbers, text, lists, or a structure's fields as a dictionary.
        NvmlRefused for an NVML error."""
        packed = [asdict(one) if isinstance(one, GPU | Struct) else one for one in arguments]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"call": call, "arguments": packed}) + "\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise NvmlClientError(f"the NVML client ended during {call}")
        answer = json.loads(line)
        if "code" in answer:
            raise NvmlRefused(call, answer["code"])
        if "error" in answer:
            raise NvmlClientError(answer["error"])
        return answer["value"]

    def refusal(self, call: str, *arguments: object) -> int:
        """The number of the error that NVML answers with; 0 when it answers at all."""
        try:
            self.ask(call, *arguments)
        except NvmlRefused as refused:
            return refused.code
        return 0

    def field(self, gpu: int, number: int, scope: int = 0) -> dict[str, Any]:
        fields: list[dict[str, Any]] = self.ask("nvmlDeviceGetFieldValues", GPU(gpu), [[number, scope]])
        return fields[0]


def _plain(value: Any) -> Any:
    if isinstance(value, ctypes.Union):
        return {name: getattr(value, name) for name in ("uiVal", "ullVal", "siVal")}
    if isinstance(value, ctypes.Structure):
        return {field[0]: _plain(getattr(value, field[0])) for field in value._fields_}
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (list, tuple, ctypes.Array)):
        return [_plain(element) for element in value]
    return value


def _answer(pynvml: Any, question: Mapping[str, Any]) -> dict[str, Any]:
    filled: list[Any] = []

    def unpack(argument: Any) -> Any:
        match argument:
            case {"gpu": index}:
                return pynvml.nvmlDeviceGetHandleByIndex(index)
            case {"struct": name, "version": version}:
                filled.append(getattr(pynvml, name)())
                if version is not None:
                    filled[0].version = version
                return ctypes.byref(filled[0])
            case list():
                return [tuple(element) if isinstance(element, list) else element for element in argument]
        return argument

    try:
        value = getattr(pynvml, question["call"])(*map(unpack, question["arguments"]))
    except pynvml.NVMLError as error:
        return {"code": error.value}
    except (AttributeError, TypeError, ctypes.ArgumentError) as error:
        return {"error": f"{question['call']}: {error!r}"}
    return {"value": _plain(filled[0] if filled else value)}


def main() -> None:
    import pynvml

    for line in sys.stdin:
        print(json.dumps(_answer(pynvml, json.loads(line)), default=repr), flush=True)
