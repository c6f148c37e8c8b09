"""For the stock scheduler: a gang by the PodGroup of docs/placement.md, and pods that claim a GPU each."""

import re
from pathlib import Path

import yaml

from testbed.errors import ApiError
from testbed.hardware.dra import API, DEVICE_CLASS, template
from testbed.rest import Object, Rest
from testbed.wait import wait_for

PODS = "/api/v1/namespaces/default/pods"
NOW = {"gracePeriodSeconds": 0}
SLEEPS: Object = {"image": "busybox", "command": ["sleep", "3600"]}
_PAGE = Path(__file__).resolve().parents[2] / "docs" / "placement.md"
_RECIPE = re.findall(r"```yaml\n(.*?)```", _PAGE.read_text("utf-8").partition("### PodGroup")[2], re.S)


def start_gang(api: Rest, size: int) -> None:
    """So many pods of eight GPUs each, all on nodes of one class or none of them."""
    group, pod = (yaml.safe_load(text) for text in _RECIPE[:2])
    path = _groups(api)
    group["apiVersion"] = path.partition("/namespaces")[0].removeprefix("/apis/")
    group["spec"]["schedulingPolicy"]["gang"]["minCount"] = size
    pod["spec"]["containers"][0] |= SLEEPS
    api.create(path, group)
    for number in range(size):
        api.create(PODS, pod | {"metadata": {"name": f"gang-{number}"}})


def gang(api: Rest) -> list[Object]:
    return [pod for pod in api.get(PODS)["items"] if pod["spec"].get("schedulingGroup")]


def end_gang(api: Rest) -> None:
    for pod in gang(api):
        api.delete(f"{PODS}/{pod['metadata']['name']}", NOW)
    group = f"{_groups(api)}/gang"
    api.delete(group)
    wait_for(lambda: not api.find(group), what="the end of PodGroup gang")


def gang_refusal(api: Rest) -> str:
    """What the scheduler says of the gang; empty while it has not looked, or has placed it."""
    return next(iter(_refusals(api.get(f"{_groups(api)}/gang"))), "")


def refusals(pods: list[Object]) -> list[str]:
    """What the scheduler says of each pod that it cannot place."""
    return [message for pod in pods for message in _refusals(pod)]


def _refusals(one: Object) -> list[str]:
    """Without what preemption would not change."""
    every = one.get("status", {}).get("conditions", [])
    waiting = [condition for condition in every if condition.get("reason") == "Unschedulable"]
    return [re.split(r"[,.] (?:pod group )?preemption: ", one.get("message", ""))[0] for one in waiting]


def _groups(api: Rest) -> str:
    return f"{api.served('scheduling.k8s.io', 'podgroups')}/namespaces/default/podgroups"


def claims(api: Rest, namespace: str) -> None:
    """What `claiming` needs."""
    one = template("one-gpu", allocationMode="ExactCount", count=1)
    api.create(f"{API}/namespaces/{namespace}/resourceclaimtemplates", one)
    try:
        api.create(f"{API}/deviceclasses", DEVICE_CLASS)
    except ApiError as error:
        if error.status != 409:
            raise


def claiming(name: str, node: str) -> Object:
    """A pod that waits for one GPU of the node."""
    container = {"name": "job", **SLEEPS, "resources": {"claims": [{"name": "gpus"}]}}
    return {
        "metadata": {"name": name},
        "spec": {
            "containers": [container],
            "nodeSelector": {"kubernetes.io/hostname": node},
            "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "one-gpu"}],
        },
    }
