"""Two plays with a real probe on two simulated hosts: one host is whole, one has a fault.

Must not test what modules and roles do: tests/collection does.  It shows that they work as installed, in this
ansible-core, and that the first lines of the README do what they say.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import yaml

from galaxy.build import NAME
from galaxy.commands import CheckFailed, Core, quoted
from support.playbook import COLLECTION
from testbed.hardware import Hardware, plug

PROFILE = "h100-sxm-8"
FAULT = "gpu-lost"
EXPECTED = {"whole": "pass", "broken": "fail"}
TASK = {"name": "measure", f"{NAME}.gpu_health": {}}
PLAY = {"name": "Measure", "hosts": "all", "gather_facts": False, "tasks": [TASK]}
WANTED = {
    "verdicts": EXPECTED,
    "changed by measuring": [],
    "failed": ["broken"],
    "report": True,
    "exit code": 2,
}
HEREDOC = re.compile(r"<<'PLAY'\n(.+?)^PLAY$", re.DOTALL | re.MULTILINE)


def check(core: Core, machines: Path) -> str:
    """Play both in one playbook; the verdicts, or CheckFailed."""
    hosts = {}
    for host in EXPECTED:
        hardware: Hardware = plug(PROFILE, machines / host)
        if host == "broken":
            hardware.fault(FAULT, gpu=2)
        hosts[host] = {"simulated": hardware.env(), "ansible_python_interpreter": sys.executable}
    readme = (COLLECTION / "README.md").read_text("utf-8")
    plays = [{**play, "environment": "{{ simulated }}"} for play in (PLAY, *first_lines(readme))]
    played = core.play(plays, hosts)
    seen = {
        "verdicts": {
            task.host: task.result.get("verdict") for task in played.tasks if task.name == "measure"
        },
        "changed by measuring": [task.host for task in played.changed if task.name == "measure"],
        "failed": sorted({task.host for task in played.tasks if task.status == "failed"}),
        "report": (core.folder / "report" / "report.html").exists(),
        "exit code": played.code,
    }
    if seen != WANTED:
        words = f"the plays with ansible-core {core.version} gave {seen} instead of {WANTED}"
        raise CheckFailed(f"{words}:\n{quoted(played.output)}")
    return ", ".join(f"{host}: {verdict}" for host, verdict in sorted(EXPECTED.items()))


def first_lines(readme: str) -> list[dict[str, Any]]:
    """The play that the README writes into a file."""
    match = HEREDOC.search(readme)
    if not match:
        raise CheckFailed("ansible/README.md does not begin with a play between <<'PLAY' and PLAY")
    return list(yaml.safe_load(match[1]))
