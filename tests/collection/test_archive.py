"""The archive on a host: what it says, what it leaves behind, and how it ends."""

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
VERSION = msgspec.toml.decode((hostarchive.ROOT / "pyproject.toml").read_text())["project"]["version"]
LONG = ("probe", "health", "--window", "40", "--hz", "10")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, host_archive: Path) -> Host:
    folder = tmp_path_factory.mktemp("host")
    (folder / "unpacked").mkdir()
    return Host(host_archive, plug("h100-sxm-8", folder / "machine", seed="nodegauge"), folder)


COMMANDS = {
    "help": (("--help",), 0, [f"\n  {name} " for name in ("probe", "judge", "page", "bmc", "version")]),
    "version": (("version",), 0, [VERSION]),
    "unknown": (("measure",), 2, []),
    "bad option": (("probe", "health", "--window", "-1"), 2, ["--window"]),
    "nobody listens": (("bmc", "https://127.0.0.1:1", "--insecure"), 2, ["no connection"]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_ends_with_its_code_and_message(host: Host, name: str) -> None:
    command, code, parts = COMMANDS[name]
    done = host.run(*command)
    printed = done.stderr if code else done.stdout
    assert (done.returncode, [part for part in parts if part not in printed]) == (code, [])
    assert host.left() == []


@pytest.fixture
def hangup_by_default() -> Iterator[None]:
    """Under `nohup` this process, and what it starts, would ignore SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup_by_default")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_nothing_is_left_after_a_signal(host: Host, number: signal.Signals) -> None:
    """Also when the kernel kills the probe: its signal shows."""
    running = host.start(*LONG)
    wait_for(lambda: _sampling(running.pid), what="the probe runs")
    [folder] = host.left()
    assert (host.unpacked / folder).stat().st_mode & 0o777 == 0o700
    [child] = _children(running.pid)
    os.kill(child if number is signal.SIGKILL else running.pid, number)
    running.communicate(timeout=60)
    assert running.returncode == -number or (number is not signal.SIGKILL and running.returncode == 0)
    assert host.left() == []


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _sampling(pid: int) -> bool:
    return any("libnvidia-ml" in Path(f"/proc/{child}/maps").read_text() for child in _children(pid))


@pytest.mark.parametrize("version", ["3.6", "3.7", "3.8"])
def test_an_old_python_says_what_is_missing(host: Host, python: Path, version: str) -> None:
    done = host.run("probe", "health", python=python)
    assert done.returncode == 4
    assert done.stderr.startswith(f"nodegauge: this host's Python is {version}.")
    assert done.stderr.endswith("the probes need 3.9 or newer: set ansible_python_interpreter to one\n")


def test_the_bmc_command_says_which_package_it_lacks(host: Host) -> None:
    """Without site packages there is no aiohttp."""
    command = [sys.executable, "-S", str(host.archive), "bmc", "https://127.0.0.1:1"]
    done = subprocess.run(command, env=host.env(), capture_output=True, text=True)
    assert (done.returncode, done.stderr.endswith(" has no package aiohttp: `bmc` needs it\n")) == (4, True)
    assert host.left() == []


def test_a_build_without_an_index_says_what_to_do(tmp_path: Path) -> None:
    """It names the variable, and leaves no half archive."""
    command = [sys.executable, str(hostarchive.BUILDER), str(tmp_path / "x.pyz"), "--cache", str(tmp_path)]
    environment = {**os.environ, "PIP_NO_INDEX": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "PIP_INDEX_URL" in done.stderr) == (1, True)
    assert not (tmp_path / "x.pyz").exists()


def test_a_second_build_has_the_same_bytes_and_nccl_is_beside_them_for_the_probes_that_need_it_alone(
    tmp_path: Path, host_archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wheels come from the cache, without an index; times and order are fixed.  NCCL's packages have a few
    bytes here instead of half a gigabyte."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
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
    first, second = entries(host_archive), entries(built)
    assert [name for name in second if name not in first] == [
        f"nccl-cp{here.replace('.', '')}-x86_64/nccl/__init__.py"
    ]
    assert list(first.items()) == [entry for entry in second.items() if entry[0] in first]
    host = Host(built, plug("t4-1", tmp_path / "machine", seed="nodegauge"), tmp_path)
    host.unpacked.mkdir()
    pulled = host.run("probe", "pull")
    assert "NCCL of this very archive" in pulled.stdout, pulled
    assert decode(host.run("probe", "health", *QUICK).stdout).problem is None
    assert host.left() == []


def entries(archive: Path) -> dict[str, tuple[object, ...]]:
    """All that the archive says of each file, and where its compressed bytes differ, their checksum does."""
    with zipfile.ZipFile(archive) as packed:
        return {
            one.filename: (one.date_time, one.external_attr, one.compress_type, one.compress_size, one.CRC)
            for one in packed.infolist()
        }


def test_every_supported_python_and_machine_is_in(host_archive: Path) -> None:
    names = entries(host_archive)
    tags = {name.split("/")[0] for name in names if "/msgspec/_core." in name}
    versions = [version.replace(".", "") for version in archive.PYTHONS]
    assert tags == {f"cp{version}-{machine}" for version in versions for machine in ("x86_64", "aarch64")}


def test_a_result_is_judged_as_the_command_line_does(host: Host) -> None:
    probed = host.run("probe", "health", *QUICK)
    document = probed.stdout
    assert (probed.returncode, probed.stderr, len(decode(document).gpus)) == (0, "", 8)
    (host.folder / "result.json").write_text(document)
    command = [sys.executable, "-m", "nodegauge_cli", "judge", str(host.folder / "result.json")]
    output = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, check=True).stdout
    request, judge = json.dumps({"documents": [document]}), [sys.executable, str(host.archive), "judge"]
    done = subprocess.run(judge, input=request, env=host.env(), capture_output=True, text=True, check=True)
    [judgement], printed = json.loads(done.stdout)["judgements"], json.loads(output)
    assert (done.stderr, {key: judgement[key] for key in printed}) == ("", printed)
    assert judgement["labels"]["nodegauge.dev/interconnect"] == "nvlink"


def test_a_judge_that_may_stay_is_unpacked_once_and_taken_again(host: Host) -> None:
    """Also by two first starts at once; where it cannot stay it is unpacked elsewhere."""
    env = host.env() | {"NODEGAUGE_UNPACKED": str(host.folder / "kept")}
    command, pipe = [sys.executable, str(host.archive), "judge"], subprocess.PIPE
    first = [subprocess.Popen(command, stdin=pipe, stdout=pipe, env=env) for _ in range(2)]
    answers = [json.loads(one.communicate(b'{"documents": []}')[0]) for one in first]
    assert [answer["judgements"] for answer in answers] == [[], []]
    assert (host.left(), [path.name for path in (host.folder / "kept").iterdir()]) == ([], ["judge"])
    (host.folder / "kept/judge/nodegauge_host.py").write_text("def run(*_): return print('again') or 0")
    for program in ("judge", "page"):
        assert subprocess.run([*command[:2], program], stdout=pipe, env=env).stdout == b"again\n"
    unwritable = env | {"NODEGAUGE_UNPACKED": "/proc/nodegauge"}
    assert json.loads(subprocess.run(command, input=b'{"documents": []}', stdout=pipe, env=unwritable).stdout)
    assert host.left() == []
