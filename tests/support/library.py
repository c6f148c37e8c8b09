"""A driver library made of Python functions, for the real binding to call; see `tests/probes/conftest.py`."""

from collections.abc import Callable
from typing import Any

import pynvml


class Library:
    """A driver library: functions that a test sets, every other one is missing as in an old driver."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.functions: dict[str, Callable[..., int]] = {"nvmlInitWithFlags": lambda flags: 0}

    def __getattr__(self, name: str) -> Callable[..., int]:
        function = self.__dict__["functions"].get(name)
        if function is None:
            raise AttributeError(name)

        def called(*arguments: Any) -> int:
            self.calls.append(name)
            return function(*arguments)

        return called

    def answers(self, name: str, *codes: int, number: int = 0) -> None:
        """`name` returns these codes one after the other, the last one for good, and writes `number`."""
        left = list(codes)

        def function(*arguments: Any) -> int:
            arguments[-1]._obj.value = number
            return left.pop(0) if len(left) > 1 else left[0]

        self.has(name, function)

    def fills(self, name: str, **members: int) -> None:
        """`name` succeeds, and writes these members of its structure."""

        def function(*arguments: Any) -> int:
            for member, value in members.items():
                setattr(arguments[-1]._obj, member, value)
            return 0

        self.has(name, function)

    def has(self, name: str, function: Callable[..., int]) -> None:
        """The driver has this function now; the binding forgets the one that it knew."""
        self.functions[name] = function
        pynvml._nvmlGetFunctionPointer_cache.clear()


class Watched:
    """A watch that keeps the names of all calls."""

    def __init__(self) -> None:
        self.entered: list[tuple[str, str]] = []
        self.inside = False

    def enter(self, call: str, subject: str) -> None:
        self.entered.append((call, subject))
        self.inside = True

    def leave(self) -> None:
        self.inside = False
