"""The programs of a real control plane, and helm, built once from the Go modules in tests/testbed/go.

They are kept in the cache, $NODEGAUGE_CACHE or `nodegauge` below $XDG_CACHE_HOME or ~/.cache, one folder per
version.  Where nothing can be built, KUBEBUILDER_ASSETS names a folder (the convention of envtest) with ready
programs, which are taken as they are.  Nothing here starts a control plane.  `python -m testbed.binaries`
builds everything beforehand.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from testbed.errors import BinaryError, TestbedError
from testbed.gobuild import Tool, build_missing

Progress = Callable[[str], None]

KUBERNETES = "1.36.3"
ETCD = "3.6.5"
HELM = "4.3.1"
PROMETHEUS = "3.13.5"


def _kubernetes_tool(name: str, usual: str) -> Tool:
    return Tool(
        name=name,
        version=KUBERNETES,
        folder=f"kubernetes-{KUBERNETES}",
        module="k8s",
        package=f"k8s.io/kubernetes/cmd/{name}",
        ldflags=f"-X k8s.io/component-base/version.gitVersion=v{KUBERNETES}",
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
KUBERNETES_TOOLS = (
    _kubernetes_tool("kube-apiserver", "3 min"),
    _kubernetes_tool("kube-scheduler", "20 s"),
    _kubernetes_tool("kube-controller-manager", "40 s"),
)
KUBELET_TOOL = _kubernetes_tool("kubelet", "1 min")
KUBECTL_TOOL = _kubernetes_tool("kubectl", "30 s")
HELM_TOOL = Tool(
    name="helm",
    version=HELM,
    folder=f"helm-{HELM}",
    module="helm",
    package="helm.sh/helm/v4/cmd/helm",
    ldflags=f"-X helm.sh/helm/v4/internal/version.version=v{HELM}",
    usual="2 min",
)
PROMTOOL = Tool(
    name="promtool",
    version=PROMETHEUS,
    folder=f"prometheus-{PROMETHEUS}",
    module="prometheus",
    package="github.com/prometheus/prometheus/cmd/promtool",
    ldflags=f"-X github.com/prometheus/common/version.Version={PROMETHEUS}",
    tags="remove_all_sd",  # without service discovery of clouds: less to download and to compile
    usual="2 to 3 min",
)


@dataclass(frozen=True, kw_only=True)
class Binaries:
    """Absolute paths of the programs."""

    etcd: Path
    kube_apiserver: Path
    kube_scheduler: Path
    kube_controller_manager: Path
    helm: Path


def say(message: str) -> None:
    """A line of progress, at once."""
    print(message, flush=True)


def find_or_build(progress: Progress = say, *, environ: Mapping[str, str] = os.environ) -> Binaries:
    """Every program of the control plane and helm. BinaryError, with the way out, when one cannot be had."""
    paths = _assets(environ)
    needed = [tool for tool in (ETCD_TOOL, *KUBERNETES_TOOLS, HELM_TOOL) if tool.name not in paths]
    paths |= build_missing(needed, cache=cache_folder(environ), environ=environ, progress=progress)
    return Binaries(**{name.replace("-", "_"): path for name, path in paths.items()})


def build_kubelet(progress: Progress = say) -> Path:
    """A kubelet of the version that is built here; one on PATH belongs to the machine's own cluster."""
    return _build(KUBELET_TOOL, progress)


def build_kubectl(progress: Progress = say) -> Path:
    """A kubectl of the API server's version."""
    return _build(KUBECTL_TOOL, progress)


def build_promtool(progress: Progress = say) -> Path:
    """What checks and tests Prometheus rules; one on PATH may be of another version."""
    return _build(PROMTOOL, progress)


def _build(tool: Tool, progress: Progress) -> Path:
    cache = cache_folder(os.environ)
    return build_missing([tool], cache=cache, environ=os.environ, progress=progress)[tool.name]


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


def _assets(environ: Mapping[str, str]) -> dict[str, Path]:
    """Programs in KUBEBUILDER_ASSETS by name.

    envtest's folder has an API server without scheduler and controller manager.  They are taken together or
    not at all: of another minor version they must not be mixed (the version skew policy of Kubernetes).
    """
    if not (folder := environ.get("KUBEBUILDER_ASSETS")):
        return {}
    if not Path(folder).is_dir():
        raise BinaryError(f"KUBEBUILDER_ASSETS is {folder}, which is no folder: correct it or unset it")
    together = ({"etcd"}, {"helm"}, {tool.name for tool in KUBERNETES_TOOLS})
    there = {path.name: path.absolute() for path in Path(folder).iterdir()}
    return {name: there[name] for names in together if names <= there.keys() for name in names}


def _interrupt(number: int, frame: FrameType | None) -> None:
    """SIGTERM leaves by way of the `finally` clauses, which end what `go` has started."""
    raise KeyboardInterrupt


def main() -> int:
    """Find or build everything and print the paths; the exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits it as ignored
    try:
        paths = vars(find_or_build()) | {"promtool": build_promtool()}
    except TestbedError as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("testbed: interrupted; what was built is kept", file=sys.stderr)
        return 130
    for name, path in paths.items():
        say(f"{name.replace('_', '-')}: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
