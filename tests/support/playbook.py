"""Playbooks against simulated hosts: the staged collection, and what each task returned."""

import functools
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from testbed import forkserver

ROOT = Path(__file__).resolve().parents[2]
COLLECTION = ROOT / "ansible"
CHART = ROOT / "charts" / "nodegauge"
CALLBACKS = Path(__file__).with_name("ansible_callbacks")
CONFIG = CALLBACKS.with_name("ansible.cfg")
TOOLS = Path(sys.executable).parent
IMPORTED = ("ANSIBLE_", "LC_", "LANG", "PYTHON")
"""Variables that Ansible reads while it is imported start so, but for `READ_AGAIN`."""
READ_AGAIN = {"ANSIBLE_HOME", "ANSIBLE_COLLECTIONS_PATH", "ANSIBLE_INJECT_FACT_VARS"}
LEFT_OUT = ("archive", "__pycache__", "*.pyc")


def stage(into: Path, *, archive: Path | None = None) -> Path:
    """As `ansible-galaxy collection install` does, with what is in the repository only once."""
    folder = into / "ansible_collections" / "nodegauge" / "gpu"
    shutil.copytree(COLLECTION, folder, ignore=shutil.ignore_patterns(*LEFT_OUT))
    shutil.copy(ROOT / "LICENSE", folder)
    if (folder / "roles" / "operator").is_dir():
        chart = folder / "roles" / "operator" / "files" / f"{CHART.name}.tgz"
        chart.parent.mkdir(exist_ok=True)
        with tarfile.open(chart, "w:gz") as packed:  # as `helm package`: ansible-test reads no templates then
            packed.add(CHART, arcname=CHART.name)
    if archive:
        (folder / "files").mkdir(exist_ok=True)
        shutil.copy(archive, folder / "files" / "nodegauge-host.pyz")
    return folder


@functools.cache
def _server(*variables: tuple[str, str]) -> forkserver.Server:
    """Has Ansible loaded with these variables, which it reads while it is imported."""
    return forkserver.Server(dict(variables))


@dataclass(frozen=True)
class Task:
    """What one task did on one host: `status` is ok, failed, skipped or unreachable."""

    host: str
    name: str
    status: str
    result: dict[str, Any]


@dataclass(frozen=True)
class Played:
    code: int
    output: str
    tasks: list[Task]

    def task(self, name: str, host: str) -> Task:
        [match] = [task for task in self.tasks if (task.name, task.host) == (name, host)]
        return match

    @property
    def changed(self) -> list[Task]:
        return [task for task in self.tasks if task.result.get("changed")]


@dataclass(frozen=True)
class Ansible:
    """An ansible-core (`tools`: its programs), with the staged collections and a home in `folder`."""

    folder: Path
    tools: Path = TOOLS

    def env(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        own = {
            "HOME": str(self.folder),
            "ANSIBLE_HOME": str(self.folder / ".ansible"),
            "ANSIBLE_COLLECTIONS_PATH": str(self.folder),
            "ANSIBLE_CALLBACK_PLUGINS": str(CALLBACKS),
            "ANSIBLE_CALLBACKS_ENABLED": "record",
            "ANSIBLE_CONFIG": str(CONFIG),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCALHOST_WARNING": "0",
            "ANSIBLE_INVENTORY_UNPARSED_WARNING": "0",
            "ANSIBLE_FORKS": "8",
            "ANSIBLE_PIPELINING": "1",
            "RECORD_TASKS": str(self.folder / "tasks.jsonl"),
        }
        kept = {name: os.environ[name] for name in ("LANG", "PATH", "TMPDIR") if name in os.environ}
        path = f"{self.tools}{os.pathsep}{kept.get('PATH', '')}"
        return {**kept, "LC_ALL": "C.UTF-8", **own, "PATH": path, **(more or {})}

    def run(
        self, program: str, *options: str, more: Mapping[str, str] | None = None, seconds: float = 600
    ) -> subprocess.CompletedProcess[str]:
        command, env = [str(self.tools / program), *options], self.env(more)
        imported = {name for name in env if name.startswith(IMPORTED)} - READ_AGAIN
        server = _server(*((name, env[name]) for name in sorted(imported)))
        how = {"cwd": self.folder, "env": env, "capture_output": True, "text": True}
        return forkserver.run(command, server=server, timeout=seconds, **how)

    def play(
        self,
        play: list[dict[str, Any]],
        hosts: Mapping[str, Mapping[str, Any]],
        *options: str,
        more: Mapping[str, str] | None = None,
    ) -> Played:
        local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        inventory = {"all": {"hosts": {host: {**local, **values} for host, values in hosts.items()}}}
        (self.folder / "inventory.yml").write_text(yaml.safe_dump(inventory), encoding="utf-8")
        (self.folder / "play.yml").write_text(yaml.safe_dump(play, sort_keys=False), encoding="utf-8")
        record = self.folder / "tasks.jsonl"
        record.unlink(missing_ok=True)
        command = ("ansible-playbook", "-i", "inventory.yml", "play.yml", *options)
        done = self.run(*command, more=more)
        lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
        tasks = [Task(**json.loads(line)) for line in lines]
        return Played(done.returncode, done.stdout + done.stderr, tasks)
