"""One GPU as NVML enumerates it, who is told of calls into the driver, and what it means that there is none.

Apart from the seam (`nvml`) so that readers can be tested without it; no logic here.
"""

from __future__ import annotations

from typing import Any, Protocol

from nodegauge_contract import Problem, Unavailable


class Watch(Protocol):
    """Who is told what the driver is being asked, so that a call that never returns has a name."""

    def enter(self, call: str, subject: str) -> None: ...
    def leave(self) -> None: ...


class NvmlUnusable(Exception):
    """NVML cannot be used on this node at all; `problem` says why, with the way out."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Device:
    """One GPU as NVML enumerates it.

    `problem` is set once an answer showed that the GPU itself is ill, `gone` once it answers nothing more.
    """

    def __init__(self, index: int, handle: Any) -> None:
        self.index = index
        self.handle = handle
        self.problem: Problem | None = None
        self.gone: Unavailable | None = None
