"""Expected bandwidth of collectives: published measurements, after the policy's own expectations.

An expectation applies only to its own GPU model, GPU count, collective, size and NVLS state: bandwidth
depends too much on each of them to extrapolate.  If none applies, `floors` derives a floor from link rates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import sha256
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from nodegauge_judge.gpu_models import Bandwidth, GpuModels, is_model, known_models

PUBLISHED_KINDS = ("measured", "accept-floor")
"""Kinds whose floor may set a taint."""
KINDS_WITH_FLOOR = (*PUBLISHED_KINDS, "derived")


class Expectation(Bandwidth, frozen=True, kw_only=True):
    """What a number of GPUs of one model reach in one collective at one size."""

    gpu: Annotated[str, Meta(min_length=1, max_length=128)]
    """A case-insensitive glob over NVML's product name ("*H100*HBM3*")."""


class Expectations(Struct, frozen=True, kw_only=True):
    """All expectations in the order in which they are tried: the policy's, then the published ones."""

    policy: tuple[Expectation, ...] = ()
    published: tuple[Expectation, ...] = ()

    @classmethod
    def default(cls) -> Expectations:
        """The published ones alone."""
        return cls(published=_of(known_models()))

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


@cache
def _of(models: GpuModels) -> tuple[Expectation, ...]:
    return tuple(
        Expectation(gpu=glob, **asdict(bandwidth))
        for row in models.rows
        for glob in row.gpu
        for bandwidth in row.bandwidth
    )
