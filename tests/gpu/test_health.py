"""The health probe against a real driver."""

import time

from nodegauge_contract import decode, render_matrix, text
from nodegauge_contract.reading import PART_BYTES
from nodegauge_judge import Verdict, judge_health
from support.gpu_tools import probe


def test_every_gpu_is_read_and_judged(uuids: list[str]) -> None:
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
    document = text(result)
    assert len(document) <= PART_BYTES["health"]
    assert decode(document) == result
    judgement = judge_health(result)
    assert judgement.verdict is not Verdict.UNKNOWN, judgement.summary
    assert render_matrix(result).count("\nGPU") == len(uuids)
