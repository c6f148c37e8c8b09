"""bmc_power: a server's BMC from a play, judged as the operator judges it; the password is never shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.playbook import Ansible, Played, stage
from testbed.hardware import Hardware, plug
from testbed.hardware.bmc import PASSWORD, USER
from testbed.hardware.bmcs import bmcs


def task(options: Any, **more: Any) -> dict[str, Any]:
    """A play that reads each host's BMC."""
    one = {"name": "bmc", "nodegauge.gpu.bmc_power": options, **more}
    return {"hosts": "all", "gather_facts": False, "tasks": [one]}


class Server:
    """A machine with a BMC, and a play that reads it."""

    def __init__(self, hardware: Hardware, url: str, ansible: Ansible, ca: Path) -> None:
        self.hardware = hardware
        self.options = {"url": url, "username": USER, "password": PASSWORD, "ca": str(ca)}
        self.ansible = ansible

    def given(self, **options: Any) -> dict[str, Any]:
        """The module's options, without those that are None."""
        return {name: value for name, value in (self.options | options).items() if value is not None}

    def play(self, *flags: str, **options: Any) -> Played:
        return self.ansible.play([task(self.given(**options))], {"gpu-1": {}}, *flags)

    def result(self, *flags: str, **options: Any) -> dict[str, Any]:
        return self.play(*flags, **options).task("bmc", "gpu-1").result


@pytest.fixture
def server(tmp_path: Path, host_archive: Path) -> Iterator[Server]:
    """A DGX H100: six supplies, of which three just carry it."""
    stage(tmp_path, archive=host_archive)
    hardware = plug("h100-sxm-8", tmp_path / "machine", seed="nodegauge")
    with bmcs({"gpu-1": hardware}, tmp_path / "bmc") as urls:
        yield Server(hardware, urls["gpu-1"], Ansible(tmp_path), tmp_path / "bmc" / "ca.pem")


def test_supplies_are_judged_with_what_to_do(server: Server) -> None:
    """Healthy, then without one feed; in check mode too; never changed."""
    healthy = server.result("--check")
    assert (healthy["verdict"], healthy["psu"], healthy["changed"]) == ("pass", "ok", False)
    assert len(healthy["reading"]["supplies"]) == 6
    assert healthy["watts"]["now"] > 0
    for supply in (0, 1, 2):
        server.hardware.fault("supply-input-lost", supply=supply)
    lost = server.result()
    assert (lost["verdict"], lost["psu"]) == ("warn", "redundancy-lost")
    assert all(finding["steps"] for finding in lost["findings"] if finding["severity"] != "info")
    assert server.result(needed=5)["psu"] == "fault"


def test_the_password_is_nowhere_in_what_ansible_prints(server: Server) -> None:
    """Also at the highest verbosity, and when the BMC refuses it."""
    played = server.play("-vvv")
    assert played.task("bmc", "gpu-1").status == "ok"
    assert PASSWORD not in played.output + str([task.result for task in played.tasks])
    refused = server.play("-vvv", password="Wr0ng-secret")
    message = refused.task("bmc", "gpu-1").result["msg"]
    assert "the user or the password" in message
    assert "Wr0ng-secret" not in refused.output


UNREADABLE: dict[str, tuple[dict[str, Any], str]] = {
    "unknown-ca": ({"ca": None}, "certificate"),
    "nobody-listens": ({"url": "https://127.0.0.1:9"}, "no connection"),
    "wrong-scheme": ({"url": "ftp://127.0.0.1"}, "ftp"),
    "no-ca-file": ({"ca": "/nowhere/ca.pem"}, "/nowhere/ca.pem"),
    "too-many-supplies": ({"needed": 99}, "suppliesNeeded"),
}


def test_a_bmc_that_cannot_be_read_fails_the_task_with_a_sentence(server: Server) -> None:
    """No traceback, and no verdict."""
    hosts = {name: {"options": server.given(**options)} for name, (options, _) in UNREADABLE.items()}
    played = server.ansible.play([task("{{ options }}")], hosts)
    for name, (_, says) in UNREADABLE.items():
        result = played.task("bmc", name)
        assert (result.status, says in result.result["msg"]) == ("failed", True), result
        assert "verdict" not in result.result
    assert "Traceback" not in played.output


def test_a_ca_may_be_given_as_text(server: Server, tmp_path: Path) -> None:
    """It stands in a file only while the BMC is read."""
    content = Path(server.options["ca"]).read_text(encoding="utf-8")
    folder = tmp_path / "tmp"
    folder.mkdir()
    options = server.given(ca=None, ca_content=content)
    played = server.ansible.play([task(options, environment={"TMPDIR": str(folder)})], {"gpu-1": {}})
    assert played.task("bmc", "gpu-1").result["psu"] == "ok", played.output
    assert list(folder.iterdir()) == []
