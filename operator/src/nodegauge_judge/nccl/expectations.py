"""What is expected of collectives: published rows as data, a policy's own rows before them.

A row is used only for its own model, GPU count, collective, size and NVLS state: bandwidth depends on each of
them too much for anything to be carried over.  Where no row fits, `floors` has a rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from hashlib import sha256
from importlib.resources import files

import msgspec
from msgspec import Struct

from nodegauge_judge.nccl.model import Expectation

_FLOORS = ("measured", "accept-floor")
_DATA = "expectations.yaml"


class Expectations(Struct, frozen=True, kw_only=True):
    """All rows in the order in which they are tried: `own` are the policy's, `published` are built in."""

    own: tuple[Expectation, ...] = ()
    published: tuple[Expectation, ...] = ()

    @classmethod
    def default(cls) -> Expectations:
        """The built-in rows alone."""
        return cls(published=_built_in())

    def with_rows(self, rows: Iterable[Expectation]) -> Expectations:
        """These, with `rows` before all others."""
        return Expectations(own=(*rows, *self.own), published=self.published)

    def digest(self) -> str:
        """Twelve characters that change with any row."""
        return sha256(msgspec.json.encode((self.own, self.published))).hexdigest()[:12]

    def rows(self) -> Iterator[Expectation]:
        """Every row, in order."""
        yield from self.own
        yield from self.published

    def floor_row(
        self,
        *,
        gpu: str,
        count: int,
        collective: str,
        bytes: int,
        nvls: bool | None,
        link: str,
        own: bool = False,
    ) -> Expectation | None:
        """The first row that gives a floor for this, or None.

        `nvls` null: NCCL did not say whether it ran NVLS, so rows that depend on it do not fit; `link` empty:
        not known, likewise.  With `own` only the policy's rows are asked.
        """
        for row in self.own if own else self.rows():
            if (
                row.kind in _FLOORS
                and (row.count, row.collective, row.bytes) == (count, collective, bytes)
                and row.nvls in (None, nvls)
                and row.link in ("", link)
                and is_model(gpu, row.gpu)
            ):
                return row
        return None


def is_model(name: str, pattern: str) -> bool:
    """Whether NVML's product name fits the glob, case left aside."""
    return fnmatchcase(name.lower(), pattern.lower())


@cache
def _built_in() -> tuple[Expectation, ...]:
    data = files(__package__).joinpath(_DATA).read_bytes()
    return msgspec.yaml.decode(data, type=tuple[Expectation, ...], strict=True)
