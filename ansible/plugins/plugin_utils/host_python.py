# nodegauge: Apache-2.0, see LICENSE
"""Which Python of a host runs the probe: found by a shell command before anything is copied.

Ansible's own interpreter may be too old for the archive (3.6 on RHEL 8, 3.8 on Ubuntu 20.04), or for this
ansible-core.  Another one of the host then runs module and probe, or one that `bring_python` names.
Must not install or change anything on the host.
"""

from __future__ import annotations

import re
import shlex
import tarfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ansible import constants as C
from ansible.errors import AnsibleActionFail

MARK = "nodegauge-python"
CODE = """\
import sys
def problem():
    import platform
    tag = "cp%d%d-%s" % (sys.version_info[0], sys.version_info[1], platform.machine())
    if sys.version_info < (3, 9):
        return ""
    if len(sys.argv) > 1 and tag not in sys.argv[1:]:
        known = [each for each in sys.argv[1:] if each.split("-", 1)[1] == platform.machine()]
        return "" if known else "of a " + platform.machine()
    if platform.python_implementation() != "CPython":
        return platform.python_implementation()
    if sys.maxsize < 2 ** 32:
        return "a 32-bit build"
    if "t" in getattr(sys, "abiflags", ""):
        return "a free-threaded build"
    if not sys.platform.startswith("linux") or not platform.libc_ver(sys.executable)[0].startswith("glibc"):
        return "without glibc"
    for name in ("ctypes", "fcntl", "zlib"):
        try:
            __import__(name)
        except ImportError:
            return "without its module " + name
    return None
said = problem()
print("%d.%d.%d" % sys.version_info[:3] + (" " + said if said else ""))
sys.exit(said is not None)
"""
"""For any Python from 2.6 on: prints the version, and what is wrong besides; exit code 0 if it fits."""
FOLDERS = "/usr/local/bin:/usr/bin:/opt/*/bin"
"""Searched after PATH.  Only what root fills: the task may run as root, so no user's home is searched."""
SCRIPT = """\
code=$1; tags=$2; folders=$3; shift 3
newline='
'
IFS=:; for folder in $folders; do PATH=$PATH:$folder; done; unset IFS
for name do
  path=$(command -v "${name%% *}") || continue
  case $name in */*) path=$name;; esac
  said=$($path -c "$code" $tags 2>&1); code_of_it=$?
  printf '%s\\t%s\\t%s\\t%s\\n' "$0" "$code_of_it" "$path" "${said##*"$newline"}"
  [ "$code_of_it" -ne 0 ] || exit 0
done
[ -r /etc/os-release ] && . /etc/os-release
printf '%s\\tsystem\\t%s\\t%s\\t%s\\n' "$0" "$ID $ID_LIKE" "$VERSION_ID" "$PRETTY_NAME"
"""
"""Tries one Python after the other until one fits; a line for each, and one about the system if none does."""
INTERPRETER = re.compile(r"(?:^|/)bin/python3(?:\.\d+)?$")
PACKAGES = (
    ("rhel", "8", "`dnf install python3.11` on the host."),
    ("ubuntu", "20.04", "`apt-get install python3.9` on the host (repository universe)."),
    ("suse", "15", "`zypper install python311` on the host (SLES: with the Python 3 module)."),
)
"""Systems whose own Python is older than 3.9 but that have a newer one: a word of ID or ID_LIKE, the version,
and the step.  Source: the distributions' package lists."""


class HostPython(NamedTuple):
    """A Python on the host that fits: its path, and its version (3.11.2)."""

    path: str
    version: str


class NoPython(Exception):
    """The host has no Python that fits; the message says which it has and need, `steps` what to do."""

    def __init__(self, message: str, steps: list[str]) -> None:
        super().__init__(message)
        self.steps = steps


def find(action: Any, archive: Path, variables: Mapping[str, Any], *, nccl: bool) -> HostPython | None:
    """The Python to run the archive with: Ansible's own if that fits, else another one of the host.

    `nccl`: it must be one for which the archive has NCCL, if it has any.  None where the host's shell does
    not answer, so that Ansible says why.  Raises `NoPython`.
    """
    tags = fitting(archive, nccl=nccl)
    names = [f"python{version}" for version in reversed(versions(tags))]
    wanted = [*configured(action, variables), "python3", *names, "/usr/libexec/platform-python", "python"]
    return look(action, dict.fromkeys(wanted), tags)


def look(action: Any, names: Iterable[str], tags: Sequence[str]) -> HostPython | None:
    """The first of these Pythons that fits.  Raises `NoPython`; None where there is no answer."""
    arguments = [MARK, CODE, " ".join(tags), FOLDERS, *names]
    script = " ".join(["/bin/sh", "-c", shlex.quote(SCRIPT), *map(shlex.quote, arguments)])
    environment = action._compute_environment_string()
    answer = action._low_level_execute_command(f"{environment} {script}".lstrip())
    lines = [line.split("\t") for line in answer.get("stdout_lines", []) if line.startswith(f"{MARK}\t")]
    tried = {line[2]: line[3] for line in lines if line[1] != "system"}
    for _mark, code, path, version, *_more in lines:
        if code == "0":
            return HostPython(path, version)
    if not lines:
        return None
    system = next((line[2:] for line in lines if line[1] == "system"), ["", "", ""])
    raise NoPython(_message(tried, tags), _steps(*system))


