"""DeviceTaintRules, in whichever version of `resource.k8s.io` the API server has them.

Kubernetes 1.37 serves v1; 1.36 serves v1beta2 where the cluster enables it.  What is served is asked, and
never followed from a version number.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote

from nodegauge_operator import names
from nodegauge_operator.core import device_rule
from nodegauge_operator.core.device_rule import GROUP, PLURAL, DeviceRule
from nodegauge_operator.kube.client import MERGE, Client, manager
from nodegauge_operator.kube.deletion import delete_this
from nodegauge_operator.kube.errors import AlreadyExists, KubeError, NotFound, Refused


async def served(client: Client) -> str:
    """The API version, such as `resource.k8s.io/v1`; empty if there is none.  Raises `KubeError`."""
    try:
        group = await client.call("GET", f"/apis/{GROUP}")
        for version in (item["groupVersion"] for item in group.get("versions") or ()):
            resources = (await client.call("GET", f"/apis/{version}")).get("resources") or ()
            if any(resource["name"] == PLURAL for resource in resources):
                return str(version)
    except NotFound:
        pass  # the group, or a version that has just gone
    return ""


async def listable(client: Client) -> str:
    """The same, and we may list them; empty also if the API server gives no answer."""
    try:
        if api := await served(client):
            await client.call("GET", f"/apis/{api}/{PLURAL}", query={"limit": 1})
    except KubeError:
        return ""
    return api


async def each(client: Client, *, api: str) -> AsyncIterator[DeviceRule]:
    """Every rule of ours.  Raises `KubeError`."""
    async for page in client.pages(f"/apis/{api}/{PLURAL}", label_selector=names.DEVICE_RULE):
        for item in page.get("items") or ():
            if (rule := device_rule.parse(item)) is not None:
                yield rule


async def put(client: Client, rule: DeviceRule, *, api: str) -> DeviceRule:
    """Make it, or change the one that stands; `Conflict` if that has changed since.

    A rule that another process has just made comes back as it is; a stranger's of this name is `Refused`.
    """
    path, body = f"/apis/{api}/{PLURAL}", device_rule.body(rule, api_version=api)
    one = f"{path}/{quote(rule.name)}"
    try:
        if rule.resource_version:
            answer = await client.call("PATCH", one, query=manager(), body=body, content_type=MERGE)
        else:
            answer = await client.call("POST", path, query=manager(), body=body)
    except AlreadyExists:
        answer = await client.call("GET", one)
    written = device_rule.parse(answer)
    if written is None:
        raise Refused(f"the {device_rule.KIND} {rule.name} is not nodegauge's: delete it, or rename it")
    return written


async def get(client: Client, rule: DeviceRule, *, api: str) -> DeviceRule | None:
    """The rule as it stands now; None if it is gone, or is no longer ours."""
    try:
        return device_rule.parse(await client.call("GET", f"/apis/{api}/{PLURAL}/{quote(rule.name)}"))
    except NotFound:
        return None


async def delete(client: Client, rule: DeviceRule, *, api: str) -> None:
    """Delete exactly this rule; a newer one of the same name is left alone."""
    await delete_this(client, f"/apis/{api}/{PLURAL}/{quote(rule.name)}", uid=rule.uid)
