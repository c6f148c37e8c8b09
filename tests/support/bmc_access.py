"""Simulated BMCs over HTTPS with a certificate, and readings of them with the right access or another one."""

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import trustme

from nodegauge_bmc.connection import Access, BmcError
from nodegauge_bmc.redfish import read
from nodegauge_contract.chassis import ChassisReading
from nodegauge_judge import Severity
from nodegauge_judge.chassis.judge import ChassisJudgement
from testbed.hardware.bmc import PASSWORD, USER, Behaviour, Bmc, serving, tree


class Bmcs:
    """`async with bmcs("hpe", delay=0.2) as bmc`: the recorded machine, or these resources, behaving so."""

    def __init__(self, authority: trustme.CA, ca: str) -> None:
        self._authority, self.ca = authority, ca

    def __call__(
        self, resources: str | dict[str, Any] = "hpe", **behaviour: Any
    ) -> AbstractAsyncContextManager[Bmc]:
        shown = tree(resources) if isinstance(resources, str) else resources
        return serving(shown, authority=self._authority, behaviour=Behaviour(**behaviour))

    async def read(self, bmc: Bmc, *, deadline: float = 30.0, **changed: Any) -> ChassisReading:
        right = {"url": bmc.url, "user": USER, "password": PASSWORD, "ca": self.ca}
        return await read(Access(**right | changed), deadline=deadline)

    async def error(self, bmc: Bmc, **changed: Any) -> str:
        with pytest.raises(BmcError) as caught:
            await self.read(bmc, **changed)
        assert PASSWORD not in str(caught.value)
        return str(caught.value)

    async def reading(self, resources: str | dict[str, Any], **behaviour: Any) -> ChassisReading:
        async with self(resources, **behaviour) as bmc:
            return await self.read(bmc)


def codes(judgement: ChassisJudgement) -> set[str]:
    return {one.code for one in judgement.findings if one.severity is not Severity.INFO}
