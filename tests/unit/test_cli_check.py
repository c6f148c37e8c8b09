"""`nodegauge check` and `nodegauge apply`, which the chart runs: their requests, what they wait for or try
again, their messages and exit codes."""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from nodegauge_cli import apply
from nodegauge_cli import check as command
from nodegauge_cli.__main__ import main
from nodegauge_operator import names
from nodegauge_operator.http_server import HttpServer
from nodegauge_operator.kube import errors
from nodegauge_operator.kube.errors import Forbidden, KubeError, NotFound
from nodegauge_operator.kube.tokens import WHO_AM_I
from nodegauge_operator.kube.workloads import OPERATOR
from nodegauge_operator.metrics import Metrics
from support.client import AnsweringClient, Call
from support.virtual_time import in_virtual_time

RESOURCES = [{"name": name.split(".")[0]} for name in command.CRDS]
ACCOUNT = "system:serviceaccount:gauge:operator"
PODS = "/api/v1/namespaces/gauge/pods"


def make_pod(name: str = "operator-1", *, ip: str = "127.0.0.1", **metadata: Any) -> dict[str, Any]:
    own = {"name": name, "namespace": "gauge", "uid": f"uid-{name}"} | metadata
    spec = {"serviceAccountName": "operator"}
    return {"metadata": own, "spec": spec, "status": {"phase": "Running", "podIP": ip}}


class Api(AnsweringClient):
    """An API server with our CRDs and one operator."""

    def __init__(self) -> None:
        super().__init__(self._look_up)
        self.served = list(RESOURCES)
        self.pods = [make_pod()]
        self.me = ACCOUNT
        self.lacks: tuple[str, ...] = ()
        """Resources to which the operator's account has no right."""
        self.failures: list[KubeError] = []
        self.about: Callable[[str], None] = lambda _path: None

    def _look_up(self, call: Call) -> dict[str, Any]:
        """Discovery, the operator's pods, and who may do what; nothing else is there."""
        self.about(call.path)
        if self.failures:
            raise self.failures.pop(0)
        if call.path == f"/apis/{names.API_VERSION}":
            if not self.served:
                raise NotFound("no such group", status=404)
            return {"resources": self.served}
        if call.path == WHO_AM_I:
            return {"status": {"userInfo": {"username": self.me}}}
        if call.path.startswith(command.REVIEWS):
            spec = call.body["spec"]
            asked_for = self.me if "self" in call.path else spec["user"]
            assert asked_for == ACCOUNT
            if self.me == "nobody":
                raise Forbidden("no", status=403)
            return {"status": {"allowed": spec["resourceAttributes"]["resource"] not in self.lacks}}
        if call.path.startswith("/apis/resource.k8s.io/"):
            raise NotFound("no such group", status=404)
        assert (call.path, call.query.get("labelSelector")) == (PODS, OPERATOR)
        return {"items": self.pods}


class Operator:
    def __init__(self) -> None:
        self.live = self.ready = True
        self.port = 0

    def why(self) -> str:
        return "" if self.ready else "the first full list is not complete"

    async def check(self, api: Api, *, within: float = 0.0) -> None:
        server = HttpServer(
            host="127.0.0.1", port=0, metrics=Metrics(), live=lambda: self.live, unready=self.why
        )
        self.port = await server.start()
        try:
            await command.check_all(api, namespace="gauge", selector=OPERATOR, port=self.port, within=within)
        finally:
            await server.stop()


@pytest.mark.parametrize(
    ("me", "says"),
    [(ACCOUNT, "has the operator's"), ("admin", "has the operator's"), ("nobody", ": not checked, since")],
)
async def test_a_healthy_operator_passes(capsys: pytest.CaptureFixture[str], me: str, says: str) -> None:
    api = Api()
    api.me = me
    await Operator().check(api)
    crds, rights, dra, *healthy = capsys.readouterr().out.splitlines()
    assert all(name in crds for name in command.CRDS)
    assert (ACCOUNT in rights, says in rights) == (True, True)
    assert dra == "the API server serves no DRA"
    assert healthy == [f"operator gauge/operator-1 answers {path}: ok" for path in ("/healthz", "/readyz")]
    posted = {call.path for call in api.calls if call.method != "GET"}
    assert all(path.endswith(("reviews", "subjectaccessreviews")) for path in posted), "it changes nothing"


