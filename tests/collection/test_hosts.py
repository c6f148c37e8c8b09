"""`make hosts`: real sshd on loopback, a play, a fault from another process, and nothing left behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from hosts import fleet, sshd, story, transcript
from testbed.errors import TestbedError
from testbed.processes import with_argument


@pytest.fixture(scope="module", autouse=True)
def available() -> None:
    try:
        sshd.find_sshd(print)
    except TestbedError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("host_archive")
def test_a_play_reaches_hosts_over_ssh_and_sees_their_faults(tmp_path: Path) -> None:
    folder = tmp_path / "with a space"
    with fleet.serving(folder, {"good": "t4-1", "sick": "titan-rtx-nv2"}, print) as hosts:
        played = story.Story(hosts, print)
        played.command("fault", "sick", "p2p-refused")
        story.accepted(played, {"sick": "p2p-refused"})
        assert story.rows(played) == {"good": "pass", "sick": "fail"}
        configs = [str(path) for path in folder.glob("hosts/*/sshd_config")]
        taken = subprocess.run(
            [sys.executable, "-m", "hosts", "--dir", str(folder)], capture_output=True, text=True, check=False
        )
        assert (taken.returncode, "another process" in taken.stderr) == (1, True)
    assert len(configs) == 2
    assert [with_argument(config) for config in configs] == [[], []]
    assert not folder.exists()


@pytest.mark.parametrize("host", story.SICK)
def test_the_readme_shows_what_the_story_plays(host: str) -> None:
    """`make hosts ARGS=--once` compares every line; this sees a story that was changed without the README."""
    name, parameters, code = story.SICK[host]
    given = "".join(f" {key}={value}" for key, value in parameters.items())
    for line in (
        f"$ python -m hosts fault {host} {name}{given}\n",
        f"    health {code}: ",
        f"{transcript.TYPO}=8\n",
    ):
        assert line in transcript.shown()
