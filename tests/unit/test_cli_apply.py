"""`nodegauge apply`: what it sends, which errors it retries, and its messages and exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from nodegauge_cli import apply as command
from nodegauge_cli.__main__ import main
from nodegauge_operator.kube import errors
from support.client import AnsweringClient, Call
from support.virtual_time import in_virtual_time

POLICY = {
    "apiVersion": "nodegauge.dev/v1alpha1",
    "kind": "GPUValidationPolicy",
    "metadata": {"name": "default"},
    "spec": {"nodeSelector": {}},
}
NOT_SERVED = errors.NotFound("the server could not find the requested resource", status=404)


class Api(AnsweringClient):
    """An API server with a list of failures, after which it accepts everything."""

    def __init__(self, *failures: errors.KubeError) -> None:
        super().__init__(self._take)
        self.failures = list(failures)

    def _take(self, call: Call) -> dict[str, Any]:
        if self.failures:
            raise self.failures.pop(0)
        return dict(call.body)


async def test_the_policy_is_applied_once_without_force() -> None:
    """By server-side apply, as the given manager; unknown fields are refused."""
    api = Api()
    await command.write(api, POLICY, owner="someone", within=1.0)
    wanted = Call(
        method="PATCH",
        path="/apis/nodegauge.dev/v1alpha1/gpuvalidationpolicies/default",
        query={"fieldManager": "someone", "fieldValidation": "Strict"},
        body=POLICY,
        content_type="application/apply-patch+yaml",
    )
    assert api.calls == [wanted]


@pytest.mark.parametrize(
    "failure",
    [
        NOT_SERVED,
        errors.Forbidden("may not, yet", status=403),
        errors.Unavailable("too many requests", status=429),
        errors.Unreachable("connection refused"),
        errors.Refused("create not allowed while custom resource definition is terminating", status=405),
    ],
    ids=["not served", "right not seen", "busy", "away", "the old CRD goes"],
)
@in_virtual_time
async def test_temporary_errors_are_retried(
    failure: errors.KubeError, capsys: pytest.CaptureFixture[str]
) -> None:
    api = Api(failure, failure, failure)
    await command.write(api, POLICY, owner="helm", within=10.0)
    assert len(api.calls) == 4
    assert capsys.readouterr().out.splitlines() == [
        f"policy default: not yet: {failure}",
        "policy default: written",
    ]


GONE, BUSY = [NOT_SERVED] * 1000, [errors.Unavailable("busy", status=503)] * 1000
WRONG = [errors.Refused("spec.mode: Unsupported value", status=422)]
THEIRS = [errors.Conflict("conflict with kubectl", status=409)]
ONE_OBJECT = "expected one object of nodegauge.dev/v1alpha1 GPUValidationPolicy"
NO_NAME = "metadata.name is missing"
CODES: dict[str, tuple[list[errors.KubeError], object, int, str]] = {
    "written": ([], POLICY, 0, "policy default: written"),
    "never served": (GONE, POLICY, 1, "gpuvalidationpolicies.nodegauge.dev in time. Set crds.enabled"),
    "never answered": (BUSY, POLICY, 1, "busy"),
    "refused": (WRONG, POLICY, 2, "spec.mode: Unsupported value"),
    "another's field": (THEIRS, POLICY, 2, "conflict with kubectl"),
    "no JSON": ([], "{", 2, "not JSON"),
    "a list": ([], [POLICY], 2, ONE_OBJECT),
    "another kind": ([], POLICY | {"kind": "NodeReport"}, 2, ONE_OBJECT),
    "no name": ([], POLICY | {"metadata": {}}, 2, NO_NAME),
    "no metadata": ([], POLICY | {"metadata": None}, 2, NO_NAME),
}


@pytest.mark.parametrize("case", CODES)
def test_exit_codes(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 written, 1 if a later try may help, 2 if none will (the Job gives up on 2); options are named."""
    failures, policy, code, part = CODES[case]

    async def connect(**_: object) -> Api:
        return Api(*failures)

    monkeypatch.setattr(command, "connect", connect)
    text = policy if isinstance(policy, str) else json.dumps(policy)
    done = CliRunner().invoke(main, ["apply", f"--policy={text}", "--timeout=10ms"])
    assert (done.exit_code, part in done.output) == (code, True)
    assert failures or code == 0 or "--policy" in done.output
