"""The pods of an NCCL run: every GPU and nothing more of it than any other pod of ours may have."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nodegauge_operator import names
from nodegauge_operator.api.policy import Policy
from nodegauge_operator.core.model import ProbeDefaults
from nodegauge_operator.core.probes.pod import probe_pod
from nodegauge_operator.core.probes.registry import KINDS
from nodegauge_probes.nccl.probe import ENGINES
from nodegauge_probes.settings import parse
from support.nccl_nodes import IMAGE, INSTALLED, NODE
from support.objects import ANode, make_context, make_policy

NCCL_PROFILES = pytest.mark.parametrize("probe", [names.PROBE_PULL, names.PROBE_NCCL])


def pod(
    probe: str = names.PROBE_NCCL,
    node: ANode = NODE,
    policy: Policy | None = None,
    defaults: ProbeDefaults = INSTALLED,
) -> dict[str, Any]:
    """The manifest of a run."""
    context = make_context(node=node, policy=policy or make_policy(), defaults=defaults)
    return probe_pod(context, KINDS[probe], number=3)


def container(manifest: dict[str, Any]) -> dict[str, Any]:
    """Its only container."""
    (only,) = manifest["spec"]["containers"]
    return only


def env(manifest: dict[str, Any]) -> dict[str, str]:
    """The container's environment."""
    return {entry["name"]: entry["value"] for entry in container(manifest)["env"]}


def tolerated(manifest: dict[str, Any]) -> set[str | None]:
    """Keys that it tolerates; None for all there are."""
    return {toleration.get("key") for toleration in manifest["spec"]["tolerations"]}


def test_an_nccl_run_holds_all_gpus_that_are_offered() -> None:
    """Held by others or not, and a core for each: seven of eight where the plugin offers seven."""
    for offered in (2, 7, 8, 16):
        made = pod(node=NODE.offering(offered, of=max(8, offered)))
        resources = container(made)["resources"]
        assert resources["requests"][names.GPU_RESOURCE] == str(offered)
        assert resources["limits"][names.GPU_RESOURCE] == str(offered)
        assert resources["requests"]["cpu"] == str(offered)
        assert env(made)["NODEGAUGE_GPUS"] == str(max(8, offered))


