"""Numbers and texts as a report keeps them: short, and read back only as they were written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"
_BASE = len(_DIGITS)
_MOST = 2**63 - 1


class Packed(Protocol):
    """What is kept as one word."""

    def packed(self) -> str:
        """The word, without a comma and a space."""


def joined(histories: Mapping[str, Packed]) -> str:
    """As one text, `mlx5_0/1 bp0.-0,mlx5_1/1 bp0.-0`: shorter than a mapping in JSON."""
    return ",".join(f"{key} {history.packed()}" for key, history in histories.items() if "," not in key)


def pairs(text: str | Mapping[str, str]) -> dict[str, str]:
    """By key, what `joined` wrote; ValueError for anything else."""
    if not isinstance(text, str):
        return dict(text)
    parts = [part.rpartition(" ") for part in text.split(",")] if text else []
    if not all(space for _, space, _ in parts):
        raise ValueError(f"no key and history: {text[:20]}")
    return {key: packed for key, _, packed in parts}


def countable(number: int | None) -> int | None:
    return number if number is not None and 0 <= number <= _MOST else None


def to_digits(number: int | None) -> str:
    """The number in base 64; nothing for None, and for one that no counter can have."""
    if number is None or not 0 <= number <= _MOST:
        return ""
    digits = _DIGITS[number % _BASE]
    while number := number // _BASE:
        digits = _DIGITS[number % _BASE] + digits
    return digits


def from_digits(text: str) -> int | None:
    """The number that `to_digits` wrote; ValueError for one that no counter can have."""
    if not text:
        return None
    number = 0
    for digit in text:
        number = number * _BASE + _DIGITS.index(digit)
        if number > _MOST:
            raise ValueError(f"more than any counter says: {text[:20]}...")
    return number
