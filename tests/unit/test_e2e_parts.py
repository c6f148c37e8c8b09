"""What `make e2e` promises about the machine it runs on, as far as that needs neither root nor a kubelet."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e import hoststate


def test_only_the_runs_own_cgroups_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the ids of its containers; another's stay, and so does a parent that was there or is not empty."""
    run, cgroups = tmp_path / "run", tmp_path / "cgroups"
    (run / hoststate.TASKS / "mine").mkdir(parents=True)
    monkeypatch.setattr(hoststate, "CGROUPS", cgroups)
    for name in ("memory/k8s.io/mine/inner", "memory/k8s.io/other", "pids/k8s.io/mine", "cpu/k8s.io/mine"):
        (cgroups / name).mkdir(parents=True)
    hoststate.remove_cgroups(run, there_before={cgroups / "cpu/k8s.io"})
    left = {path.relative_to(cgroups).as_posix() for path in cgroups.rglob("*")}
    assert left == {"memory", "memory/k8s.io", "memory/k8s.io/other", "pids", "cpu", "cpu/k8s.io"}
