"""What a driver release can do: its functions, its field numbers, its structure versions."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec

TABLE = Path(__file__).with_name("releases.yaml")

Value = TypeVar("Value")
Release = tuple[int, ...]


class Counters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    first: int
    constants: tuple[int, int]


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`releases.yaml`; keys are releases such as "550" or "580.82"."""

    functions: dict[str, list[str]]
    fields_known_to: dict[str, int]
    throttle_counters: dict[str, Counters]
    fabric_struct: dict[str, int]
    max_links: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Abilities:
    functions: tuple[str, ...]
    fields_known: int
    counters: Counters
    fabric_struct: int
    max_links: int


@cache
def table() -> Table:
    return msgspec.yaml.decode(TABLE.read_bytes(), type=Table)


def release(version: str) -> Release:
    """A driver version as numbers that compare: "580.65.06" is (580, 65, 6)."""
    return tuple(int(part) for part in version.split("."))


@cache
def abilities(version: str) -> Abilities:
    known, wanted = table(), release(version)
    return Abilities(
        functions=tuple(
            sorted(
                name for since, names in known.functions.items() if release(since) <= wanted for name in names
            )
        ),
        fields_known=_latest(known.fields_known_to, wanted, otherwise=0),
        counters=_latest(known.throttle_counters, wanted, otherwise=Counters(first=0, constants=(0, -1))),
        fabric_struct=_latest(known.fabric_struct, wanted, otherwise=0),
        max_links=_latest(known.max_links, wanted, otherwise=0),
    )


def _latest(by_release: Mapping[str, Value], wanted: Release, *, otherwise: Value) -> Value:
    reached = [since for since in by_release if release(since) <= wanted]
    return by_release[max(reached, key=release)] if reached else otherwise
