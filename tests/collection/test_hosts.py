"""`make hosts`: real sshd on loopback, a play, a fault from another process, and nothing left behind."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hosts import fleet, sshd
from support.playbook import Ansible
from testbed.errors import TestbedError
from testbed.processes import with_argument


@pytest.fixture(scope="module", autouse=True)
def available() -> None:
    try:
        sshd.find_sshd(print)
    except TestbedError as error:
        pytest.skip(str(error))


def called(program: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", program, "--dir", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("host_archive")
def test_a_play_reaches_hosts_over_ssh_and_sees_their_faults(tmp_path: Path) -> None:
    folder = tmp_path / "with a space"
    with fleet.serving(folder, {"good": "t4-1", "sick": "titan-rtx-nv2"}, print):
        broken = called("testbed", folder, "fault", "sick", "p2p-refused")
        assert broken.returncode == 0, broken.stderr
        listed = called("testbed", folder, "nodes")
        assert (listed.returncode, "hosts without Kubernetes" in listed.stderr) == (1, True), listed.stderr
        own = {"ANSIBLE_HOME": str(folder / "ansible"), "ANSIBLE_CONFIG": str(folder / "ansible.cfg")}
        played = Ansible(folder).run("ansible-playbook", "accept.yml", more=own)
        assert played.returncode == 2, played.stdout + played.stderr
        report = json.loads((folder / "report" / "report.json").read_text(encoding="utf-8"))
        assert {row["host"]: row["verdict"] for row in report["hosts"]} == {"good": "pass", "sick": "fail"}
        assert " p2p-refused: " in played.stdout
        configs = [str(path) for path in folder.glob("hosts/*/sshd_config")]
        taken = called("hosts", folder)
        assert (taken.returncode, "another process" in taken.stderr) == (1, True)
    assert len(configs) == 2
    assert [with_argument(config) for config in configs] == [[], []]
    assert not folder.exists()
