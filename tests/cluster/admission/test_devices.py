"""The admission policy leaves the operator rules of its own, each for one device, that evict nobody."""

from typing import Any

import pytest

from support import dra
from support.guarded import Guarded, refusal

pytestmark = pytest.mark.cluster

OURS = {"nodegauge.dev/device-rule": "true"}
DEVICE = {"driver": dra.DRIVER, "pool": "gpu-1", "device": "gpu-3"}
TAINT = {"key": "nodegauge.dev/unhealthy", "value": "gpu-lost", "effect": "NoSchedule"}
FOREIGN: dict[str, tuple[dict[str, Any], str]] = {
    "another name": ({"name": "of-others"}, "only its own"),
    "no label": ({"labels": {}}, "only its own"),
    "all GPUs of the cluster": ({"deviceSelector": {"driver": dra.DRIVER}}, "one device"),
    "another driver": ({"deviceSelector": DEVICE | {"driver": "nic.example.com"}}, "one device"),
    "an eviction": ({"taint": TAINT | {"effect": "NoExecute"}}, "evict nobody"),
    "another taint": ({"taint": TAINT | {"key": "example.com/t"}}, "its own causes"),
}


def rule(name: str = "nodegauge-gpu-1-x", **changed: Any) -> dict[str, Any]:
    metadata = {"name": name, "labels": changed.pop("labels", OURS)}
    return {"metadata": metadata, "spec": {"deviceSelector": DEVICE, "taint": TAINT} | changed}


def test_a_rule_for_one_device_passes_and_goes_again(guarded: Guarded) -> None:
    path = dra.rules_path(guarded.admin)
    guarded.operator.create(path, rule())
    guarded.operator.delete(f"{path}/nodegauge-gpu-1-x")


@pytest.mark.parametrize("what", FOREIGN)
def test_any_other_is_refused(guarded: Guarded, what: str) -> None:
    changed, why = FOREIGN[what]
    path = dra.rules_path(guarded.admin)
    assert why in refusal(guarded.operator.create, path, rule(**changed))


def test_a_strangers_rule_stays(guarded: Guarded) -> None:
    path, name = dra.rules_path(guarded.admin), "nodegauge-of-a-stranger"
    guarded.admin.create(path, rule(name, labels={}))
    assert "only its own" in refusal(guarded.operator.delete, f"{path}/{name}")
    guarded.admin.delete(f"{path}/{name}")
