"""The demo's cluster as an Ansible inventory: what must be repaired is a group."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from testbed.demo.session import CHECKOUT, Object, Session, our_taints
from testbed.errors import TestbedError

REPAIR = "nodegauge_repair"
ANSIBLE_INVENTORY = Path(sys.executable).with_name("ansible-inventory")


def graph(session: Session) -> None:
    """Print the groups, and compare the group of broken nodes with the taints."""
    session.say("the same cluster as an Ansible inventory (plugin nodegauge.gpu.nodereports):")
    print(_ansible(session, "--graph"), flush=True)
    group: Object = json.loads(_ansible(session, "--list")).get(REPAIR, {})
    tainted = {name for name in session.testbed.nodes.specs() if our_taints(session.node(name))}
    if set(group.get("hosts", ())) != tainted:
        raise TestbedError(f"group {REPAIR} is {group}, and tainted are {sorted(tainted)}")


def _ansible(session: Session, option: str) -> str:
    """What `ansible-inventory` prints."""
    folder = session.directory / "ansible"
    collection = folder / "ansible_collections" / "nodegauge" / "gpu"
    if not collection.exists():
        collection.parent.mkdir(parents=True)
        collection.symlink_to(CHECKOUT / "ansible")
        kubeconfig = session.testbed.control_plane.kubeconfig
        text = f"plugin: nodegauge.gpu.nodereports\nkubeconfig: {kubeconfig}\n"
        (folder / "fleet.nodereports.yml").write_text(text, encoding="utf-8")
    own = {"HOME": str(folder), "ANSIBLE_HOME": str(folder), "ANSIBLE_COLLECTIONS_PATH": str(folder)}
    environment = {**os.environ, **own, "ANSIBLE_NOCOLOR": "1", "LC_ALL": "C.UTF-8"}
    command = [str(ANSIBLE_INVENTORY), "-i", "fleet.nodereports.yml", option]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        raise TestbedError(f"ansible-inventory failed: {done.stderr.strip()[-500:]}")
    return done.stdout
