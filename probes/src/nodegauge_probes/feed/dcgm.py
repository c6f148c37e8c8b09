"""DCGM's profiling fields from an exporter on the node, if the policy names its address (`--dcgm URL`).

NVML's utilisation counts any kernel; these say how much of a GPU it used.  Without privileges they come only
through NVIDIA's dcgm-exporter (fields 1002 and 1004 of dcgm_fields.h, as Prometheus text).
"""

from __future__ import annotations

import math
import re
import urllib.error
import urllib.request
from collections.abc import Sequence

from msgspec.structs import replace

from nodegauge_contract import FeedGpu, Num, Unavailable
from nodegauge_probes.feed.files import rounded

MOST_BYTES, TIMEOUT_S = 1 << 20, 2.0
FIELDS = {"DCGM_FI_PROF_SM_ACTIVE": "sm_active", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "tensor_active"}
_LINE = re.compile(r'^(\w+)\{[^}]*?\bgpu="(\d{1,4})"[^}]*\} ([0-9.eE+-]{1,24})', re.M)
UNASKED = Unavailable("needs DCGM's profiling fields (probes.feed.dcgm)")

Shares = dict[tuple[int, str], float]
"""By GPU index and member of `FeedGpu`, 0 to 1."""


def read(url: str) -> Shares | Unavailable:
    """What the exporter says now; a GPU that is cut into instances has none of its own."""
    if not url:
        return UNASKED
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            text = answer.read(MOST_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError, urllib.error.URLError) as error:
        return Unavailable(f"dcgm-exporter: {error}"[:128])
    shares: Shares = {}
    for name, gpu, value in _LINE.findall(text):
        if name in FIELDS and (number := _number(value)) is not None:
            shares[int(gpu), FIELDS[name]] = number
    return shares or Unavailable("dcgm-exporter exports no profiling fields (DCGM_FI_PROF_SM_ACTIVE)")


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and 0 <= number <= 1 else None


def added(gpus: Sequence[FeedGpu], answers: Sequence[Shares | Unavailable]) -> list[FeedGpu]:
    """The GPUs with the means of what the exporter said in the window."""
    reasons = [answer for answer in answers if isinstance(answer, Unavailable)]
    readings = [answer for answer in answers if not isinstance(answer, Unavailable)]
    missing = reasons[-1] if reasons else Unavailable("dcgm-exporter does not name this GPU")

    def mean(index: int, name: str) -> Num:
        values = [shares[index, name] for shares in readings if (index, name) in shares]
        return rounded(sum(values) / len(values)) if values else missing

    return [
        replace(gpu, sm_active=mean(gpu.index, "sm_active"), tensor_active=mean(gpu.index, "tensor_active"))
        for gpu in gpus
    ]
