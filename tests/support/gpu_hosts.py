"""Simulated GPU machines as hosts of a play, each with a remote temporary folder and a TMPDIR of its own."""

import hashlib
import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.playbook import Ansible, Played, Task, stage
from testbed.hardware import Hardware, plug

TASK = "measure"
QUICK = {"window": 0.2, "hz": 10}
"""Options of a health module that measures no longer than a test needs."""


@dataclass
class GpuHosts:
    ansible: Ansible
    top: Path
    variables: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(
        self, name: str, profile: str = "titan-rtx-nv2", *faults: str, drop: Sequence[str] = (), **more: Any
    ) -> Hardware:
        folder = self.folder(name)
        for temporary in ("remote", "tmp"):
            (folder / temporary).mkdir(parents=True)
            (folder / temporary).chmod(0o777)
        hardware = plug(profile, folder / "machine", seed=name)
        for fault in faults:
            hardware.fault(fault)
        environment = {"TMPDIR": str(folder / "tmp"), "PYTHONPATH": "", **hardware.env()}
        for variable in drop:
            environment.pop(variable, None)
        environment.update(more.pop("environment", {}))
        own = {"ansible_remote_tmp": str(folder / "remote"), "simulated": environment, "options": {}}
        self.variables[name] = own | more
        return hardware

    def folder(self, name: str) -> Path:
        return self.top / name

    def play(self, module: str, *flags: str, **task: Any) -> Played:
        one = {"name": TASK, f"nodegauge.gpu.{module}": "{{ options }}", **task}
        play = {"hosts": "all", "gather_facts": False, "environment": "{{ simulated }}", "tasks": [one]}
        more = {"ANSIBLE_INJECT_FACT_VARS": "true"}
        return self.ansible.play([play], self.variables, *flags, more=more)

    def task(self, played: Played, host: str) -> Task:
        assert any(task.host == host for task in played.tasks), played.output
        return played.task(TASK, host)

    def left(self) -> list[str]:
        """What lies in the hosts' temporary folders; `os.walk` takes no harm from what goes meanwhile."""
        return [
            str((Path(folder) / entry).relative_to(self.folder(name)))
            for name in self.variables
            for temporary in ("remote", "tmp")
            for folder, folders, files in os.walk(self.folder(name) / temporary)
            for entry in sorted(folders + files)
        ]


def staged(folder: Path, archive: Path) -> GpuHosts:
    stage(folder / "controller", archive=archive)
    return GpuHosts(Ansible(folder / "controller"), folder / "hosts")


def tree(folder: Path) -> dict[str, str]:
    """Every file of a folder by its path, with its digest; but the driver's notes about who used it."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith((".clients", ".lock"))
    }


def fake_archive(path: Path, body: str) -> Path:
    path.write_text("import os, signal, subprocess, sys, time\n" + textwrap.dedent(body), encoding="utf-8")
    return path
