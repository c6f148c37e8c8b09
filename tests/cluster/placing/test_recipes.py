"""The recipes for schedulers that are read and not run fit their published schemas."""

import re

import pytest
import yaml

from support.chart import ROOT
from testbed.errors import ApiError
from testbed.rest import CRDS, Object, Rest

pytestmark = pytest.mark.cluster

TEXT = (ROOT / "docs" / "placement.md").read_text("utf-8").partition("### Volcano")[2]
[BLOCK, *_] = re.findall(r"```yaml\n(.*?)```", TEXT, re.S)


@pytest.mark.parametrize("body", list(yaml.safe_load_all(BLOCK)), ids=lambda body: str(body["kind"]))
def test_a_recipe_fits_its_schema(api: Rest, body: Object) -> None:
    plural = {"HyperNode": "hypernodes", "Topology": "topologies"}[body["kind"]]
    crd = yaml.safe_load((ROOT / "tests" / "fixtures" / "schedulers" / f"{plural}.yaml").read_text("utf-8"))
    path = f"/apis/{body['apiVersion']}/{plural}"
    api.define(crd)
    try:
        odd = body | {"spec": body["spec"] | {"odd": 1}}
        with pytest.raises(ApiError, match="unknown field"):
            api.create(f"{path}?fieldValidation=Strict", odd)
        made = api.create(f"{path}?fieldValidation=Strict", body)
        assert made["spec"] == body["spec"]
    finally:
        api.delete(f"{CRDS}/{crd['metadata']['name']}")
