"""The pods that are run on both kubelets: what each container does, and what is done to the pod."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Object = dict[str, Any]

IMAGE = "localhost/nodegauge/probe:0.1.0"
SLOT = "example.com/place"
"""An extended resource of which the node has one: the victim has it, and the urgent pod needs it."""
IN_PLACE = {"resources": {"requests": {SLOT: "1"}, "limits": {SLOT: "1"}}}
URGENT = "comparison-urgent"
NODE = "the node"
"""Stands for the node's name where a pod goes past the scheduler."""

SAY = (
    "import os, signal, sys, time\n"
    "def say(words):\n"
    "    name = os.environ.get('NODEGAUGE_TERMINATION_LOG', '/dev/termination-log')\n"
    "    open(name, 'wb').write(words if isinstance(words, bytes) else words.encode())\n"
)
STAY = "time.sleep(5)\n"
FOREVER = "time.sleep(600)\n"
HANDLER = (
    "def stop(*_):\n"
    "    say('last words')\n"
    "    sys.exit(7)\n"
    "say('first words')\n"
    "signal.signal(signal.SIGTERM, stop)\n"
)
DEAF = "say('first words')\nsignal.signal(signal.SIGTERM, lambda *_: None)\n"
"""Handles SIGTERM by doing nothing, so that one can see when it is ready for it."""
ON = "while True: " + FOREVER


Act = Literal["", "delete", "evict", "preempt"]
"""What is done to a pod from outside, once it has come to `Sample.when`."""
When = Literal["runs", "handles SIGTERM", "waits with a reason", "has ended"]
"""How far a pod's first container must have come."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """`script` is the first container's; `container` and `spec` are merged over the usual ones.  `act` is
    done at `when`.  A pod that is not taken away is awaited until its phase is final."""

    name: str
    script: str = ""
    container: Mapping[str, Any] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    act: Act = ""
    when: When = "handles SIGTERM"
    grace: int = 30

    def body(self, *, node: str, label: str) -> Object:
        spec = {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "dnsPolicy": "Default",
            "nodeSelector": {"kubernetes.io/hostname": node},
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": self.grace,
            **self.spec,
        }
        if spec.get("nodeName") == NODE:
            spec["nodeName"] = node
        main = {**running("main", self.script), **self.container}
        spec["containers"] = [main, *self.spec.get("containers", [])]
        return {"metadata": {"name": f"{self.name}-{label}", "labels": {"comparison": label}}, "spec": spec}


def running(name: str, script: str) -> Object:
    command = ["python", "-c", SAY + script]
    return {"name": name, "image": IMAGE, "imagePullPolicy": "Never", "command": command}


def urgent(*, node: str, label: str) -> Object:
    sample = Sample(name=URGENT, container=IN_PLACE, spec={"priorityClassName": URGENT})
    return sample.body(node=node, label=label)


WAITS: dict[str, Any] = {"act": "delete", "when": "waits with a reason"}
ABSENT = "localhost/nodegauge/absent:1"
UNPULLED = {"image": "localhost:1/nodegauge/absent:1", "imagePullPolicy": "IfNotPresent"}
UNSET = {"envFrom": [{"configMapRef": {"name": "comparison-absent"}}]}
TO_LOGS = {"terminationMessagePolicy": "FallbackToLogsOnError"}
AS_ROOT = {"securityContext": {"runAsUser": 0, "runAsNonRoot": True}}
TOO_MUCH = {"resources": {"requests": {"cpu": "1000"}}}
DONE = f"say('all done')\n{STAY}"
LOGGED = f"print('x' * 3000, 'the end', flush=True)\n{STAY}sys.exit(1)\n"
MESH = {"containers": [running("mesh", HANDLER + ON)]}
SHORT = {"activeDeadlineSeconds": 40}
"""Longer than a busy machine takes until 22 pods run."""

SAMPLES = (
    Sample(name="ends-well", script=DONE),
    Sample(name="ends-badly", script=f"say('bad cable')\n{STAY}sys.exit(3)\n"),
    Sample(name="says-nothing", script=f"{STAY}sys.exit(1)\n"),
    Sample(name="crashes", script=f"import ctypes\n{STAY}ctypes.string_at(0)\n"),
    Sample(name="over-4096-bytes", script=f"say('a' * 4096 + 'b' * 100)\n{STAY}"),
    Sample(name="cut-in-a-letter", script=f"say(chr(8364) * 9 + 'a' * 4094)\n{STAY}"),
    Sample(name="falls-back-to-logs", script=LOGGED, container=TO_LOGS),
    Sample(name="no-such-program", container={"command": ["no-such-program"]}),
    Sample(name="image-missing", container={"image": ABSENT}, **WAITS),
    Sample(name="image-cannot-be-pulled", container=UNPULLED, **WAITS),
    Sample(name="settings-missing", script=FOREVER, container=UNSET, **WAITS),
    Sample(name="deadline", script=HANDLER + ON, spec=SHORT),
    Sample(name="deadline-deaf", script=DEAF + ON, spec=SHORT, grace=2),
    Sample(name="deadline-no-image", container={"image": ABSENT}, spec=SHORT),
    Sample(name="deleted", script=HANDLER + ON, act="delete"),
    Sample(name="deleted-deaf", script=DEAF + ON, act="delete", grace=3),
    Sample(name="deleted-no-handler", script=FOREVER, act="delete", when="runs", grace=3),
    Sample(name="evicted", script=HANDLER + ON, act="evict"),
    Sample(name="preempted", script=HANDLER + ON, container=IN_PLACE, act="preempt"),
    Sample(name="no-room", script=DONE, container=TOO_MUCH, spec={"nodeName": NODE}),
    Sample(name="root-refused", script=DONE, container=AS_ROOT, spec=SHORT),
    Sample(name="companion-stays", script=DONE, spec=MESH, act="delete", when="has ended"),
)
