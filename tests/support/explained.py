"""Nodes of which people ask: one with eight GPUs, read, measured, broken, overruled or never read."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from nodegauge_contract import decode
from nodegauge_operator import names
from nodegauge_operator.core.override import Annotations
from support import load_results, nccl_results, results
from support.objects import LOST, NOW, AReport, make_node, make_policy, make_report, read

GOLDEN = Path(__file__).parents[1] / "golden"
NODE = make_node("gpu-7").offering(8)
KNOWN: dict[str, Any] = {"node": NODE, "nccl_image": "registry.example.com/nccl:1"}
WRONG = Annotations(kind="healthy", until="2027-01-16T00:00:00Z", by="jo", reason="the board is ordered")


def healthy() -> AReport:
    """Read and measured, all well."""
    seen = make_report(NODE).after(read(results.h100()), **KNOWN)
    return seen.after(read(nccl_results.h100()), probe=names.PROBE_NCCL, at=NOW + 30, **KNOWN)


def corrupting(**known: Any) -> AReport:
    """GPU 3 computes wrong results under load."""
    wrong = load_results.spoilt(3, mismatches=135)
    return healthy().after(read(wrong), probe=names.PROBE_LOAD, at=NOW + 60, **KNOWN | known)


def overruled() -> AReport:
    """The same, taken as healthy."""
    return corrupting().seen(at=NOW + 90, **KNOWN | {"node": replace(NODE, override=WRONG)})


def observed() -> AReport:
    """The same in mode Observe."""
    return corrupting().seen(at=NOW + 90, policy=make_policy().observing(), **KNOWN)


def never_read() -> AReport:
    """Its first run ended without a result."""
    return make_report(NODE).after(LOST, **KNOWN)


def hanging() -> AReport:
    """A call of its driver does not return."""
    result = decode((GOLDEN / "result-1.0-hung.json").read_text(encoding="utf-8"))
    return make_report(NODE).after(read(result), **KNOWN)
