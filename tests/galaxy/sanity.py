"""`ansible-test sanity` on the installed collection, without containers. ansible-test fetches a script from
its own site to get pip; ours does the same with a wheel from the package index.  Tests that cannot be run are
named."""

import contextlib
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from galaxy.commands import CheckFailed, Core, Done, quoted, run, started
from galaxy.environments import pinned

SANITY_SECONDS = 3600.0
"""A minute on two quiet cores; 15 were too few at a load of 30 while its environments were made."""
PIP_SECONDS = 1800.0
SKIPPED = re.compile(r"^(?:WARNING|NOTICE): ((?:Skipping|Required program) .+)$", re.MULTILINE)
GET_PIP = """\
import runpy
import sys

WHEEL = {wheel!r}
sys.path.insert(0, WHEEL)
sys.argv = ["pip", "install", "--no-index", "--disable-pip-version-check", WHEEL]
runpy.run_module("pip", run_name="__main__")
"""


UNREAD = ("MANIFEST.json", "FILES.json", "*.pyz", "*.tgz")
"""What it does not test: lists with digests of all files, the archive and the chart."""


def digest(core: Core, pythons: Path) -> str:
    """Of all that a result depends on."""
    tested = hashlib.sha256(f"{core.version}\0{pinned('pip', 'pip')}".encode())
    tested.update(Path(__file__).read_bytes())
    for link in sorted(pythons.iterdir()):
        tested.update(f"{link.name}\0{link.resolve()}\0".encode())
    for path in sorted(core.collection.rglob("*")):
        if path.is_file() and not any(path.match(pattern) for pattern in UNREAD):
            name, mode = path.relative_to(core.collection), path.stat().st_mode
            tested.update(f"{name}\0{mode:o}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return tested.hexdigest()[:24]


@contextlib.contextmanager
def begun(
    core: Core, *, pythons: Path, cache: Path, home: Path, again: bool = False
) -> Iterator[Callable[[], str]]:
    """Call what is given to wait for its end and for what could not be run.  What passed is kept, and not
    tested again."""
    passed = cache / "passed" / digest(core, pythons)
    if passed.exists() and not again:
        yield lambda: f"passed before with the same files. {passed.read_text('utf-8')}".rstrip()
        return
    prepare_home(home, core=core, cache=cache)
    path = os.pathsep.join([str(pythons), str(core.tools), *usable_path(os.environ.get("PATH", ""))])
    env = {**core.env(), "HOME": str(home), "PATH": path}
    command = [core.tools / "ansible-test", "sanity", "--venv", "--color", "no"]
    with started(command, cwd=core.collection, env=env) as wait:

        def end() -> str:
            done = wait(SANITY_SECONDS)
            if done.returncode:
                raise CheckFailed(f"ansible-test sanity of ansible-core {core.version}:\n{findings(done)}")
            skipped = "; ".join(dict.fromkeys(SKIPPED.findall(done.stdout)))
            passed.parent.mkdir(exist_ok=True)
            passed.write_text(skipped, encoding="utf-8")
            return skipped

        yield end


def findings(done: Done) -> str:
    wrong = [line for line in done.stdout.splitlines() if line.startswith(("ERROR: ", "FATAL: The "))]
    return "\n".join(f"  | {line}" for line in wrong) or quoted(done.stdout)


def prepare_home(home: Path, *, core: Core, cache: Path) -> None:
    """A home for ansible-test: pip's settings, which reach pip in no other way, and what the cache keeps."""
    own = home / ".ansible" / "test"
    own.mkdir(parents=True)
    environments = cache / f"sanity-{core.version}"
    environments.mkdir(exist_ok=True)
    (own / "venv").symlink_to(environments)
    script = GET_PIP.format(wheel=str(pip_wheel(cache)))
    (own / "cache").mkdir()
    for version in wanted_pips(core.tools):
        (own / "cache" / f"get_pip_{version.replace('.', '_')}.py").write_text(script, encoding="utf-8")
    listing = [sys.executable, "-m", "pip", "config", "list"]
    settings = run(listing, cwd=home, env=os.environ, seconds=PIP_SECONDS).expect("pip config list")
    (home / ".config" / "pip").mkdir(parents=True)
    (home / ".config" / "pip" / "pip.conf").write_text(pip_conf(settings.splitlines()), encoding="utf-8")


def pip_conf(listed: Iterable[str]) -> str:
    """pip's configuration file from lines of `pip config list`; variables win over files, as in pip."""
    pairs = [match.groups() for line in listed if (match := re.match(r"(\S+?)\.\.?([\w-]+)='(.*)'$", line))]
    values = {name: value for section, name, value in pairs if section == "global"}
    values |= {name: value for section, name, value in pairs if section == ":env:"}
    lines = [f"{name} = {value}" for name, value in values.items() if name != "config-file"]
    return "\n".join(["[global]", *lines, ""]).replace("\\n", "\n  ")


def pip_wheel(cache: Path) -> Path:
    folder = cache / "pip"
    pin = pinned("pip", "pip")
    wheel = folder / f"pip-{pin}-py3-none-any.whl"
    if not wheel.exists():
        options = ("--quiet", "--no-deps", f"pip=={pin}", "--dest", folder)
        command = [sys.executable, "-m", "pip", "download", *options]
        run(command, cwd=cache, env=os.environ, seconds=PIP_SECONDS).expect(f"downloading pip {pin}")
    return wheel


def wanted_pips(tools: Path) -> list[str]:
    """The versions of pip that this ansible-test asks for; ours takes the place of each."""
    [source] = tools.parent.glob("lib/python3*/site-packages/ansible_test/_internal/python_requirements.py")
    return sorted(set(re.findall(r"pip='([\d.]+)'", source.read_text("utf-8"))))


def usable_path(path: str) -> list[str]:
    """Without folders of Pythons: ansible-test takes each `pythonX.Y` for one that works; pyenv's shims do
    not."""
    folders = [folder for folder in path.split(os.pathsep) if folder]
    system = {"/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/bin"}
    return [each for each in folders if each in system or not list(Path(each).glob("python[23]*"))]