CRDS = [*map(re.escape, command.CRDS)]
LOOK = "kubectl get pods --namespace gauge --selector"
UNREACHABLE = r"gauge/operator-2 cannot be reached .* NetworkPolicy"
BAD: dict[str, tuple[dict[str, Any], dict[str, bool], str]] = {
    "no CRD": ({"served": []}, {}, f"{'.*'.join(CRDS)}.*crds[.]enabled"),
    "one CRD": ({"served": RESOURCES[:1]}, {}, f": {'.*'.join(CRDS[1:])}.*crds[.]enabled"),
    "no right": ({"lacks": ("nodehistories",)}, {}, "may not: get nodehistories[.].*, list.*helm upgrade"),
    "not live": ({}, {"live": False}, "answers /healthz with 503: [a-z]"),
    "not ready": ({}, {"ready": False}, "answers /readyz with 503: the first full list"),
    "no pod": ({"pods": []}, {}, LOOK),
    "no address": ({"pods": [make_pod(ip="")]}, {}, LOOK),
    "being deleted": ({"pods": [make_pod(deletionTimestamp="2026-11-21T03:00:00Z")]}, {}, LOOK),
    "the second cannot be reached": (
        {"pods": [make_pod(), make_pod("operator-2", ip="127.0.0.2")]}, {}, UNREACHABLE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
async def test_what_is_bad_is_named_with_the_way_out(what: str) -> None:
    answers, state, message = BAD[what]
    api, operator = Api(), Operator()
    vars(api).update(answers)
    vars(operator).update(state)
    with pytest.raises(command.NotReady, match=message):
        await operator.check(api)


async def test_it_waits_until_the_operator_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "POLL_SECONDS", 0.01)
    api, operator = Api(), Operator()
    api.failures = [KubeError("blip", status=503)]
    operator.ready = False

    seen = asyncio.Event()
    api.about = lambda path: seen.set() if path == PODS else None

    async def later() -> None:
        await seen.wait()
        operator.ready = True

    await asyncio.gather(operator.check(api, within=1000), later())
    assert len(api.calls) >= 4


async def test_missing_rights_fail_at_once() -> None:
    api = Api()
    api.failures = [Forbidden("pods is forbidden", status=403)]
    with pytest.raises(command.NotReady, match="may list pods"):
        await Operator().check(api, within=1000)


def test_without_a_cluster_the_error_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/none")
    for arguments, code, part in ([], 1, "Set KUBECONFIG"), (["--timeout", "soon"], 2, "--timeout"):
        done = CliRunner().invoke(main, ["check", *arguments])
        assert (done.exit_code, part in done.output) == (code, True)


POLICY = {
    "apiVersion": "nodegauge.dev/v1alpha1",
    "kind": "GPUValidationPolicy",
    "metadata": {"name": "default"},
    "spec": {"nodeSelector": {}},
}
NOT_SERVED = NotFound("the server could not find the requested resource", status=404)


class Applied(AnsweringClient):
    """An API server with a list of failures, after which it accepts everything."""

    def __init__(self, *failures: KubeError) -> None:
        super().__init__(self._take)
        self.failures = list(failures)

    def _take(self, call: Call) -> dict[str, Any]:
        if self.failures:
            raise self.failures.pop(0)
        return dict(call.body)


async def test_the_policy_is_applied_once_without_force() -> None:
    api = Applied()
    await apply.write(api, POLICY, owner="someone", within=1.0)
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
        Forbidden("may not, yet", status=403),
        errors.Unavailable("too many requests", status=429),
        errors.Unreachable("connection refused"),
        errors.Refused("create not allowed while custom resource definition is terminating", status=405),
    ],
    ids=["not served", "right not seen", "busy", "away", "the old CRD goes"],
)
@in_virtual_time
async def test_temporary_errors_are_retried(failure: KubeError, capsys: pytest.CaptureFixture[str]) -> None:
    api = Applied(failure, failure, failure)
    await apply.write(api, POLICY, owner="helm", within=10.0)
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
CODES: dict[str, tuple[list[KubeError], object, int, str]] = {
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

    async def connect(**_: object) -> Applied:
        return Applied(*failures)

    monkeypatch.setattr(apply, "connect", connect)
    text = policy if isinstance(policy, str) else json.dumps(policy)
    done = CliRunner().invoke(main, ["apply", f"--policy={text}", "--timeout=10ms"])
    assert (done.exit_code, part in done.output) == (code, True)
    assert failures or code == 0 or "--policy" in done.output
