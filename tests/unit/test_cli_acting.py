"""`nodegauge run`, `override` and `pause`: what they write, what they wait for, and what they refuse to write."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from nodegauge_cli import run as runs
from nodegauge_cli.__main__ import main
from nodegauge_operator import names
from nodegauge_operator.api.report import stamp
from nodegauge_operator.core import override
from nodegauge_operator.kube import client
from support.api_server import NODES, POLICIES, REPORTS
from support.client import FakeClient
from support.objects import NOW
from support.operator import SteppedOperator, some_nodes

Call = Callable[..., Result]


@pytest.fixture
def operator() -> SteppedOperator:
    """Two nodes, of which node-1 was read."""
    return some_nodes("node-1", "node-2")


@pytest.fixture
def call(operator: SteppedOperator, monkeypatch: pytest.MonkeyPatch) -> Call:
    """A command in that cluster, at its time; while it sleeps, the operator and the kubelets work."""

    async def connect(**_: Any) -> FakeClient:
        return FakeClient(operator.cluster)

    def sleep(seconds: float) -> None:
        operator.run_all(after=seconds)

    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(client, "connect", connect)
    clock = {"time": operator.cluster.clock, "monotonic": operator.cluster.clock, "sleep": sleep}
    for name, function in clock.items():
        monkeypatch.setattr(time, name, function)
    operator.run_all()

    def invoke(*arguments: str) -> Result:
        result = CliRunner().invoke(main, list(arguments))
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


def test_run(operator: SteppedOperator, call: Call) -> None:
    result = call("run", "node-1", "--probe", "health")
    print(result.output)
    assert result.exit_code == 0
