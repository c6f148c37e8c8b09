"""The archive on a host: what it says, what it leaves behind, and how it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nodegauge_contract import decode
from support import archive
from support.archive import Host
from support.probing import QUICK
from testbed import binaries, hostarchive
from testbed.hardware import plug
from testbed.wait import wait_for

PINS = hostarchive.ROOT / "constraints.txt"
LONG = ("probe", "health", "--window", "40", "--hz", "10")


@pytest.fixture
def host(tmp_path: Path, host_archive: Path) -> Host:
    """A healthy machine with eight GPUs."""
    (tmp_path / "unpacked").mkdir()
    return Host(host_archive, plug("h100-sxm-8", tmp_path / "machine", seed="nodegauge"), tmp_path)


def test_a_probe_s_document_and_exit_code_come_through(host: Host) -> None:
    """The document is a probe's, and nothing else is printed."""
    done = host.run("probe", "health", *QUICK)
    assert (done.returncode, done.stderr) == (0, "")
    result = decode(done.stdout)
    assert (len(result.gpus), result.problem, result.node) == (8, None, "node-1")
    assert host.left() == []


def test_bad_options_end_as_the_probe_s(host: Host) -> None:
    """Exit code 2 and the option's name."""
    done = host.run("probe", "health", "--window", "-1")
    assert done.returncode == 2
    assert "--window" in done.stderr
    assert host.left() == []


@pytest.fixture
def hangup_by_default() -> Iterator[None]:
    """Under `nohup` this process, and what it starts, would ignore SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup_by_default")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_nothing_is_left_after_a_signal(host: Host, number: signal.Signals) -> None:
    """The private folder goes, also when somebody ends the program early."""
    running = host.start(*LONG)
    wait_for(lambda: _sampling(running.pid), what="the probe runs")
    [folder] = host.left()
    assert (host.unpacked / folder).stat().st_mode & 0o777 == 0o700
    running.send_signal(number)
    running.communicate(timeout=20)
    assert running.returncode in (0, -number)
    assert host.left() == []


def _sampling(pid: int) -> bool:
    """Whether the child has loaded the driver."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return any("libnvidia-ml" in Path(f"/proc/{child}/maps").read_text() for child in children)


def test_a_probe_that_is_killed_leaves_nothing_and_its_signal_shows(host: Host) -> None:
    """As when the kernel runs out of memory."""
    running = host.start(*LONG)
    wait_for(lambda: _sampling(running.pid), what="the probe runs")
    [child] = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    os.kill(int(child), signal.SIGKILL)
    running.communicate(timeout=60)
    assert running.returncode == -signal.SIGKILL
    assert host.left() == []


@pytest.mark.parametrize("version", ["3.6", "3.7", "3.8"])
def test_an_old_python_says_what_is_missing(host: Host, version: str) -> None:
    """One sentence with the way out, no traceback."""
    if (python := archive.interpreter(version)) is None:
        pytest.skip(f"no python{version} on PATH or in $NODEGAUGE_PYTHONS")
    done = host.run("probe", "health", python=python)
    assert done.returncode == 4
    assert done.stderr.startswith(f"nodegauge: this host's Python is {version}.")
    assert done.stderr.endswith("the probes need 3.9 or newer: set ansible_python_interpreter to one\n")


def test_the_bmc_command_reads_over_the_network_or_says_what_it_lacks(host: Host) -> None:
    """No BMC listens at that address; without site packages there is no aiohttp."""
    url = "https://127.0.0.1:1"
    tried = host.run("bmc", url, "--insecure")
    assert (tried.returncode, "no connection" in tried.stderr) == (2, True)
    done = subprocess.run(
        [sys.executable, "-S", str(host.archive), "bmc", url], env=host.env(), capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.endswith(" has no package aiohttp: `bmc` needs it\n")) == (4, True)
    assert host.left() == []


def test_the_usage_names_every_command(host: Host) -> None:
    """Help is on standard output; an unknown command is an error."""
    done = host.run("--help")
    assert done.returncode == 0
    assert all(f"\n  {name} " in done.stdout for name in ("probe", "judge", "bmc", "version"))
    assert host.run("measure").returncode == 2


