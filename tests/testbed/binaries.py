"""Finds the programs of a real control plane, and builds those that are not there.

Looked for in this order, the first that fits is taken:

1. the folder that KUBEBUILDER_ASSETS names (the convention of envtest),
2. PATH,
3. the cache, $NODEGAUGE_CACHE or `nodegauge` below $XDG_CACHE_HOME or ~/.cache, one folder per version,
4. a build from the Go modules in tests/testbed/go into the cache (`gobuild`).

Whatever is left aside, and why, is said.  Nothing here starts a control plane.  `python -m testbed.binaries`
does it all beforehand; with `kubectl` as argument also kubectl is built where there is none, with `kubelet`
the kubelet of `make e2e`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from testbed.errors import BinaryError, TestbedError
from testbed.gobuild import Tool, build_missing

Progress = Callable[[str], None]
Version = tuple[int, int, int]

KUBERNETES = "1.36.3"
ETCD = "3.6.5"
HELM = "4.3.1"

_KUBERNETES_FLAGS = f"-X k8s.io/component-base/version.gitVersion=v{KUBERNETES}"
_HELM_FLAGS = f"-X helm.sh/helm/v4/internal/version.version=v{HELM}"


def _kubernetes_tool(name: str, usual: str) -> Tool:
    return Tool(
        name=name,
        version=KUBERNETES,
        folder=f"kubernetes-{KUBERNETES}",
        module="k8s",
        package=f"k8s.io/kubernetes/cmd/{name}",
        ldflags=_KUBERNETES_FLAGS,
        usual=usual,
    )


ETCD_TOOL = Tool(
    name="etcd",
    version=ETCD,
    folder=f"etcd-{ETCD}",
    module="etcd",
    package="go.etcd.io/etcd/server/v3",
    usual="20 s to 1 min",
)
APISERVER_TOOL = _kubernetes_tool("kube-apiserver", "3 min")
SCHEDULER_TOOL = _kubernetes_tool("kube-scheduler", "20 s")
CONTROLLER_MANAGER_TOOL = _kubernetes_tool("kube-controller-manager", "40 s")
KUBECTL_TOOL = _kubernetes_tool("kubectl", "1 min")
KUBELET_TOOL = _kubernetes_tool("kubelet", "1 min")
HELM_TOOL = Tool(
    name="helm",
    version=HELM,
    folder=f"helm-{HELM}",
    module="helm",
    package="helm.sh/helm/v4/cmd/helm",
    ldflags=_HELM_FLAGS,
    usual="2 min",
)
KUBERNETES_TOOLS = (APISERVER_TOOL, SCHEDULER_TOOL, CONTROLLER_MANAGER_TOOL)

MINIMUM: Mapping[str, Version] = {
    # The oldest API server that nodegauge is meant for.
    "kube-apiserver": (1, 31, 0),
    # What the API server needs for consistent reads from its watch cache (KEP-2340).
    "etcd": (3, 5, 13),
    # The oldest helm that the chart is meant for.
    "helm": (3, 14, 0),
}
VERSION_COMMAND = {"helm": ("version", "--short")}
VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")
VERSION_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Binaries:
    """Absolute paths of the programs; kubectl is for people only and may be missing."""

    etcd: Path
    kube_apiserver: Path
    kube_scheduler: Path
    kube_controller_manager: Path
    helm: Path
    kubectl: Path | None


@dataclass(frozen=True, kw_only=True)
class Match:
    """A program that is there and says its version."""

    path: Path
    version: Version


def say(message: str) -> None:
    """A line of progress, at once."""
    print(message, flush=True)


def find_or_build(progress: Progress = say, *, environ: Mapping[str, str] | None = None) -> Binaries:
    """Every program of the control plane and helm. BinaryError, with the way out, when one cannot be had."""
    search = _Search(os.environ if environ is None else environ, progress)
    paths = search.kubernetes()
    for tool in (ETCD_TOOL, HELM_TOOL):
        if result := search.first_usable(tool.name):
            paths[tool.name] = result.path
    needed = [tool for tool in (ETCD_TOOL, *KUBERNETES_TOOLS, HELM_TOOL) if tool.name not in paths]
    paths |= build_missing(needed, cache=search.cache, environ=search.environ, progress=progress)
    return Binaries(
        etcd=paths["etcd"],
        kube_apiserver=paths["kube-apiserver"],
        kube_scheduler=paths["kube-scheduler"],
        kube_controller_manager=paths["kube-controller-manager"],
        helm=paths["helm"],
        kubectl=search.kubectl(),
    )


def find_or_build_kubectl(progress: Progress = say, *, environ: Mapping[str, str] | None = None) -> Path:
    """Any kubectl that is there, else one that is built."""
    search = _Search(os.environ if environ is None else environ, progress)
    if result := search.kubectl():
        return result
    built = build_missing([KUBECTL_TOOL], cache=search.cache, environ=search.environ, progress=progress)
    return built[KUBECTL_TOOL.name]


def build_kubelet(progress: Progress = say, *, environ: Mapping[str, str] | None = None) -> Path:
    """A kubelet of the version that is built here; one on PATH belongs to the machine's own cluster."""
    variables = os.environ if environ is None else environ
    cache = cache_folder(variables)
    built = build_missing([KUBELET_TOOL], cache=cache, environ=variables, progress=progress)
    return built[KUBELET_TOOL.name]


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where built programs are kept; relative values of the variables are not heeded, as XDG demands."""
    if own := environ.get("NODEGAUGE_CACHE"):
        return Path(own).absolute()
    base = environ.get("XDG_CACHE_HOME", "")
    if not Path(base).is_absolute():
        base = str(Path(environ.get("HOME") or _home_of_user()) / ".cache")
    return Path(base) / "nodegauge"


def _home_of_user() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise BinaryError(
            "this user has no home folder: set NODEGAUGE_CACHE to one to keep programs in"
        ) from error


class _Search:
    """One search, with the environment it looks at."""

    def __init__(self, environ: Mapping[str, str], progress: Progress) -> None:
        self.environ = environ
        self.cache = cache_folder(environ)
        self._progress = progress

    def kubernetes(self) -> dict[str, Path]:
        """API server, scheduler and controller manager of one minor version, or nothing.

        Scheduler and controller manager must not be newer than the API server, nor much older (the version
        skew policy of Kubernetes); envtest's folder has only the API server.
        """
        for server in self.usable(APISERVER_TOOL.name):
            paths = {APISERVER_TOOL.name: server.path}
            for tool in (SCHEDULER_TOOL, CONTROLLER_MANAGER_TOOL):
                fitting = (one for one in self.usable(tool.name) if one.version[:2] == server.version[:2])
                if partner := next(fitting, None):
                    paths[tool.name] = partner.path
            if len(paths) == len(KUBERNETES_TOOLS) or server.version[:2] == _parse(KUBERNETES)[:2]:
                return paths
            self._progress(
                f"{server.path} is left aside: no kube-scheduler and kube-controller-manager"
                f" {server.version[0]}.{server.version[1]} beside it; {KUBERNETES} is used for all three"
            )
        return {}

    def first_usable(self, name: str) -> Match | None:
        """The first one that is new enough."""
        return next(self.usable(name), None)

    def usable(self, name: str) -> Iterator[Match]:
        """Those in KUBEBUILDER_ASSETS and on PATH that run and are new enough; others are mentioned."""
        minimum = MINIMUM.get(name, MINIMUM["kube-apiserver"])
        for path in self._present(name):
            try:
                version = _ask_version(path, name)
            except BinaryError as error:
                self._progress(f"{path} is left aside: {error}")
                continue
            if version >= minimum:
                yield Match(path=path, version=version)
            else:
                self._progress(f"{path} is left aside: {_text(version)} is older than {_text(minimum)}")

    def kubectl(self) -> Path | None:
        """Any version will do: it is not part of what is tested."""
        cached = self.cache / KUBECTL_TOOL.folder / KUBECTL_TOOL.name
        return next(iter([*self._present("kubectl"), *([cached] if cached.exists() else [])]), None)

    def _present(self, name: str) -> list[Path]:
        """Executable files of that name in KUBEBUILDER_ASSETS, then on PATH."""
        assets = self.environ.get("KUBEBUILDER_ASSETS")
        if assets and not Path(assets).is_dir():
            raise BinaryError(f"KUBEBUILDER_ASSETS is {assets}, which is no folder: correct it or unset it")
        result = [shutil.which(name, path=folder) for folder in (assets, self.environ.get("PATH")) if folder]
        return [Path(path).absolute() for path in dict.fromkeys(result) if path]


def _ask_version(path: Path, name: str) -> Version:
    command = [str(path), *VERSION_COMMAND.get(name, ("--version",))]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=VERSION_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BinaryError(f"it does not say its version ({error})") from error
    if answer.returncode or not VERSION.search(answer.stdout):
        message = (answer.stdout + answer.stderr).strip().splitlines()
        output = message[0] if message else "nothing"
        raise BinaryError(f"it does not say its version (exit code {answer.returncode}, it said: {output})")
    return _parse(answer.stdout)


def _parse(text: str) -> Version:
    result = VERSION.search(text)
    assert result is not None
    major, minor, patch = result.groups()
    return int(major), int(minor), int(patch)


def _text(version: Version) -> str:
    return ".".join(map(str, version))


def _interrupt(number: int, frame: FrameType | None) -> None:
    """SIGTERM leaves by way of the `finally` clauses, which end what `go` has started."""
    raise KeyboardInterrupt


def main(arguments: Sequence[str]) -> int:
    """Find or build everything and print the paths; the exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits it as ignored
    try:
        result = find_or_build()
        kubectl = find_or_build_kubectl() if "kubectl" in arguments else result.kubectl
        if "kubelet" in arguments:
            say(f"kubelet: {build_kubelet()}")
    except TestbedError as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("testbed: interrupted; what was built is kept", file=sys.stderr)
        return 130
    for name, path in (vars(result) | {"kubectl": kubectl}).items():
        say(f"{name.replace('_', '-')}: {path or 'none (for people only)'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
