"""What the collection says of a host's GPUs, from documents that have them by column."""

from typing import Any

import pytest

from nodegauge_contract.columns import fold

H100, LOST = "NVIDIA H100 80GB HBM3", {"unavailable": "the GPU is lost, and answers nothing any more"}
NAMES: dict[str, list[Any]] = {
    "all alike": [H100] * 8,
    "one lost": [*[H100] * 7, LOST],
    "each its own": ["A", "B", LOST],
    "one not read": [*[H100] * 7, {"unavailable": "not read"}],
    "all lost": [LOST] * 4,
    "none": [],
}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("judged", [None, 8], ids=["unjudged", "a count in the judgement"])
def test_facts_name_each_gpu_of_the_document(plugin: Any, names: list[Any], judged: int | None) -> None:
    """Whether a value is every GPU's, stands in a list, or is written once; null where it was not read."""
    gpus = [{"index": i, "name": name, "serial": str(i), "clocks": {"sm": 1}} for i, name in enumerate(names)]
    seen = plugin("plugin_utils.probe_action").facts(fold({"gpus": gpus}), {"gpus": judged})
    known = [name if isinstance(name, str) else None for name in names]
    assert [gpu.get("name") for gpu in seen["gpus"]] == known
    assert [(gpu["index"], gpu["serial"]) for gpu in seen["gpus"]] == [(i, str(i)) for i in range(len(names))]
    assert (seen["gpu_count"], seen["models"]) == (len(names), sorted({name for name in known if name}))