def test_the_version_is_the_project_s(host: Host) -> None:
    """It is that of pyproject.toml."""
    assert (
        host.run("version").stdout.strip()
        == msgspec.toml.decode((hostarchive.ROOT / "pyproject.toml").read_text())["project"]["version"]
    )


def test_a_second_build_has_the_same_bytes_and_needs_no_index(
    tmp_path: Path, host_archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wheels come from the cache; times and order are fixed."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    hostarchive.build(tmp_path / "again.pyz")
    assert (tmp_path / "again.pyz").read_bytes() == host_archive.read_bytes()


def test_a_build_without_an_index_says_what_to_do(tmp_path: Path) -> None:
    """It names the variable, and leaves no half archive."""
    command = [sys.executable, str(hostarchive.BUILDER), str(tmp_path / "x.pyz"), "--cache", str(tmp_path)]
    environment = {**os.environ, "PIP_NO_INDEX": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "PIP_INDEX_URL" in done.stderr) == (1, True)
    assert not (tmp_path / "x.pyz").exists()


def test_an_archive_with_nccl_unpacks_it_for_the_probes_that_need_it_alone(
    tmp_path: Path, host_archive: Path
) -> None:
    """Made with packages of a few bytes instead of half a gigabyte."""
    cache, here = tmp_path / "wheels", f"{sys.version_info[0]}.{sys.version_info[1]}"
    shutil.copytree(binaries.cache_folder(os.environ) / "wheels", cache)
    for package in ("nccl4py", "nvidia-nccl-cu12", "cuda-core", "cuda-bindings", "cuda-pathfinder", "numpy"):
        pin = re.search(rf"(?m)^{package}==(\S+)", PINS.read_text(encoding="utf-8"))
        assert pin is not None
        folder = cache / f"{package}-{pin[1]}-{here}-x86_64"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        with zipfile.ZipFile(folder / f"{package}.whl", "w") as wheel:
            if package == "nccl4py":
                wheel.writestr("nccl/__init__.py", "raise ImportError('NCCL of this very archive')\n")
                wheel.writestr("nccl/core.h", "for compiling")
    built = tmp_path / "with-nccl.pyz"
    hostarchive.build(built, "--cache", str(cache), "--nccl", f"{here}-x86_64")
    with zipfile.ZipFile(built) as packed:
        assert not any(name.endswith(".h") for name in packed.namelist())
    host = Host(built, plug("t4-1", tmp_path / "machine", seed="nodegauge"), tmp_path)
    host.unpacked.mkdir()
    pulled = host.run("probe", "pull")
    assert "NCCL of this very archive" in pulled.stdout, pulled
    assert decode(host.run("probe", "health", *QUICK).stdout).problem is None
    assert host.left() == []


def test_every_supported_python_and_machine_is_in(host_archive: Path) -> None:
    """CPython 3.9 to 3.14, on x86-64 and arm64."""
    names = zipfile.ZipFile(host_archive).namelist()
    tags = {name.split("/")[0] for name in names if "/msgspec/_core." in name}
    versions = [version.replace(".", "") for version in archive.PYTHONS]
    assert tags == {f"cp{version}-{machine}" for version in versions for machine in ("x86_64", "aarch64")}


def test_a_result_is_judged_as_the_command_line_does(host: Host) -> None:
    """Every field that `nodegauge judge` prints is the same."""
    document = host.run("probe", "health", *QUICK).stdout
    (host.folder / "result.json").write_text(document)
    command = [sys.executable, "-m", "nodegauge_cli", "judge", str(host.folder / "result.json")]
    printed = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, check=True)
    judgement = judged(host, {"documents": [document]})["judgements"][0]
    assert {key: judgement[key] for key in json.loads(printed.stdout)} == json.loads(printed.stdout)
    assert judgement["labels"]["nodegauge.dev/interconnect"] == "nvlink"


def judged(host: Host, request: dict[str, Any]) -> dict[str, Any]:
    """The archive's answer."""
    done = subprocess.run(
        [sys.executable, str(host.archive), "judge"],
        input=json.dumps(request),
        env=host.env(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    answer: dict[str, Any] = json.loads(done.stdout)
    assert ("error" in answer) == (done.returncode == 2)
    return answer