def test_the_device_plugin_says_which_gpus_it_sees() -> None:
    """Its own environment must not: `all` would show GPUs that are not its."""
    made = pod()
    assert "NVIDIA_VISIBLE_DEVICES" not in env(made)
    assert env(made)["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"


def test_a_pull_holds_no_gpu_and_sees_none() -> None:
    """Whatever the image's own environment asks for."""
    made = pod(names.PROBE_PULL)
    for part in container(made)["resources"].values():
        assert names.GPU_RESOURCE not in part
    assert env(made)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert container(made)["image"] == IMAGE
    assert made["metadata"]["annotations"][names.POD_IMAGE] == IMAGE


def test_shared_memory_is_large_and_counted() -> None:
    """4 GiB at /dev/shm, and a memory limit that lies above it: it is charged to the pod."""
    made = pod()
    volumes = {volume["name"]: volume["emptyDir"] for volume in made["spec"]["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in container(made)["volumeMounts"]}
    assert volumes[mounts["/dev/shm"]] == {"medium": "Memory", "sizeLimit": "4Gi"}
    assert mounts["/tmp"] in volumes
    limit = container(made)["resources"]["limits"]["memory"]
    assert int(limit.removesuffix("Mi")) > 4 * 1024


def test_an_nccl_run_can_be_preempted_by_everybody() -> None:
    """The class of the installation, never that of health probes."""
    installed = replace(INSTALLED, priority_class_name="nodegauge-probe")
    policy = make_policy().of({"podTemplate": {"priorityClassName": "mine"}})
    assert pod(defaults=installed, policy=policy)["spec"]["priorityClassName"] == "nodegauge-nccl"
    without = replace(installed, nccl_priority_class_name="")
    assert "priorityClassName" not in pod(defaults=without, policy=policy)["spec"], "nor of anybody else"


@NCCL_PROFILES
def test_neither_has_more_rights_than_a_health_probe(probe: str) -> None:
    """No token, no root, no capabilities, read-only root, seccomp, bounded in CPU, memory and time."""
    health, made = pod(names.PROBE_HEALTH), pod(probe)
    assert container(made)["securityContext"] == container(health)["securityContext"]
    for key in ("securityContext", "automountServiceAccountToken", "restartPolicy", "affinity"):
        assert made["spec"][key] == health["spec"][key], key
    assert made["spec"]["activeDeadlineSeconds"] > 0
    assert {"cpu", "memory"} <= container(made)["resources"]["limits"].keys()
    assert not {"hostPID", "hostIPC", "hostNetwork", "nodeName"} & made["spec"].keys()
    assert all("emptyDir" in volume for volume in made["spec"]["volumes"])


@NCCL_PROFILES
def test_no_cordon_is_tolerated(probe: str) -> None:
    """Nor a node that is not ready or on its way out; what the node carries besides is."""
    node = NODE.cordoned().tainted(
        "nvidia.com/gpu=present", "team=a:NoExecute", "ToBeDeletedByClusterAutoscaler"
    )
    wanted = {"nvidia.com/gpu", "team", *names.NODE_TAINTS}
    everywhere = make_policy().of({"podTemplate": {"tolerations": [{"operator": "Exists"}]}})
    for policy in (make_policy(), everywhere):
        assert tolerated(pod(probe, node, policy)) == wanted


@NCCL_PROFILES
def test_tolerations_of_the_policy_are_all_there_are(probe: str) -> None:
    """And ours: a node that is gated has to be measured."""
    policy = make_policy().of({"podTemplate": {"tolerations": [{"key": "team", "operator": "Exists"}]}})
    assert tolerated(pod(probe, NODE.tainted("other"), policy)) == {"team", *names.NODE_TAINTS}


def test_the_policy_says_how_to_measure() -> None:
    """Engine, environment and time; the probe ends by itself before the kubelet ends it."""
    policy = make_policy().of(
        {
            "probes": {
                "nccl": {
                    "engine": "nccl-tests",
                    "processes": "one",
                    "deadline": "10m",
                    "environment": {"NCCL_ALGO": "Ring"},
                }
            }
        }
    )
    made = pod(policy=policy)
    assert container(made)["command"] == ["python", "-m", "nodegauge_probes", "nccl"]
    assert container(made)["args"] == [
        "--engine=nccl-tests",
        "--processes=one",
        "--deadline=540",
        '--environment={"NCCL_ALGO":"Ring"}',
    ]
    assert made["spec"]["activeDeadlineSeconds"] == 600
    assert container(pod(names.PROBE_PULL, policy=policy))["args"] == ["--engine=nccl-tests"]


def test_resources_are_the_users_but_for_the_gpus() -> None:
    """On fewer GPUs the number would be another one."""
    policy = make_policy().of(
        {"podTemplate": {"ncclResources": {"requests": {"cpu": "2"}, "limits": {names.GPU_RESOURCE: "1"}}}}
    )
    installed = replace(INSTALLED, nccl_resources={"requests": {"cpu": "3", "memory": "1Gi"}})
    resources = container(pod(policy=policy, defaults=installed))["resources"]
    assert resources["requests"]["cpu"] == "2"
    assert resources["requests"]["memory"] == "1Gi"
    assert resources["limits"][names.GPU_RESOURCE] == "8"


def test_arguments_are_what_the_probe_takes() -> None:
    """The probe's own parser reads every one of them."""
    for probe in (names.PROBE_PULL, names.PROBE_NCCL):
        made = container(pod(probe))
        module, name = made["command"][2:]
        assert (module, name) == ("nodegauge_probes", probe)
        settings = parse([name, *made["args"]], env(pod(probe)), probes=[name], engines=list(ENGINES))
        assert settings.probe == probe
