"""Expected bandwidth of collectives: published measurements, after the policy's own expectations.

An expectation applies only to its own GPU model, GPU count, collective, size and NVLS state: bandwidth
depends too much on each of them to extrapolate.  If none applies, `floors` derives a floor from link rates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

KINDS_WITH_FLOOR = ("measured", "accept-floor")
_DATA = "expectations.yaml"


class Expectation(Struct, frozen=True, rename="camel", kw_only=True):
    """What a number of GPUs of one model reach in one collective at one size.

    `gpu`: a case-insensitive glob over NVML's product name ("*H100*HBM3*"); `count`: GPUs that take part;
    `bytes`: message size; `nvls`: whether NCCL ran NVLS, null for either; `link`: nvlink, pcie, or empty for
    either; `busbw`: GB/s (1e9) as nccl-tests defines it; `floor`: GB/s below which bandwidth is too low, 0
    for `busbwExpectedShare` of `busbw`; `source`: where the number comes from.  `kind`: measured;
    accept-floor (`busbw` is itself the floor); or a kind without a floor: complaint (somebody measured it
    and asked why it is so low) and reference (through host memory or computed, for comparison).
    """

    gpu: Annotated[str, Meta(min_length=1, max_length=128)]
    count: Annotated[int, Meta(ge=2, le=64)]
    collective: Annotated[str, Meta(pattern="^(all_reduce|all_gather|reduce_scatter)$")]
    bytes: Annotated[int, Meta(ge=1, le=2**40)]
    busbw: Annotated[float, Meta(gt=0, le=100_000)]
    nvls: bool | None = None
    link: Annotated[str, Meta(pattern="^(nvlink|pcie)?$")] = ""
    floor: Annotated[float, Meta(ge=0, le=100_000)] = 0.0
    kind: Annotated[str, Meta(pattern="^(measured|accept-floor|complaint|reference)$")] = "measured"
    source: Annotated[str, Meta(max_length=512)] = ""


class Expectations(Struct, frozen=True, kw_only=True):
    """All expectations in the order in which they are tried: the policy's, then the published ones."""

    policy: tuple[Expectation, ...] = ()
    published: tuple[Expectation, ...] = ()

    @classmethod
    def default(cls) -> Expectations:
        """The published ones alone."""
        return cls(published=_published())

    def with_policy(self, expectations: Iterable[Expectation]) -> Expectations:
        """These, with the policy's `expectations` first."""
        return Expectations(policy=(*expectations, *self.policy), published=self.published)

    def digest(self) -> str:
        """Twelve characters that change with any expectation."""
        return sha256(msgspec.json.encode((self.policy, self.published))).hexdigest()[:12]

    def __iter__(self) -> Iterator[Expectation]:
        yield from self.policy
        yield from self.published

    def find(
        self,
        *,
        gpu: str,
        count: int,
        collective: str,
        bytes: int,
        nvls: bool | None,
        link: str,
        policy_only: bool = False,
    ) -> Expectation | None:
        """The first expectation with a floor that applies, or None.

        An unknown value (`nvls` null: NCCL did not log it; `link` empty) matches only expectations that do
        not depend on it.  With `policy_only` the published ones are ignored.
        """
        for expectation in self.policy if policy_only else self:
            if (
                expectation.kind in KINDS_WITH_FLOOR
                and (expectation.count, expectation.collective, expectation.bytes)
                == (count, collective, bytes)
                and expectation.nvls in (None, nvls)
                and expectation.link in ("", link)
                and is_model(gpu, expectation.gpu)
            ):
                return expectation
        return None


def is_model(name: str, pattern: str) -> bool:
    """Whether NVML's product name matches the glob, ignoring case."""
    return fnmatchcase(name.lower(), pattern.lower())


@cache
def _published() -> tuple[Expectation, ...]:
    data = files(__package__).joinpath(_DATA).read_bytes()
    return msgspec.yaml.decode(data, type=tuple[Expectation, ...], strict=True)
