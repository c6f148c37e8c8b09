"""The health probe against a real driver."""

from __future__ import annotations

import time

from nodegauge_contract import decode, render_matrix, text
from nodegauge_contract.reading import PART_BYTES
from nodegauge_judge import Verdict, judge_health
from support.gpu_tools import probe


def test_every_gpu_is_read(uuids: list[str]) -> None:
    """Identity, memory and temperature of each; nothing hangs and nothing crashes."""
    began = time.monotonic()
    result = probe("health", "--window", "1")
    assert time.monotonic() - began < 20
    assert result.problem is None
    assert [gpu.uuid for gpu in result.gpus] == uuids
    for gpu in result.gpus:
        assert gpu.error is None
        assert isinstance(gpu.name, str)
        assert isinstance(gpu.pci, str)
        assert isinstance(gpu.memory_mib, int)
        assert isinstance(gpu.temperature.gpu, int)


def test_a_real_result_fits_its_part_of_a_reading(uuids: list[str]) -> None:
    """With everything that a real driver answers; it is read as it was written."""
    result = probe("health", "--window", "1")
    document = text(result)
    assert len(document) <= PART_BYTES["health"]
    assert decode(document) == result
    assert [gpu.uuid for gpu in result.gpus] == uuids


def test_a_real_result_can_be_judged(uuids: list[str]) -> None:
    """A verdict that is not unknown, and a matrix with a row for each GPU."""
    result = probe("health", "--window", "1")
    judgement = judge_health(result)
    assert judgement.verdict is not Verdict.UNKNOWN, judgement.summary
    assert render_matrix(result).count("\nGPU") == len(uuids)
