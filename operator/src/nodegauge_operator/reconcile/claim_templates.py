"""The templates of the probes' claims, in the operator's namespace: there while a node needs them.

Their spec cannot be changed, so one that differs is made anew; pods keep the claims that they have.  The API
server refuses access for admins in a namespace without its label, which no Helm chart can set.
"""

from __future__ import annotations

import logging
from typing import Any

from nodegauge_operator import names
from nodegauge_operator.core.driver_access import Needs, claim_template
from nodegauge_operator.core.model import ProbeDefaults
from nodegauge_operator.kube import slices
from nodegauge_operator.kube.client import Client
from nodegauge_operator.kube.errors import Forbidden, KubeError, NotFound, Refused, WebhookFailed

log = logging.getLogger("nodegauge.claims")


class ClaimTemplates:
    """Keeps one template for each need, or none."""

    def __init__(self, *, client: Client, defaults: ProbeDefaults) -> None:
        self.problem = ""
        """Why the API server refuses one; empty if it does not, or gave no answer."""
        self._client = client
        self._defaults = defaults

    async def keep(self, *, wanted: bool) -> None:
        """Make what is missing, and delete what nobody wants.  Raises `KubeError`."""
        manifests = [claim_template(self._defaults, needs=needs) for needs in (Needs.DRIVER, Needs.GPUS)]
        missing = {manifest["metadata"]["name"]: manifest for manifest in manifests if wanted}
        where = {"namespace": self._defaults.namespace}
        for made in await self._listed():
            name = made["metadata"]["name"]
            if name in missing and made["spec"] == missing[name]["spec"]:
                del missing[name]
                continue
            await slices.delete_template(self._client, name=name, uid=made["metadata"]["uid"], **where)
        problem = ""
        for name, manifest in missing.items():
            try:
                await slices.create_template(self._client, manifest)
            except (Refused, Forbidden, WebhookFailed) as error:
                problem = problem or self._explained(name, error)
        if problem and problem != self.problem:
            log.warning("%s", problem)
        self.problem = problem

    async def _listed(self) -> list[dict[str, Any]]:
        """Those of this release; none where the API server does not serve them, or lets us see none."""
        where = {"namespace": self._defaults.namespace, "instance": self._defaults.instance}
        try:
            return await slices.templates(self._client, **where)
        except (NotFound, Forbidden):
            return []

    def _explained(self, name: str, error: KubeError) -> str:
        text = f"the API server refuses the ResourceClaimTemplate {name}: {error}"
        if names.ADMIN_ACCESS not in str(error):
            return text
        command = f"kubectl label namespace {self._defaults.namespace} {names.ADMIN_ACCESS}=true"
        return f"the namespace lets no claim share GPUs with jobs: {command} ({text})"
