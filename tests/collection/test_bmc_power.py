"""bmc_power: a server's BMC from a play, judged as the operator judges it; the password is never shown."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.playbook import Ansible, Played, stage
from testbed.hardware import plug
from testbed.hardware.bmc import PASSWORD, USER
from testbed.hardware.bmcs import bmcs

WRONG = "Wr0ng-secret"
UNREADABLE: dict[str, tuple[dict[str, Any], str]] = {
    "refused": ({"password": WRONG}, "the user or the password"),
    "unknown-ca": ({"ca": None}, "certificate"),
    "nobody-listens": ({"url": "https://127.0.0.1:9"}, "no connection"),
    "wrong-scheme": ({"url": "ftp://127.0.0.1"}, "ftp"),
    "no-ca-file": ({"ca": "/nowhere/ca.pem"}, "/nowhere/ca.pem"),
    "too-many-supplies": ({"needed": 99}, "suppliesNeeded"),
}


@pytest.fixture
def play(tmp_path: Path, host_archive: Path) -> Iterator[Callable[..., Played]]:
    """The BMC of a DGX H100, three of whose six supplies just carry it; `lost`: supplies without a feed."""
    stage(tmp_path, archive=host_archive)
    (tmp_path / "tmp").mkdir()
    hardware = plug("h100-sxm-8", tmp_path / "machine", seed="nodegauge")
    with bmcs({"gpu-1": hardware}, tmp_path / "bmc") as urls:
        common = {"url": urls["gpu-1"], "username": USER, "password": PASSWORD}
        common["ca"] = str(tmp_path / "bmc" / "ca.pem")

        def read(hosts: dict[str, dict[str, Any]], *flags: str, lost: int = 0) -> Played:
            for supply in range(lost):
                hardware.fault("supply-input-lost", supply=supply)
            given = {
                name: {"options": {k: v for k, v in (common | options).items() if v is not None}}
                for name, options in hosts.items()
            }
            task = {"name": "bmc", "nodegauge.gpu.bmc_power": "{{ options }}"}
            task |= {"environment": {"TMPDIR": str(tmp_path / "tmp")}}
            tasks = [{"hosts": "all", "gather_facts": False, "tasks": [task]}]
            return Ansible(tmp_path).play(tasks, given, *flags)

        yield read


def test_supplies_are_judged_with_what_to_do(play: Callable[..., Played]) -> None:
    healthy = play({"server": {}}, "--check").task("bmc", "server").result
    assert (healthy["verdict"], healthy["psu"], healthy["changed"]) == ("pass", "ok", False)
    assert (len(healthy["reading"]["supplies"]), healthy["watts"]["now"] > 0) == (6, True)
    assert (healthy["power"], healthy["coverage"][:17]) == ("on", "6 of 6 supplies, ")
    played = play({"server": {}, "needs-five": {"needed": 5}}, lost=3)
    lost = played.task("bmc", "server").result
    assert (lost["verdict"], lost["psu"]) == ("warn", "redundancy-lost")
    assert all(finding["steps"] for finding in lost["findings"] if finding["severity"] != "info")
    assert played.task("bmc", "needs-five").result["psu"] == "fault"


def test_a_bmc_that_cannot_be_read_fails_the_task_with_a_sentence_and_no_password_is_shown(
    play: Callable[..., Played], tmp_path: Path
) -> None:
    """At the highest verbosity too.  A CA given as text stands in a file only while the BMC is read."""
    authority = (tmp_path / "bmc" / "ca.pem").read_text(encoding="utf-8")
    hosts = {"server": {}, "ca-as-text": {"ca": None, "ca_content": authority}}
    played = play(hosts | {name: options for name, (options, _) in UNREADABLE.items()}, "-vvv")
    assert [played.task("bmc", name).result["psu"] for name in hosts] == ["ok", "ok"], played.output
    for name, (_, says) in UNREADABLE.items():
        result = played.task("bmc", name)
        assert (result.status, says in result.result["msg"]) == ("failed", True), result
        assert "verdict" not in result.result
    shown = played.output + str([task.result for task in played.tasks])
    assert [word for word in ("Traceback", PASSWORD, WRONG) if word in shown] == []
    assert list((tmp_path / "tmp").iterdir()) == []
