"""Whether the API server is new enough is asked of the operator's own token, never of a version number."""

from __future__ import annotations

import pytest

from nodegauge_operator.core.reading_admission import EXTRA
from nodegauge_operator.kube.errors import Forbidden
from nodegauge_operator.kube.tokens import nodeless
from support.client import AnsweringClient, Call, Object

POD, NODE = {f"{EXTRA}/pod-name": ["nodegauge-0"]}, {f"{EXTRA}/node-name": ["system-1"]}


@pytest.mark.parametrize(("extra", "refused"), [(POD | NODE, False), (POD, True), ({}, False), (None, False)])
async def test_a_pods_token_without_its_node_is_refused(extra: Object | None, refused: bool) -> None:
    def answer(call: Call) -> Object:
        if extra is None:
            raise Forbidden("as the test says", status=403)
        return {"status": {"userInfo": {"username": "operator", "extra": extra}}}

    assert ("1.32 or newer" in await nodeless(AnsweringClient(answer))) is refused
