"""What the collection says of a host's GPUs, from documents that have them by column."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nodegauge_contract.columns import fold
from support.playbook import stage

Facts = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]
H100, LOST = "NVIDIA H100 80GB HBM3", {"unavailable": "the GPU is lost, and answers nothing any more"}
NAMES: dict[str, list[Any]] = {
    "all alike": [H100] * 8,
    "one lost": [*[H100] * 7, LOST],
    "each its own": ["A", "B", LOST],
    "one not read": [*[H100] * 7, {"unavailable": "not read"}],
    "all lost": [LOST] * 4,
    "none": [],
}


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Facts]:
    """The facts of the staged collection."""
    folder = tmp_path_factory.mktemp("facts")
    stage(folder)
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        module = importlib.import_module(
            "ansible_collections.nodegauge.gpu.plugins.plugin_utils.probe_action"
        )
        yield module.facts
    for name in {name for name in sys.modules if name.startswith("ansible_collections")} - before:
        del sys.modules[name]


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("judged", [None, 8], ids=["unjudged", "a count in the judgement"])
def test_facts_name_each_gpu_of_the_document(facts: Facts, names: list[Any], judged: int | None) -> None:
    """Whether a value is every GPU's, stands in a list, or is written once; null where it was not read."""
    gpus = [{"index": i, "name": name, "serial": str(i), "clocks": {"sm": 1}} for i, name in enumerate(names)]
    seen = facts(fold({"gpus": gpus}), {"gpus": judged})
    known = [name if isinstance(name, str) else None for name in names]
    assert [gpu.get("name") for gpu in seen["gpus"]] == known
    assert [(gpu["index"], gpu["serial"]) for gpu in seen["gpus"]] == [(i, str(i)) for i in range(len(names))]
    assert (seen["gpu_count"], seen["models"]) == (len(names), sorted({name for name in known if name}))
