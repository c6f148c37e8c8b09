"""What a container finds in its environment, and with whose token."""

from __future__ import annotations

import uuid

import pytest

from testbed.pod_runner import (
    PodRunner,
    end,
    say,
)

pytestmark = pytest.mark.cluster


async def test_only_the_pods_own_environment_gets_in(
    runner: PodRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables of the kubelet do not leak; downward fields, secrets and $(NAME) arrive."""
    monkeypatch.setenv("LEAK", "from the shell")
    secret = f"secret-{uuid.uuid4().hex[:8]}"
    await runner.api.create(
        "/api/v1/namespaces/default/secrets", {"metadata": {"name": secret}, "stringData": {"key": "s3"}}
    )
    env = [
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": secret, "key": "key"}}},
        {"name": "JOINED", "value": "$(POD)@$(NODE) $$(POD) $(UNKNOWN)"},
    ]
    script = (
        "import os, sys\n"
        "words = [os.environ.get('LEAK', 'none'), os.environ['SECRET'], os.environ['JOINED'], sys.argv[1]]\n"
        "open(os.environ['NODEGAUGE_TERMINATION_LOG'], 'w').write('|'.join(words))"
    )
    name = await runner.run(script, container={"env": env, "args": ["$(NODE)"]})
    message = end(await runner.ended(name))["message"].split("|")
    assert message == ["none", "s3", f"{name}@{runner.node} $(POD) $(UNKNOWN)", runner.node]


WHO_AM_I = """
import json, os, ssl, urllib.request
config = json.load(open(os.environ['KUBECONFIG']))
cluster, user = config['clusters'][0]['cluster'], config['users'][0]['user']
request = urllib.request.Request(
    cluster['server'] + '/apis/authentication.k8s.io/v1/selfsubjectreviews',
    data=json.dumps({'apiVersion': 'authentication.k8s.io/v1', 'kind': 'SelfSubjectReview'}).encode(),
    headers={'Content-Type': 'application/json', 'Authorization': 'Bearer ' + open(user['tokenFile']).read()},
)
context = ssl.create_default_context(cafile=cluster['certificate-authority'])
info = json.load(urllib.request.urlopen(request, context=context))['status']['userInfo']
pod = info['extra']['authentication.kubernetes.io/pod-name'][0]
open(os.environ['NODEGAUGE_TERMINATION_LOG'], 'w').write(info['username'] + ' ' + pod)
"""


async def test_a_pods_token_is_its_service_account(runner: PodRunner) -> None:
    """A pod finds a real token, bound to it, with which the API server knows it as its service account."""
    name = await runner.run(WHO_AM_I)
    status = await runner.ended(name)
    assert end(status)["message"] == f"system:serviceaccount:default:default {name}"


async def test_no_token_when_none_is_mounted(runner: PodRunner) -> None:
    """With automountServiceAccountToken false there are no credentials, in the environment or on disk."""
    script = (
        say("")[:-2] + "; open(os.environ['NODEGAUGE_TERMINATION_LOG'], 'w').write(repr(sorted(os.environ)))"
    )
    name = await runner.run(script, automountServiceAccountToken=False)
    assert "KUBECONFIG" not in end(await runner.ended(name))["message"]
    assert not list(runner.files(name).rglob("token"))
