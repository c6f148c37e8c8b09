"""What `run`, `override` and `pause` write on a real API server; a live operator does as they say."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from nodegauge_cli.__main__ import main
from nodegauge_operator.core.override import OVER
from support.cluster_under_test import GROUP
from testbed.binaries import build_kubectl
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster


def test_acting_commands_are_obeyed(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(rig.kubeconfig))
    monkeypatch.setenv("PATH", str(build_kubectl().parent))
    node, policy = rig.add_node(), rig.add_policy()

    def call(command: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, command.split())
        assert result.exit_code == code, (result.output, result.exception)
        return " ".join(result.output.split())

    def override() -> dict[str, str]:
        known: dict[str, str] = rig.report(node)["status"].get("override") or {}
        return known

    def conditions() -> set[tuple[str, str]]:
        body = rig.api.get(f"{GROUP}/gpuvalidationpolicies/{policy}")
        return {(one["type"], one["reason"]) for one in body["status"]["conditions"]}

    with rig.kubelet(), rig.operator():
        rig.wait_up_to_date(node)
        before = rig.last_run(node)["number"]
        assert "health pass: 8x NVIDIA H100 80GB HBM3" in call(f"run {node} --probe health")
        assert rig.last_run(node)["number"] > before
        call(f"override {node} leave-alone --until 1h --reason fan --by ann")
        wait_for(lambda: override().get("kind") == "leave-alone", what="the override in the report")
        assert "left alone by ann" in call(f"run {node} --timeout 1s", 1)
        assert "Ended" in call(f"override {node} --end")
        wait_for(lambda: not override(), what="the end of the override")
        call(f"override {node} healthy --until 3s --reason fan --by ann")
        wait_for(lambda: OVER in override().get("problem", ""), what="an override that is over")
        assert "not in force" in call("override --list")
        call(f"pause {policy} --reason firmware")
        wait_for(lambda: ("Ready", "Paused") in conditions(), what="the pause in the policy's status")
        assert "is paused, so no run starts" in call(f"run {node} --timeout 1s", 1)
        call(f"pause {policy} --end")
        wait_for(lambda: ("Ready", "Paused") not in conditions(), what="the end of the pause")
        assert call(f"run {node} --probe health")
