"""Two plays with a real probe on two simulated hosts: one host is whole, one has a fault.

Must not test what modules and roles do: tests/collection does.  It shows that they work as installed, in this
ansible-core, and that the first lines of the README do what they say.
"""

from __future__ import annotations

import re
import shutil
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
PLAY = [
    {
        "name": "Measure",
        "hosts": "all",
        "gather_facts": False,
        "tasks": [{"name": "measure", f"{NAME}.gpu_health": {}}],
    }
]
HEREDOC = re.compile(r"<<'PLAY'\n(.+?)^PLAY$", re.DOTALL | re.MULTILINE)


def check(core: Core, machines: Path) -> str:
    """Play both; the verdicts, or CheckFailed."""
    hosts = {}
    for host in EXPECTED:
        hardware: Hardware = plug(PROFILE, machines / host)
        if host == "broken":
            hardware.fault(FAULT, gpu=2)
        hosts[host] = {"simulated": hardware.env(), "ansible_python_interpreter": sys.executable}
    played = core.play(simulated(PLAY), hosts)
    verdicts = {task.host: task.result.get("verdict") for task in played.tasks if task.name == "measure"}
    if played.code or verdicts != EXPECTED or played.changed:
        raise CheckFailed(
            f"the play with ansible-core {core.version} gave {verdicts} instead of {EXPECTED}:\n"
            f"{quoted(played.output)}"
        )
    shutil.rmtree(core.folder / "report", ignore_errors=True)
    readme = (COLLECTION / "README.md").read_text("utf-8")
    played = core.play(simulated(first_lines(readme)), hosts)
    failed = {task.host for task in played.tasks if task.status == "failed"}
    if played.code != 2 or failed != {"broken"} or not (core.folder / "report" / "report.html").exists():
        raise CheckFailed(
            f"the README's play with ansible-core {core.version} failed {failed} instead of the broken host,"
            f" or wrote no report:\n{quoted(played.output)}"
        )
    return ", ".join(f"{host}: {verdict}" for host, verdict in sorted(EXPECTED.items()))


def first_lines(readme: str) -> list[dict[str, Any]]:
    """The play that the README writes into a file."""
    match = HEREDOC.search(readme)
    if not match:
        raise CheckFailed("ansible/README.md does not begin with a play between <<'PLAY' and PLAY")
    return list(yaml.safe_load(match[1]))


def simulated(plays: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same, where hosts find their simulated driver."""
    return [{**play, "environment": "{{ simulated }}"} for play in plays]
