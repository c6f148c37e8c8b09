"""The BMC reader's objects on a real API server: applied whole, marked as failed, listed, shown, deleted."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from nodegauge_bmc.connection import Access
from nodegauge_bmc.inventory import Target
from nodegauge_contract.chassis import ChassisReading, Supply
from nodegauge_contract.values import Unavailable
from nodegauge_operator.api.chassis import parse_chassis
from nodegauge_operator.bmc_reader.objects import PATH, Objects
from nodegauge_operator.bmc_reader.outcome import failure, status_of
from nodegauge_operator.kube.client import connect
from support.cluster_under_test import install_crds
from testbed.controlplane import ControlPlane
from testbed.rest import Rest

pytestmark = pytest.mark.cluster
NODE = "bmc-reader-test"
NOW = 1_800_000_000.0


@pytest.fixture
async def objects(control_plane: ControlPlane, api: Rest) -> AsyncIterator[Objects]:
    """The reader's adapter with the operator's client, on an API server with the CRDs and one node."""
    install_crds(api)
    api.create("/api/v1/nodes", {"metadata": {"name": NODE, "labels": {"bmc-test": "yes"}}})
    client = await connect(environ={"KUBECONFIG": str(control_plane.kubeconfig)})
    yield Objects(client, instance="release.test")
    await client.close()
    api.delete(f"/api/v1/nodes/{NODE}")


def reading(**fields: Any) -> ChassisReading:
    """A reading with a supply that has values of every kind."""
    supply = Supply(name="PSU 1", health="OK", capacity_watts=3300.5, input_volts=Unavailable("not read"))
    return ChassisReading(supplies=[supply], lists_supplies=True, watts=900.4, **fields)


async def test_the_life_of_an_object(objects: Objects, api: Rest) -> None:
    """What was applied is read back; a later reading leaves nothing of it; a failed try keeps it."""
    nodes = await objects.nodes("bmc-test=yes")
    assert list(nodes) == [NODE]
    target = Target(node=NODE, node_uid=nodes[NODE], access=Access(url="https://10.0.0.1"))

    await objects.failed(NODE, nodes[NODE], failure("no connection", address=target.address, now=NOW))
    assert (await objects.number(NODE), list(await objects.ours())) == (0, [NODE])
    for number, document in ((1, reading(vendor="Dell", product="XE9680")), (2, reading(vendor="HPE"))):
        status = status_of(document, address=target.address, now=NOW)
        await objects.write(target, replace(status, number=number))
        stored = parse_chassis(api.get(f"{PATH}/{NODE}"))
        assert stored.left_out == ()
        assert stored.reading == document
        assert (stored.status.number, stored.status.problem, stored.status.watts) == (number, "", 900)
    await objects.failed(NODE, nodes[NODE], failure("no answer", address=target.address, now=NOW + 60))
    failed = parse_chassis(api.get(f"{PATH}/{NODE}"))
    assert failed.reading == reading(vendor="HPE")
    assert (failed.status.problem, failed.status.number, await objects.number(NODE)) == ("no answer", 2, 2)
    assert (failed.status.read_at, failed.status.tried_at) == ("2027-01-15T08:00:00Z", "2027-01-15T08:01:00Z")

    uid = (await objects.ours())[NODE]
    await objects.delete(NODE, "another")
    assert list(await objects.ours()) == [NODE]
    await objects.delete(NODE, uid)
    await objects.delete(NODE, uid)
    assert await objects.ours() == {}
