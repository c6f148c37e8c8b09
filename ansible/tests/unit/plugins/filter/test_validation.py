"""The verdict on one host."""

from __future__ import annotations

import pytest
from ansible_collections.nodegauge.gpu.plugins.filter.validation import validation

HEALTH = {"verdict": "pass", "summary": "2x Tesla T4: healthy.", "judge_version": "0.1.0"}


@pytest.mark.parametrize(
    ("wanted", "stated", "verdict"), [(2, None, "pass"), (4, None, "fail"), (0, 2, "pass"), (0, None, "warn")]
)
def test_a_host_passes_only_with_a_number_of_gpus_that_something_tells(wanted, stated, verdict):
    """The inventory, the policy, or the boards of its model."""
    facts = {"gpus": [{"name": "Tesla T4"}] * 2, "gpus_expected": stated}
    result = validation({"health": {**HEALTH, "facts": facts}}, "gpu-1", expected={"gpus": wanted})
    assert result["verdict"] == verdict
