"""Finding the programs of the control plane, tried with scripts in their place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.pretending import KUBERNETES_PROGRAMS, OURS, Machine, pretended, program, script
from testbed.binaries import ETCD, HELM, KUBERNETES, find_or_build_kubectl
from testbed.errors import BinaryError


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine that has nothing but a `go` that only pretends."""
    return pretended(tmp_path, monkeypatch)


def test_nothing_there_everything_is_built_once(machine: Machine) -> None:
    """All five are built into folders by version, with a line each; the second search builds nothing."""
    found = machine.find()
    assert found["etcd"] == machine.cache / f"etcd-{ETCD}" / "etcd"
    assert found["kube-scheduler"] == machine.cache / f"kubernetes-{KUBERNETES}" / "kube-scheduler"
    assert found["helm"] == machine.cache / f"helm-{HELM}" / "helm"
    assert found["kubectl"] is None
    assert len(machine.built) == 5
    for name, version in OURS.items():
        assert any(re.match(rf"{name} {version}: built in \d+ s", line) for line in machine.said), name
    machine.said.clear()
    assert machine.find() == found
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
    found = machine.find()
    assert found[name].is_relative_to(machine.cache)
    path = machine.assets / name
    assert f"{path} is left aside: {version} is older than {minimum}" in machine.said


def test_a_program_that_does_not_run_is_named_and_not_used(machine: Machine) -> None:
    """Built for another machine, or no program at all."""
    machine.fill(machine.use_assets())
    script(machine.assets / "etcd", "#!/bin/sh\necho wrong library >&2\nexit 4\n")
    assert machine.find()["etcd"].is_relative_to(machine.cache)
    assert any("exit code 4, it said: wrong library" in line for line in machine.said)


def test_helm_of_either_major_version_will_do(machine: Machine) -> None:
    """Version 3.14 and later, and 4."""
    for version in ("3.14.0", "4.0.1"):
        path = program(machine.bin, "helm", version)
        assert machine.find()["helm"] == path


def test_an_api_server_without_its_scheduler_is_left_aside(machine: Machine) -> None:
    """envtest has no scheduler, and one of another minor version must not be mixed with its API server."""
    program(machine.use_assets(), "kube-apiserver", "1.33.2")
    program(machine.bin, "kube-scheduler", "1.34.0")
    found = machine.find()
    assert all(found[name].is_relative_to(machine.cache) for name in KUBERNETES_PROGRAMS)
    assert any("no kube-scheduler and kube-controller-manager 1.33" in line for line in machine.said)


def test_an_api_server_of_our_minor_version_needs_only_the_others(machine: Machine) -> None:
    """envtest's own 1.36 is used; scheduler and controller manager are built to it."""
    apiserver = program(machine.use_assets(), "kube-apiserver", "1.36.0")
    found = machine.find()
    assert found["kube-apiserver"] == apiserver
    assert machine.built.count("kube-apiserver") == 0
    assert machine.built.count("kube-scheduler") == 1


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
