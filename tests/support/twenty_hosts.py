"""Twenty hosts for one play: machines of many profiles, and what must be said about each.

Must not run the play.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.hardware.fault import Parameter
from testbed.hardware.plugged import Hardware, plug
from testbed.matrix.expected import healthy, machines

OLD_PYTHON = """\
#!/bin/sh
echo "  File \\"<stdin>\\", line 1" >&2
echo "SyntaxError: future feature annotations is not defined" >&2
exit 1
"""
"""What every Python before 3.7 answers to a module."""


@dataclass(frozen=True)
class Planned:
    """A host: its machine and fault, how it is reached, and the verdict and cause that must follow."""

    profile: str
    verdict: str = "pass"
    cause: str = ""
    fault: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    reached: str = "local"


HEALTHY = (
    "a100-pcie-4-pairs",
    "a100-sxm-8",
    "b200-sxm-8",
    "dgx2-v100-16",
    "gb10-1",
    "gh200-1",
    "h100-sxm-8",
    "h200-sxm-8",
    "l40s-4",
    "rtx4090-10",
    "t4-1",
    "vm-hidden-pci-8",
)
PLAN: dict[str, Planned] = {
    **{profile: Planned(profile) for profile in HEALTHY},
    "gpu-lost": Planned("h800-sxm-8", "fail", "gpu-lost", "gpu-lost"),
    "row-remap": Planned("hgx-a100-4", "fail", "row-remap", "row-remap", {"state": "failed"}),
    "one-link-less": Planned("h100-sxm-8-drv580", "warn", "nvlink-degraded", "link-down"),
    "hangs": Planned("p100-sxm-8", "unknown", "call-hung", "hung-call"),
    "no-driver": Planned("l40s-4", "unknown", "library-not-found", reached="no-driver"),
    "old-python": Planned("l40s-4", "unknown", "not-measured", reached="old-python"),
    "over-ssh": Planned("titan-rtx-nv2", reached="ssh"),
    "connection-lost": Planned("titan-rtx-nv2", "unknown", "unreachable", reached="lost"),
}
INTERCONNECTS = {machine.profile: healthy(machine, load=0).interconnect for machine in machines()}


def plugged(folder: Path) -> dict[str, Hardware]:
    """Each host's machine, with its fault."""
    result = {}
    for name, planned in PLAN.items():
        result[name] = plug(planned.profile, folder / name, seed=name)
        if planned.fault:
            result[name].fault(planned.fault, **planned.parameters)
    return result


def variables(
    folder: Path, hardware: Mapping[str, Hardware], ssh: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """The inventory: `ssh` by `reached`, for those hosts."""
    old = folder / "python3.6"
    old.write_text(OLD_PYTHON, encoding="utf-8")
    old.chmod(0o755)
    result: dict[str, dict[str, Any]] = {}
    for name, planned in PLAN.items():
        environment = hardware[name].env()
        if planned.reached == "no-driver":
            del environment["LD_LIBRARY_PATH"]
        result[name] = {"simulated": environment, **ssh.get(planned.reached, {})}
        if planned.reached == "old-python":
            result[name]["ansible_python_interpreter"] = str(old)
        if planned.verdict == "pass":
            result[name]["validate_expected_gpus"] = hardware[name].gpu_count
            result[name]["validate_expected_interconnect"] = INTERCONNECTS[planned.profile]
    return result
