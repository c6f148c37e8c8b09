"""The parts of `make e2e` that need neither root nor a kubelet."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from e2e import cgroups, needs, runtime
from e2e.hoststate import HostState

SETTINGS: dict[str, Any] = {
    "runc": "/usr/sbin/runc",
    "mounts": {"/usr/local/nvidia/lib64": "/cache/driver"},
    "env": {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64", "NODEGAUGE_SYSFS": "/usr/local/nvidia/machine/sys"},
}
NOTHING = HostState(**{one.name: frozenset() for one in fields(HostState)})


def spec(*env: str) -> dict[str, Any]:
    """A container of the OCI runtime specification, with its environment."""
    return {"process": {"env": list(env)}, "mounts": [{"destination": "/proc"}]}


@pytest.mark.parametrize("value", ["all", "0,1", "GPU-1"])
def test_driver_is_added_to_who_asks(value: str) -> None:
    """The library's mount is read-only, mounts that were there stay, and so does the environment."""
    asked = spec("PATH=/bin", f"NVIDIA_VISIBLE_DEVICES={value}")
    assert runtime.wanted(asked)
    done = runtime.added(asked, SETTINGS)
    assert [mount["destination"] for mount in done["mounts"]] == ["/proc", "/usr/local/nvidia/lib64"]
    assert "ro" in done["mounts"][1]["options"]
    assert done["process"]["env"][:2] == asked["process"]["env"]
    assert "LD_LIBRARY_PATH=/usr/local/nvidia/lib64" in done["process"]["env"]


@pytest.mark.parametrize("env", [(), ("NVIDIA_VISIBLE_DEVICES=",), ("NVIDIA_VISIBLE_DEVICES=void",)])
def test_driver_is_not_added_to_others(env: tuple[str, ...]) -> None:
    """Who does not ask, or asks for none, gets nothing; a sandbox has no such variable."""
    assert not runtime.wanted(spec(*env))


HOLDER = {"name": "probe", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
OTHER = {"name": "beside", "resources": {"limits": {"cpu": "1"}}}


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings of a machine with three GPUs, and an API server that knows one pod of two containers."""

    def asked(api: dict[str, str], marks: dict[str, str]) -> dict[str, Any]:
        assert api == {"token": "t"}
        assert marks["io.kubernetes.cri.sandbox-name"] == "a-pod"
        return {"spec": {"containers": [OTHER, HOLDER]}}

    monkeypatch.setattr(runtime, "asked", asked)
    (tmp_path / "access.json").write_text('{"token": "t"}')
    return SETTINGS | {"uuids": ["GPU-a", "GPU-b", "GPU-c"], "api": str(tmp_path / "access.json")}


def bundle(container: str, *env: str) -> dict[str, Any]:
    """What containerd writes for a container of the pod; for its sandbox where the name is empty."""
    marks = {"io.kubernetes.cri.sandbox-name": "a-pod"}
    return spec(*env) | {
        "annotations": marks | ({"io.kubernetes.cri.container-name": container} if container else {})
    }


def test_who_holds_gpus_gets_as_many(gpus: dict[str, Any]) -> None:
    """By UUID, as a device plugin says it, and with them the driver."""
    done = runtime.handed_out(bundle("probe", "PATH=/bin"), gpus)
    assert done["process"]["env"] == ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b"]
    assert runtime.wanted(done)


@pytest.mark.parametrize(
    "other", [bundle("beside"), bundle(""), bundle("probe", "NVIDIA_VISIBLE_DEVICES=void")]
)
def test_who_holds_none_gets_none(gpus: dict[str, Any], other: dict[str, Any]) -> None:
    """Another container of the pod, its sandbox, and one that says itself what it wants stay as they are."""
    assert runtime.handed_out(other, gpus) == other


def test_what_a_container_sets_wins() -> None:
    """As with NVIDIA's runtime, a variable of the pod's is not replaced."""
    done = runtime.added(spec("NVIDIA_VISIBLE_DEVICES=all", "NODEGAUGE_SYSFS=/sys"), SETTINGS)
    assert [v for v in done["process"]["env"] if v.startswith("NODEGAUGE_SYSFS")] == ["NODEGAUGE_SYSFS=/sys"]


@pytest.mark.parametrize("kind", [one.name for one in fields(HostState)])
def test_every_kind_of_change_is_told(kind: str) -> None:
    """What came and what went, of each kind, with its name; nothing where nothing changed."""
    changed = replace(NOTHING, **{kind: frozenset({"something"})})
    assert NOTHING.differences(changed) == [f"{kind}: new: something"]
    assert changed.differences(NOTHING) == [f"{kind}: gone: something"]
    assert changed.differences(changed) == []


def test_folders_that_the_node_hides_are_refused() -> None:
    """With the folder's name and the way out."""
    needs.check_folders([Path("/opt/somebody")])
    with pytest.raises(needs.Unusable, match=r"/var/cache/x is below /var.*set TMPDIR"):
        needs.check_folders([Path("/var/cache/x")])


def test_who_is_not_root_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line with the reason."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "needs root" in needs.missing()


def test_only_the_runs_own_cgroups_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the ids of its containers; another's stay, and so does a parent that was there or is not empty."""
    monkeypatch.setattr(cgroups, "CGROUPS", tmp_path)
    for name in ("memory/k8s.io/mine/inner", "memory/k8s.io/other", "pids/k8s.io/mine", "cpu/k8s.io/mine"):
        (tmp_path / name).mkdir(parents=True)
    cgroups.remove({"mine"}, there_before={tmp_path / "cpu/k8s.io"})
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")} == {
        "memory",
        "memory/k8s.io",
        "memory/k8s.io/other",
        "pids",
        "cpu",
        "cpu/k8s.io",
    }
