"""The load probe against a real driver and its libcuda."""

import ctypes
from collections.abc import Callable
from functools import cache

import pytest

from nodegauge_contract import LoadResult, Result, Unavailable, text
from nodegauge_contract.reading import PART_BYTES
from nodegauge_probes.load.cuda import LIBRARY
from support.gpu_tools import probe, wait_until_free

LANE_GBPS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""Of one PCIe lane, one way."""
BIG_CARD_MW = 200_000
Run = Callable[[str], Result]


@pytest.fixture(scope="session")
def loaded(uuids: list[str]) -> Run:
    """`loaded("30")`: the result of so many seconds of load, on idle GPUs; one run for all tests."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        pytest.skip(f"no libcuda: {error}")

    @cache
    def run(seconds: str) -> Result:
        result = probe("load", "--seconds", seconds, seconds=300)
        assert result.load is not None
        if result.load.skipped:
            pytest.skip(f"not loaded: {result.load.skipped}: {result.load.message}")
        return result

    return run


def measured(result: Result) -> LoadResult:
    assert result.load is not None
    assert (result.problem, result.load.ended) == (None, "done"), result.load.message
    return result.load


def test_big_cards_reach_90_per_cent_of_their_limit_within_20_s(loaded: Run) -> None:
    """Small ones may be limited by something else; what they reach is printed."""
    for gpu in measured(loaded("30")).gpus:
        print(f"GPU {gpu.index}: {gpu.steady_mw} of {gpu.limit_mw} mW, 90 % after {gpu.reached_ms} ms")
        assert isinstance(gpu.limit_mw, int)
        if gpu.limit_mw >= BIG_CARD_MW:
            assert isinstance(gpu.reached_ms, int), gpu.reached_ms
            assert gpu.reached_ms <= 20_000


def test_the_results_are_those_of_the_cpu_and_samples_come_twice_a_second(loaded: Run) -> None:
    load = measured(loaded("30"))
    assert isinstance(load.hz, int | float)
    assert load.hz >= 2
    for gpu in load.gpus:
        assert gpu.samples >= 50
        assert gpu.checksum == gpu.expected
        assert gpu.checks > 50
        assert (gpu.mismatches, gpu.memory_mismatches) == (0, 0)


def test_the_checksum_is_the_same_in_five_runs(loaded: Run) -> None:
    checksums = {gpu.kernel: {gpu.checksum} for gpu in measured(loaded("30")).gpus}
    for _ in range(4):
        for gpu in measured(probe("load", "--seconds", "2", seconds=120)).gpus:
            checksums[gpu.kernel].add(gpu.checksum)
    assert {len(each) for each in checksums.values()} == {1}, checksums


def test_copies_are_plausible(loaded: Run) -> None:
    """Between half of the link's rate and the whole of it; memory is faster than the link."""
    for gpu in measured(loaded("30")).gpus:
        print(f"GPU {gpu.index}: {gpu}")
        assert isinstance(gpu.generation, int)
        assert isinstance(gpu.width, int)
        link = LANE_GBPS[gpu.generation] * gpu.width
        for gbps in (gpu.h2d_gbps, gpu.d2h_gbps):
            assert isinstance(gbps, int | float)
            assert 0.4 * link < gbps <= link
        assert isinstance(gpu.memory_gbps, int | float)
        assert gpu.memory_gbps > gpu.h2d_gbps
        assert isinstance(gpu.tflops, int | float)


def test_the_result_fits_its_part_of_a_reading_and_nothing_computes_afterwards(
    loaded: Run, uuids: list[str]
) -> None:
    result = loaded("30")
    assert len(text(result)) <= PART_BYTES["load"]
    assert not isinstance(measured(result).gpus[0].steady_mw, Unavailable)
    wait_until_free(*uuids)
