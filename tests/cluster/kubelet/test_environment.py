"""What a container finds in its environment, and with whose token."""

from __future__ import annotations

import uuid

import pytest

from testbed.podtests import (
    Lab,
    end,
    say,
)

pytestmark = pytest.mark.cluster


async def test_only_the_pods_own_environment_gets_in(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of the kubelet do not leak; downward fields, secrets and $(NAME) arrive."""
    monkeypatch.setenv("LEAK", "from the shell")
    secret = f"secret-{uuid.uuid4().hex[:8]}"
    await lab.api.create(
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
    name = await lab.run(script, container={"env": env, "args": ["$(NODE)"]})
    words = end(await lab.ended(name))["message"].split("|")
    assert words == ["none", "s3", f"{name}@{lab.node} $(POD) $(UNKNOWN)", lab.node]


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


async def test_a_pods_token_is_its_service_account(lab: Lab) -> None:
    """A pod finds a real token, bound to it, with which the API server knows it as its service account."""
    name = await lab.run(WHO_AM_I)
    status = await lab.ended(name)
    assert end(status)["message"] == f"system:serviceaccount:default:default {name}"


async def test_no_token_when_none_is_mounted(lab: Lab) -> None:
    """With automountServiceAccountToken false there are no credentials, in the environment or on disk."""
    script = (
        say("")[:-2] + "; open(os.environ['NODEGAUGE_TERMINATION_LOG'], 'w').write(repr(sorted(os.environ)))"
    )
    name = await lab.run(script, automountServiceAccountToken=False)
    assert "KUBECONFIG" not in end(await lab.ended(name))["message"]
    assert not list(lab.files(name).rglob("token"))
