"""`nodegauge cleanup` and the operator that it stops first; and the whole command with its exit codes."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from nodegauge_cli.cleanup import command
from nodegauge_operator.kube.errors import Forbidden, KubeError, Refused
from support.api_server import NAMESPACE, NODES, PODS, REPORTS
from support.cleaning import CLEAN, DEPLOYMENTS, Scene, failing

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def scene() -> Scene:
    """Three nodes with marks and reports."""
    return Scene()


# -- the operator --------------------------------------------------------------------------------------------


def first_write(scene: Scene) -> str:
    """The first thing that was changed."""
    return next((line for line in scene.order if not line.startswith("GET")), "")


@pytest.mark.parametrize("deployment", ["", "my-gauge"], ids=["found by its labels", "named"])
def test_the_operator_is_stopped_first(scene: Scene, deployment: str) -> None:
    """With its Deployment named or not, it is scaled to 0 before anything else is changed."""
    scene.deployments = ["my-gauge"]
    scene.add_operator()
    scene.clean(deployment=deployment)
    assert first_write(scene) == f"PATCH {DEPLOYMENTS}/my-gauge/scale"
    assert scene.operators == {}
    assert scene.left() == CLEAN


def test_an_operator_on_a_dead_kubelet_is_removed_after_its_grace(scene: Scene) -> None:
    """Its pod's object goes by its UID, and its token is waited out before the first node is touched."""
    scene.deployments, scene.dead_kubelets = ["nodegauge"], True
    scene.add_operator()
    took = scene.clean()
    assert scene.left() == CLEAN
    assert 30 + 10 + 15 <= took < 60
    assert scene.order.index(f"DELETE {PODS}/operator-1") < scene.order.index(f"PATCH {NODES}/node-0")


@pytest.mark.parametrize("deployment", ["", "nodegauge"])
def test_an_operator_that_does_not_stop_ends_it_before_a_node_is_touched(
    scene: Scene, deployment: str
) -> None:
    """A pod that no kubelet was told to end lives: named, with the way out, and nothing was removed."""
    scene.deployments = ["nodegauge"]
    scene.add_operator()
    scene._stop = lambda: None  # type: ignore[method-assign]
    before = scene.left()
    with pytest.raises(KubeError, match=rf"still runs after 120 s \(pod {NAMESPACE}/operator-1\)"):
        scene.clean(deployment=deployment)
    assert scene.left() == before


def test_an_operator_in_another_namespace_is_refused(scene: Scene) -> None:
    """It would write everything again: refused before anything is changed, naming the namespace to give."""
    scene.add_operator(namespace="elsewhere")
    with pytest.raises(KubeError, match="--namespace elsewhere"):
        scene.clean()
    assert first_write(scene) == ""


def test_without_a_look_at_other_namespaces_a_name_is_asked_for(scene: Scene) -> None:
    """Who may not list pods everywhere is told of --deployment, with which no such look is taken."""
    scene.deployments = ["nodegauge"]
    scene.refuse = failing(99, "GET /api/v1/pods", lambda: Forbidden("may not list pods", status=403))
    with pytest.raises(KubeError, match="--deployment"):
        scene.clean()
    assert first_write(scene) == ""
    scene.clean(deployment="nodegauge")
    assert scene.left() == CLEAN


def test_without_an_operator_it_cleans(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing to stop, named or not, is no error, and is said."""
    scene.clean()
    scene.clean(deployment="gone")
    words = capsys.readouterr().out
    assert "no Deployment with its labels" in words
    assert f"no Deployment {NAMESPACE}/gone" in words


# -- the command ---------------------------------------------------------------------------------------------


def invoke(scene: Scene, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    """The command on this cluster."""

    async def connect(**_: Any) -> Scene:
        return scene

    monkeypatch.setattr(command, "connect", connect)
    return CliRunner().invoke(command.cleanup, list(arguments))


def test_the_command_ends_well(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 0 and a line for each kind."""
    outcome = invoke(scene, monkeypatch)
    assert outcome.exit_code == 0, outcome.output
    assert "nodes: 3 of 3 cleaned" in outcome.output
    assert scene.left() == CLEAN


def test_the_command_names_what_is_left(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1, the object and its reason, no traceback."""
    scene.refuse = failing(1, f"DELETE {REPORTS}/node-1", lambda: Refused("held", status=403))
    outcome = invoke(scene, monkeypatch)
    assert outcome.exit_code == 1
    assert "some objects remain" in outcome.output
    assert "report node-1: held" in outcome.output
    assert "Traceback" not in outcome.output


def test_a_wrong_timeout_is_refused_by_name(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2, before the cluster is asked anything."""
    outcome = invoke(scene, monkeypatch, "--timeout", "soon")
    assert outcome.exit_code == 2
    assert "--timeout" in outcome.output
    assert scene.order == []
