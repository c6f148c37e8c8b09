"""What `testbed up` adds to a control plane: the demo's machines with their BMCs, and nodegauge, which has
read each of them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from testbed.cluster import Testbed
from testbed.demo.fleet import BUSY_NODE, FLEET, STARVED_NODE, VALUES
from testbed.hardware import Hardware
from testbed.hardware.loads import following
from testbed.hardware.starving import starving
from testbed.marks import probe_of
from testbed.rest import Object, Rest
from testbed.wait import wait_for

NAMESPACE = "nodegauge"
CHART = Path(__file__).resolve().parents[2] / "charts" / "nodegauge"
REPORTS = "/apis/nodegauge.dev/v1alpha1/nodereports"
SYSTEM_NODE = "system-1"
BMCS = "bmc"
"""Folder of a testbed with an entry for each BMC, as the chart's Secret has them."""
EVERY_PROBE = Path(__file__).with_name("playground.yaml")
DEADLINE_SECONDS = 600.0
"""How long one thing may take.  Long: a busy machine is slow, and only a failure waits."""

Say = Callable[[str], object]


def profiles(names: Collection[str] = FLEET) -> dict[str, str | None]:
    """The demo's machines of these names, and the node without GPUs on which the operator runs."""
    return {SYSTEM_NODE: None} | {name: FLEET[name].profile for name in names}


@contextmanager
def working(machines: Mapping[str, Hardware]) -> Iterator[None]:
    """Those of the demo have the fault that they have there, and those at work their load."""
    with ExitStack() as stack:
        for name, hardware in machines.items():
            if (machine := FLEET[name]).fault:
                hardware.fault(machine.fault, **machine.parameters)
        if BUSY_NODE in machines:
            machines[BUSY_NODE].load(90)
        if STARVED_NODE in machines:
            stack.enter_context(starving(machines[STARVED_NODE], busy=34))
        yield


def make_namespace(api: Rest) -> None:
    """nodegauge's, in which claims of probes may share devices with jobs."""
    label = {"resource.kubernetes.io/admin-access": "true"}
    api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": label}})


def install(testbed: Testbed, values: str, *more: str, verb: str = "install") -> None:
    """nodegauge by its chart, with these values."""
    file = testbed.directory / "helm-values.yaml"
    file.write_text(values)
    command = [verb, "nodegauge", str(CHART), "--namespace", NAMESPACE, "--values", str(file), *more]
    testbed.helm(*command, "--wait", "--timeout", f"{DEADLINE_SECONDS:.0f}s")


def tell_of_bmcs(api: Rest, folder: Path) -> None:
    """The Secret by which the BMC reader finds them."""
    data = {file.name: base64.b64encode(file.read_bytes()).decode() for file in folder.iterdir()}
    api.create(
        f"/api/v1/namespaces/{NAMESPACE}/secrets", {"metadata": {"name": "nodegauge-bmc"}, "data": data}
    )


@contextmanager
def furnished(testbed: Testbed, say: Say) -> Iterator[None]:
    """Everything stays as long as the block."""
    from testbed.hardware.bmcs import bmcs  # no command but this one serves anything

    gpus = [name for name, spec in testbed.nodes.specs().items() if spec.profile]
    machines = {name: testbed.hardware(name) for name in gpus}
    api, folder = testbed.control_plane.rest(), testbed.directory / BMCS
    with ExitStack() as stack:
        stack.enter_context(working(machines))
        stack.enter_context(following(*machines.values()))
        with_bmc = {name: one for name, one in machines.items() if one.profile.chassis is not None}
        stack.enter_context(bmcs(with_bmc, folder))
        say(f"{len(with_bmc)} BMCs serve Redfish; helm install nodegauge")
        make_namespace(api)
        tell_of_bmcs(api, folder)
        install(testbed, VALUES, "--values", str(EVERY_PROBE))
        say("the operator runs; waiting until it has read every node")
        _await_readings(api, gpus, say)
        yield


def reports(api: Rest) -> dict[str, Object]:
    """The status of each, by node, in one request."""
    return {one["metadata"]["name"]: one.get("status") or {} for one in api.get(REPORTS)["items"]}


def _await_readings(api: Rest, names: Collection[str], say: Say) -> None:
    before = 0

    def read() -> bool:
        nonlocal before
        seen = reports(api)
        done = sum(bool(probe_of(seen.get(name, {})).get("lastRun")) for name in names)
        if done > before:
            say(f"{done} of {len(names)} nodes are read")
        before = done
        return done == len(names)

    wait_for(read, seconds=DEADLINE_SECONDS, every=0.5, what="a reading of every node")
