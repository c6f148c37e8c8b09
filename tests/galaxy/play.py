"""A play of a few lines, with a real probe on two simulated hosts: one is whole, one has a fault.

Must not test what modules do: tests/collection does.  It shows that they work in this ansible-core.
"""

from __future__ import annotations

import sys
from pathlib import Path

from galaxy.build import NAME
from galaxy.commands import CheckFailed, Core, quoted
from testbed.hardware import Hardware, plug

PROFILE = "h100-sxm-8"
FAULT = "gpu-lost"
EXPECTED = {"whole": "pass", "broken": "fail"}
PLAY = [
    {
        "name": "Measure",
        "hosts": "all",
        "gather_facts": False,
        "environment": "{{ simulated }}",
        "tasks": [{"name": "measure", f"{NAME}.gpu_health": {}}],
    }
]


def check(core: Core, machines: Path) -> str:
    """Play it; the verdicts, or CheckFailed."""
    hosts = {}
    for host in EXPECTED:
        hardware: Hardware = plug(PROFILE, machines / host)
        if host == "broken":
            hardware.fault(FAULT, gpu=2)
        hosts[host] = {"simulated": hardware.env(), "ansible_python_interpreter": sys.executable}
    played = core.play(PLAY, hosts)
    verdicts = {task.host: task.result.get("verdict") for task in played.tasks if task.name == "measure"}
    if played.code or verdicts != EXPECTED or played.changed:
        raise CheckFailed(
            f"the play with ansible-core {core.version} gave {verdicts} instead of {EXPECTED}:\n"
            f"{quoted(played.output)}"
        )
    return ", ".join(f"{host}: {verdict}" for host, verdict in sorted(EXPECTED.items()))
