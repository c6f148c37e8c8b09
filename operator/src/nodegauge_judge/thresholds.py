"""Every number that the judge compares with, with its unit, default and source.

The fields are `spec.thresholds` of a GPUValidationPolicy, in camelCase there; a number that is left out keeps
its default.  "Own" marks a number that this project chose and nobody published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

Ratio = Annotated[float, Meta(gt=0, le=1)]
Celsius = Annotated[int, Meta(ge=20, le=150)]
Degrees = Annotated[int, Meta(ge=0, le=60)]


class ThresholdsInvalid(ValueError):
    """Thresholds that cannot be used; the message names the field and what it should be."""


class Thresholds(Struct, frozen=True, rename="camel", kw_only=True):
    """Thresholds of the health judgement; `Thresholds()` is the default policy."""

    hot_margin: Degrees = 5
    """°C below the vendor's limit (GPU_MAX, or the margin to the nearest slowdown) at which a GPU counts as
    hot.  Default 5.  Own."""
    hot_warn: Celsius = 80
    """°C from which a GPU is hot when its driver gives no limit.  Default 80.  Source: under 80 is good,
    throttling is likely from 84 to 90 (stas00/ml-engineering, compute/accelerator)."""
    hot_fail: Celsius = 90
    """°C from which a GPU without a vendor limit has failed to stay cool.  Default 90.  Source: as `hotWarn`,
    the end of the range in which throttling is likely."""
    memory_hot_margin: Degrees = 5
    """°C below the vendor's limit for memory (MEM_MAX) at which memory counts as hot.  Default 5.  Own."""
    power_cap_ratio: Ratio = 0.9
    """Share of the default power limit under which the enforced limit is a finding.  Default 0.9.  Own."""
    nvlink_sum_ratio: Ratio = 0.75
    """Share of the expected link sum under which a GPU's NVLinks have failed and the node loses its
    interconnect label; from there up to the expected sum they are degraded.  Default 0.75.  Own."""

    def __post_init__(self) -> None:
        if self.hot_warn >= self.hot_fail:
            raise ValueError("hotFail must be above hotWarn: raise hotFail or lower hotWarn")

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Thresholds:
        """Thresholds out of a policy's `spec.thresholds`; raises `ThresholdsInvalid`, naming the field.

        Stricter than decoding a whole policy: an unknown name is an error here, for a person typed it.
        """
        known = msgspec.structs.fields(cls)
        unknown = sorted(set(spec) - {field.encode_name for field in known})
        if unknown:
            names = ", ".join(field.encode_name for field in known)
            raise ThresholdsInvalid(f"no such threshold: {', '.join(map(str, unknown))} (there are: {names})")
        try:
            return msgspec.convert(dict(spec), cls)
        except msgspec.ValidationError as error:
            raise ThresholdsInvalid(str(error).replace("`$", "`spec.thresholds")) from None
