"""What a fork of a loaded process does to be the Python program that an interpreter would be started for.

Used by `forkserver` (probes of tests) and `kubelet.zygote` (nodegauge's containers).  `/proc/PID/environ` and
`cmdline` of such a process are the loaded one's; `atexit` does not run, and threads are not joined.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn


def python_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """What an interpreter reads when it starts: a fork cannot have other ones."""
    return {key: value for key, value in environment.items() if key.startswith("PYTHON")}


def be(arguments: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """`-m MODULE ARGUMENT...` or `-c CODE ARGUMENT...`; working folder, session, and descriptors up to 2 are
    set already."""
    code = 1
    try:
        os.closerange(3, 1024)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        os.environ.clear()
        os.environ.update(environment)
        code = _main(*arguments)
    except BaseException:
        with contextlib.suppress(BaseException):
            traceback.print_exc()
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _main(option: str, subject: str, *arguments: str) -> int:
    sys.argv = [subject if option == "-m" else option, *arguments]
    try:
        if option == "-c":
            exec(subject, {"__name__": "__main__"})
            return 0
        return int(importlib.import_module(f"{subject}.__main__").main() or 0)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)


def find_libraries_anew() -> None:
    """Have libraries found by the LD_LIBRARY_PATH of now: the loader reads it once, when a process starts."""
    load = ctypes.CDLL.__init__

    def load_anew(self: ctypes.CDLL, name: str | None, *arguments: Any, **options: Any) -> None:
        if name is not None and "/" not in name:
            folders = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
            name = next((str(at) for folder in folders if (at := Path(folder) / name).exists()), name)
        load(self, name, *arguments, **options)

    ctypes.CDLL.__init__ = load_anew  # type: ignore[method-assign]
