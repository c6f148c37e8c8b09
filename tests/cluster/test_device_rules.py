"""One bad GPU of eight, on a real control plane: seven jobs run, and the eighth once it is healed.  Probes
reach all eight by an admin claim, the bad one too."""

from collections.abc import Iterator
from typing import Any

import pytest

from support import dra
from support import results as made
from support.cluster_under_test import Machines
from support.judge_results import LOST
from testbed import placing
from testbed.errors import ApiError
from testbed.wait import wait_for

pytestmark = pytest.mark.cluster

WELL = made.h100()
BAD = made.with_gpu(WELL, 3, error=LOST)
QUICK = {"leaveRuns": 1, "dwell": "1s", "probationAfter": []}
ON_DEVICES = {"taints": {"devices": "NoSchedule"}, "hysteresis": QUICK}
BY_CLAIM = {"NODEGAUGE_DRIVER_ACCESS": "DRA"}
ADMIN = {"resource.kubernetes.io/admin-access": "true"}


@pytest.fixture
def jobs_in(control_plane: Any, api: Any, namespace: str) -> Iterator[str]:
    """A namespace beside that of the probes, whose kubelet is scripted."""
    name = f"{namespace}-jobs"
    api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    control_plane.await_objects(namespace=name)
    placing.claims(api, name)
    api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": ADMIN}})
    yield name
    api.delete(f"/api/v1/namespaces/{name}")


def test_one_bad_gpu_of_eight(rig: Any, api: Any, jobs_in: str) -> None:
    path, node, machines = dra.rules_path(api), rig.add_node(), Machines(WELL)
    dra.publish(api, node)
    pods = f"/api/v1/namespaces/{jobs_in}/pods"

    def rules() -> list[Any]:
        every = api.get(f"{path}?labelSelector=nodegauge.dev/device-rule")["items"]
        return [one for one in every if one["metadata"]["annotations"]["nodegauge.dev/node"] == node]

    def jobs() -> list[bool]:
        return sorted(bool(pod["spec"].get("nodeName")) for pod in api.get(pods)["items"])

    def after_run(result: Any, count: int) -> None:
        machines.now = result
        rig.ask_for_run(node)
        wait_for(lambda: len(rules()) == count, what=f"{count} rules")

    stranger = {
        "metadata": {"name": f"of-others-{rig.mark}", "labels": {"nodegauge.dev/device-rule": "true"}},
        "spec": {
            "deviceSelector": {"driver": dra.DRIVER, "pool": node, "device": "gpu-99"},
            "taint": {"key": "example.com/bad", "effect": "NoSchedule"},
        },
    }
    stranger["metadata"]["annotations"] = {"nodegauge.dev/node": "elsewhere"}
    api.create(path, stranger)
    rig.add_policy(**ON_DEVICES, budget={"gatedDevices": "100%"})
    with rig.kubelet(machines), rig.operator(**BY_CLAIM):
        rig.wait_up_to_date(node)
        after_run(BAD, 1)
        (rule,) = rules()
        assert rule["spec"]["deviceSelector"] == {"driver": dra.DRIVER, "pool": node, "device": "gpu-3"}
        assert (rule["spec"]["taint"]["value"], rule["spec"]["taint"]["effect"]) == ("gpu-lost", "NoSchedule")
        assert rule["metadata"]["annotations"]["nodegauge.dev/finding"] == "gpu-lost"
        for number in range(8):
            api.create(pods, placing.claiming(f"job-{number}", node))
        wait_for(lambda: jobs() == [False] + [True] * 7, what="seven jobs of eight")
        assert rig.taints(node) == []
        api.delete(f"{path}/{rule['metadata']['name']}")
        wait_for(lambda: len(rules()) == 1, what="the rule that somebody deleted")
        (again,) = rules()
        assert again["metadata"]["uid"] != rule["metadata"]["uid"]
        api.patch(f"{path}/{rule['metadata']['name']}", {"spec": {"taint": {"value": "edited"}}})
        wait_for(lambda: rules()[0]["spec"]["taint"]["value"] == "gpu-lost", what="the rule as it was")
        for name, effect in (("evicts", "NoExecute"), ("keeps-off", "NoSchedule")):
            spec = stranger["spec"] | {"taint": {"key": "example.com/bad", "effect": effect}}
            spec["deviceSelector"] = {"driver": dra.DRIVER, "pool": node, "device": "gpu-3"}
            api.create(path, {"metadata": {"name": f"{name}-{rig.mark}"}, "spec": spec})
        after_run(WELL, 0)
        for name in ("evicts", "keeps-off"):
            api.delete(f"{path}/{name}-{rig.mark}")
        wait_for(lambda: jobs() == [True] * 8, what="the eighth job")
        after_run(BAD, 1)
        api.delete(f"/api/v1/nodes/{node}")
        wait_for(lambda: not rules(), what="the end of the rules of a node that is gone")
    assert api.get(f"{path}/{stranger['metadata']['name']}")
    with pytest.raises(ApiError):
        api.get(f"{path}/{rule['metadata']['name']}")
    api.delete(f"{path}/{stranger['metadata']['name']}")
