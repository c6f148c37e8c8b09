"""The Python that runs the probe on a host: Ansible's, another of the host, or one that the task brings."""

import platform
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import archive
from support.gpu_hosts import QUICK, GpuHosts

HERE = ".".join(map(str, sys.version_info[:3]))
NEEDS = "It needs CPython 3.9 to 3.14 on Linux with glibc, aarch64 or x86_64. Nothing was copied."


def relocatable(path: Path, script: str) -> str:
    """A tar file whose interpreter is a script."""
    program = path.with_suffix(".sh")
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with tarfile.open(path, "w:gz") as packed:
        packed.add(program, arcname="python/bin/python3")
    return str(path)


def test_a_host_whose_python_is_too_old_is_measured_with_another(hosts: GpuHosts) -> None:
    """Of PATH, else one that the task brings; else it is said before any copy."""
    old = [version for version in ("2.7", "3.6", "3.7", "3.8") if archive.interpreter(version)]
    plugin = hosts.ansible.folder / "ansible_collections/nodegauge/gpu/plugins/plugin_utils/host_python.py"
    text = plugin.read_text()
    folders = text[text.index('FOLDERS = "') :].split('"')[1]
    plugin.write_text(text.replace(f'"{folders}"', '"/nonexistent"'))  # this machine has others there
    fits, none = hosts.top / "fits", hosts.top / "none"
    for folder in (fits, none):
        folder.mkdir(parents=True)
    (fits / "python3.11").symlink_to(sys.executable)
    for name, version in (("python", old[0]), ("python3", old[-1])) if old else ():
        (none / name).symlink_to(archive.interpreter(version) or "")
    tarballs = {
        "brought": relocatable(hosts.top / "good.tgz", f'exec {sys.executable} "$@"'),
        "wrong": relocatable(hosts.top / "bad.tgz", "echo Exec format error >&2; exit 126"),
        "nothing": str(fits),
    }
    for name in ("absent", *old):
        python = str(archive.interpreter(name) or "/nonexistent/python3")
        environment = {"PATH": str(fits)}
        hosts.add(name, "t4-1", options=QUICK, environment=environment, ansible_python_interpreter=python)
    for name in ("none", *tarballs):
        options = QUICK | ({"bring_python": tarballs[name]} if name in tarballs else {})
        hosts.add(name, "t4-1", options=options, environment={"PATH": str(none)})
        hosts.variables[name]["ansible_python_interpreter"] = "auto"
        if name != "brought" and name != "wrong":
            hosts.variables[name]["ansible_remote_tmp"] = "/dev/null/tmp"
    played = hosts.play("gpu_health")
    for name in ("absent", *old, "brought"):
        result = hosts.task(played, name).result
        assert (result.get("verdict"), result["python"]["version"]) == ("pass", HERE), played.output
    says = {name: hosts.task(played, name).result["msg"] for name in ("none", "wrong", "nothing")}
    assert NEEDS in says["none"]
    assert [each for each in old[:1] if f"{none}/python is {each}." not in says["none"]] == []
    assert [each for each in old[-1:] if f"{none}/python3 is {each}." not in says["none"]] == []
    assert "`bring_python`" in says["none"]
    assert "bin/python3 is Exec format error" in says["wrong"]
    assert "is no tar file on the controller" in says["nothing"]
    assert hosts.left() == []


@pytest.mark.parametrize(
    ("before", "tags", "output"),
    [
        ("", [], HERE),
        ("", ["cp30-{machine}"], HERE),
        ("", ["cp311-riscv64"], f"{HERE} of a "),
        ("sys.maxsize = 2**31 - 1", ["{own}"], f"{HERE} a 32-bit build"),
        ("sys.abiflags = 't'", ["{own}"], f"{HERE} a free-threaded build"),
        ("platform.python_implementation = lambda: 'PyPy'", ["{own}"], f"{HERE} PyPy"),
        ("platform.libc_ver = lambda program: ('', '')", ["{own}"], f"{HERE} without glibc"),
        ("sys.modules['ctypes'] = None", ["{own}"], f"{HERE} without its module ctypes"),
        ("sys.version_info = (3, 8, 1)", [], "3.8.1"),
    ],
)
def test_a_python_says_what_is_wrong_with_it(
    plugin: Callable[[str], Any], before: str, tags: list[str], output: str
) -> None:
    code = f"import sys, platform; {before}\n" + plugin("plugin_utils.host_python").CODE
    machine = platform.machine()
    own = f"cp{sys.version_info[0]}{sys.version_info[1]}-{machine}"
    given = [tag.format(own=own, machine=machine) for tag in tags]
    done = subprocess.run([sys.executable, "-c", code, *given], capture_output=True, text=True)
    assert (done.stdout.startswith(output), done.stderr) == (True, "")
    assert done.returncode == bool(before or tags)


@pytest.mark.parametrize(
    ("system", "step"),
    [
        (("rocky rhel centos fedora", "8.10", "Rocky Linux 8.10"), "dnf install python3.11"),
        (("ubuntu debian", "20.04", "Ubuntu 20.04.6 LTS"), "apt-get install python3.9"),
        (("sles suse", "15.5", "SLES 15 SP5"), "zypper install python311"),
        (("debian ", "10", "Debian 10"), "Python 3.9 or newer from the packages of Debian 10"),
    ],
)
def test_the_way_out_is_that_of_the_system(plugin: Callable[[str], Any], system: Any, step: str) -> None:
    assert step in plugin("plugin_utils.host_python")._steps(*system)[0]
