"""The pure rules of the simulated kubelet: phases, images, environment, the file of nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.kubelet.context import Hardware
from testbed.kubelet.desired import DesiredFile, NodeSpec
from testbed.kubelet.environment import expand, hook_environment, sees_driver
from testbed.kubelet.errors import ImageMissing, StartFailed
from testbed.kubelet.images import Image, find
from testbed.kubelet.status import Record, Running, Terminated, Waiting, conditions, phase

GOOD = Terminated(code=0, reason="Completed")
BAD = Terminated(code=1, reason="Error")
UP = Running("2026-01-01T00:00:00Z")


def record(state: Waiting | Running | Terminated, **more: Any) -> Record:
    """A container in this state."""
    return Record("main", "image", state, **more)


@pytest.mark.parametrize(
    ("records", "over", "expected"),
    [
        ([record(Waiting())], False, "Pending"),
        ([record(UP), record(Waiting())], False, "Pending"),
        ([record(UP)], False, "Running"),
        ([record(Waiting("CrashLoopBackOff"), last=BAD)], False, "Running"),
        ([record(GOOD, container_id="testbed://1")], False, "Running"),
        ([record(Terminated(code=128, reason="StartError"))], False, "Pending"),
        ([record(GOOD)], True, "Succeeded"),
        ([record(GOOD), record(BAD)], True, "Failed"),
    ],
)
def test_phase(records: list[Record], over: bool, expected: str) -> None:
    """A pod's phase follows its containers, and is final only when none will run again."""
    assert phase(records, over=over) == expected


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    """lastTransitionTime moves with the status and with nothing else."""
    before = conditions("Running", [record(UP)], before=[], now="t1")
    same = conditions("Running", [record(UP)], before=before, now="t2")
    changed = conditions("Running", [record(UP, ready=True)], before=same, now="t3")
    times = [
        {c["type"]: c["lastTransitionTime"] for c in result}["Ready"] for result in (before, same, changed)
    ]
    assert times == ["t1", "t1", "t3"]


@pytest.mark.parametrize(
    "reference",
    ["group/name", "group/name:1", "registry.example/group/name:1", "localhost:5000/a/group/name@sha256:00"],
)
def test_an_image_is_found_under_any_registry_and_tag(reference: str) -> None:
    """Registry prefix, tag and digest do not matter."""
    image = Image()
    assert find({"group/name": image}, reference, pull_policy="Always") is image


@pytest.mark.parametrize("reference", ["name", "group/name2", "group/other", "group"])
def test_no_other_image_is_taken_for_it(reference: str) -> None:
    """A part of a name is not the name."""
    with pytest.raises(ImageMissing):
        find({"group/name": Image()}, reference, pull_policy="Always")


def test_an_argv_needs_a_program_of_the_image() -> None:
    """Command overrides the entrypoint, args follow either, and an unknown program cannot start."""
    image = Image(entrypoint=("run", "fast"), programs={"run": ("/bin/run",), "walk": ("/bin/w", "-v")})
    assert image.argv([], ["x"]) == ["/bin/run", "fast", "x"]
    assert image.argv(["/usr/bin/walk"], ["x"]) == ["/bin/w", "-v", "x"]
    with pytest.raises(StartFailed, match="not found"):
        image.argv(["fly"], [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)-$(B)", "1-2"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$(NONE)", "$(NONE)"),
        ("$A $", "$A $"),
        ("$(A", "$(A"),
    ],
)
def test_references_expand_as_the_api_defines(text: str, expected: str) -> None:
    """$(NAME) is replaced, $$ escapes, and what is unknown stays as written."""
    assert expand(text, {"A": "1", "B": "2"}) == expected


@pytest.mark.parametrize(
    ("visible", "limit", "runtime", "expected"),
    [
        ("all", None, None, True),
        ("0,1", None, "nvidia", True),
        ("all", None, "runc", False),
        ("void", None, None, False),
        ("none", None, None, False),
        (None, None, None, False),
        (None, "2", None, True),
        ("void", "1", "runc", True),
        ("all", "0", "runc", False),
    ],
)
def test_who_sees_the_driver(
    visible: str | None, limit: str | None, runtime: str | None, expected: bool
) -> None:
    """Whoever names devices under NVIDIA's runtime, or requests GPUs."""
    container = {"resources": {"limits": {"nvidia.com/gpu": limit}}} if limit else {}
    pod = {"spec": {"runtimeClassName": runtime} if runtime else {}}
    env = {"NVIDIA_VISIBLE_DEVICES": visible} if visible is not None else {}
    assert sees_driver(container, pod, env) is expected


def test_every_pod_of_a_node_reads_its_sysfs_but_not_its_driver() -> None:
    """The hook names /sys and /proc for all, the driver for those that get it, before other libraries."""
    environment = {"LD_LIBRARY_PATH": "/drv", "NODEGAUGE_SIM_HARDWARE": "/hw", "NODEGAUGE_SYSFS": "/hw/sys"}
    hardware = Hardware(gpu_count=1, gpu_product="x", gpu_capacity=1, environment=environment)
    log, env = Path("/log"), {"LD_LIBRARY_PATH": "/own"}
    without = hook_environment(hardware, driver=False, env=env, termination_log=log)
    assert without == {"NODEGAUGE_TERMINATION_LOG": "/log", "NODEGAUGE_SYSFS": "/hw/sys"}
    with_driver = hook_environment(hardware, driver=True, env=env, termination_log=log)
    assert with_driver["LD_LIBRARY_PATH"] == "/drv:/own"
    assert with_driver["NODEGAUGE_SIM_HARDWARE"] == "/hw"


def test_the_file_of_nodes_keeps_what_is_written(tmp_path: Path) -> None:
    """Nodes and their hardware, and how often they were changed."""
    file = DesiredFile(tmp_path)
    hardware = Hardware(gpu_count=2, gpu_product="x", gpu_capacity=8, environment={"A": "b"})
    node = NodeSpec(profile="p", hardware=hardware)
    with file.change() as nodes:
        nodes["one"] = node
    assert (file.read().nodes, file.read().revision) == ({"one": node}, 1)