def bring(action: Any, tarball: Path, tags: Sequence[str]) -> HostPython | None:
    """Copy a relocatable CPython into the task's temporary folder and unpack it there.  Raises `NoPython`."""
    program = program_in(tarball)
    shell = action._connection._shell
    if shell.tmpdir is None:
        action._make_tmp_path()
    remote, folder = shell.join_path(shell.tmpdir, "python.tar"), shell.join_path(shell.tmpdir, "python")
    action._transfer_file(str(tarball), remote)
    action._fixup_perms2((shell.tmpdir, remote))
    paths = {"remote": shlex.quote(remote), "folder": shlex.quote(folder)}
    unpack = "mkdir {folder} && tar -xf {remote} -C {folder} && rm {remote}".format(**paths)
    done = action._low_level_execute_command(unpack)
    if done["rc"]:
        why = " ".join(f"{done['stderr']} {done['stdout']}".split())[-300:]
        raise NoPython(f"bring_python: the host cannot unpack {tarball.name}: {why}.", [])
    return look(action, [shell.join_path(folder, program)], tags)


@cache
def program_in(tarball: Path) -> str:
    """The path of the interpreter in a tarball.  AnsibleActionFail if it has none."""
    try:
        with tarfile.open(tarball) as opened:
            names = [name.removeprefix("./") for name in opened.getnames()]
    except (OSError, tarfile.TarError) as error:
        raise AnsibleActionFail(
            f"bring_python: {tarball} is no tar file on the controller: {error}"
        ) from error
    if not (programs := sorted(filter(INTERPRETER.search, names), key=lambda name: (len(name), name))):
        raise AnsibleActionFail(
            f"bring_python: {tarball} has no bin/python3, so it is no relocatable CPython"
        )
    return programs[0]


@cache
def fitting(archive: Path, *, nccl: bool) -> tuple[str, ...]:
    """The Pythons and machines that the archive is for, as `cp311-x86_64`; empty if it is none of ours."""
    try:
        with zipfile.ZipFile(archive) as packed:
            roots = {name.split("/")[0] for name in packed.namelist()}
    except zipfile.BadZipFile:
        return ()
    tags = {root for root in roots if root.startswith("cp")}
    with_nccl = {root.removeprefix("nccl-") for root in roots if root.startswith("nccl-")}
    return tuple(sorted(with_nccl if nccl and with_nccl else tags, key=_order))


def versions(tags: Iterable[str]) -> list[str]:
    """Of these tags, the oldest first: `cp39-x86_64` is 3.9."""
    return list(dict.fromkeys(".".join(map(str, _order(tag)[:2])) for tag in sorted(tags, key=_order)))


def configured(action: Any, variables: Mapping[str, Any]) -> list[str]:
    """What Ansible would use on this host: ansible_python_interpreter, or what it discovered before."""
    own = variables
    if action._task.delegate_to:
        own = (variables.get("ansible_delegated_vars") or {}).get(action._task.delegate_to) or {}
    set_to = C.config.get_config_value("INTERPRETER_PYTHON", variables=own)
    path = str(action._templar.template(set_to) or "").strip()
    if not path or path.startswith("auto"):
        path = (own.get("ansible_facts") or {}).get("discovered_interpreter_python", "")
    return [path] if path else []


def using(python: HostPython, action: Any, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The task's variables, with this Python as Ansible's interpreter on the host."""
    own = {"ansible_python_interpreter": python.path}
    delegated = dict(variables.get("ansible_delegated_vars") or {})
    if (host := action._task.delegate_to) in delegated:
        delegated[host] = {**delegated[host], **own}
    return {**variables, "ansible_delegated_vars": delegated, **own}


def _order(tag: str) -> tuple[int, int, str]:
    version, _dash, machine = tag.removeprefix("cp").partition("-")
    return int(version[:1]), int(version[1:]), machine


def _message(tried: Mapping[str, str], tags: Sequence[str]) -> str:
    has = ", ".join(f"{path} is {output}" for path, output in tried.items()) or "it has none"
    known = versions(tags)
    if known:
        span = known[0] if len(known) == 1 else f"{known[0]} to {known[-1]}"
        machines = " or ".join(dict.fromkeys(tag.partition("-")[2] for tag in tags))
        need = f"CPython {span} on Linux with glibc, {machines}"
    else:
        need = "CPython 3.9 or newer on Linux with glibc"
    return f"No Python on this host can run the probe: {has}. It needs {need}. Nothing was copied."


def _steps(system: str, version: str, name: str) -> list[str]:
    """What to do on this system (words of ID and ID_LIKE, VERSION_ID, PRETTY_NAME of os-release)."""
    packages = [
        step
        for word, first, step in PACKAGES
        if any(word in each for each in system.split()) and re.match(rf"{re.escape(first)}(\.|$)", version)
    ]
    install = f"Install Python 3.9 or newer from the packages of {name or 'its distribution'}."
    return [
        *(packages or [install]),
        "If it has one in a folder that is not searched: set `ansible_python_interpreter` in the task's or "
        "role's `vars` to its path.",
        "Or bring one: name the tar file of a relocatable CPython with `bring_python`.",
    ]
