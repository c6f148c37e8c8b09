"""The sampling window: how often, what the bits come to, and what a window that ends early keeps."""

from __future__ import annotations

from typing import Any, cast

import pytest

from nodegauge_contract import Int, ReasonSeen, Span, Unavailable
from nodegauge_probes.collectors import sampling
from nodegauge_probes.nvml.library import Device, Nvml
from nodegauge_probes.result_builder import GpuBuilder

NO = Unavailable("NVML_ERROR_TIMEOUT")


class Clock:
    def __init__(self, *, per_sample: float) -> None:
        self.now = 100.0
        self.per_sample = per_sample

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Driver:
    def __init__(self, clock: Clock, *, number: int = 5) -> None:
        self.clock, self.number = clock, number

    def integer(self, device: Device, call: str, *arguments: Any, **options: Any) -> int:
        if call == "nvmlDeviceGetUtilizationRates":
            self.clock.now += self.clock.per_sample
        return self.number

    def whole_field(self, device: Device, *fields: int) -> int:
        return 5


def sampled(**values: Int) -> sampling.Sample:
    return sampling.Sample(**{**dict.fromkeys(sampling.Sample.__struct_fields__, NO), **values})


def watched(
    *, seconds: float, hz: float, per_sample: float = 0.001, slowed_seconds: float = 0.0, reasons: int = 5
) -> GpuBuilder:
    clock, gpu = Clock(per_sample=per_sample), GpuBuilder(0)
    nvml, how = cast(Nvml, Driver(clock, number=reasons)), {"clock": clock, "sleep": clock.sleep}
    gpus = [(Device(0, None), gpu)]
    sampling.watch(nvml, gpus, seconds=seconds, hz=hz, slowed_seconds=slowed_seconds, **how)
    return gpu


@pytest.mark.parametrize(
    ("seconds", "hz", "samples"), [(3, 4, 13), (2, 4, 9), (0.5, 10, 6), (0, 4, 1), (0.1, 4, 1)]
)
def test_a_window_has_samples_at_both_ends(seconds: float, hz: float, samples: int) -> None:
    window = watched(seconds=seconds, hz=hz).window
    assert window.samples == samples
    assert window.seconds == pytest.approx((samples - 1) / hz, abs=0.05)


@pytest.mark.parametrize("bit", sampling.SLOWDOWN)
def test_a_window_is_longer_while_a_gpu_is_slowed_down(bit: int) -> None:
    wanted = {bit: (13, 5), 0x4 | 0x1: (5, 5)}
    for reasons, samples in wanted.items():
        for slowed, count in zip((3.0, 0.5), samples, strict=True):
            window = watched(seconds=1, hz=4, slowed_seconds=slowed, reasons=reasons).window
            assert window.samples == count


def test_a_slow_driver_gives_fewer_samples_and_no_longer_window() -> None:
    window = watched(seconds=3, hz=4, per_sample=0.6).window
    assert window.samples < 13
    assert window.seconds < 4


def test_bits_are_counted_with_their_longest_row() -> None:
    seen = sampling.reasons_seen([0x1, 0x5, 0x4, NO, 0x4, 0x4, 0x4, 0x0])
    assert seen == [ReasonSeen(bit=1, samples=2, longest=2), ReasonSeen(bit=4, samples=5, longest=3)]


@pytest.mark.parametrize(
    ("values", "span"),
    [
        ([3, 1, 2], Span(min=1, median=2, max=3)),
        ([4, 1], Span(min=1, median=2.5, max=4)),
        ([NO, 7], Span(min=7, median=7, max=7)),
        ([NO], None),
        ([], None),
    ],
)
def test_a_span_is_of_what_could_be_read(values: list[int], span: Span | None) -> None:
    assert sampling.span(values) == span


def test_a_window_without_a_readable_mask_says_why() -> None:
    gpu = GpuBuilder(0)
    sampling.fill(gpu, [sampled(), sampled()], seconds=1)
    assert (gpu.events.value.read, gpu.events.value.seen) == (NO, [])
    assert gpu.window.utilization is None


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([(5, 1, 16), (97, 4, 16), (40, 3, 16)], (4, 16, 97)),
        ([(90, 1, 16), (90, 4, 8), (90, 4, 16)], (4, 16, 90)),
        ([(NO, 1, 16), (0, 3, NO)], (3, NO, 0)),
        ([(NO, 1, 8), (NO, NO, 16)], (1, 8, NO)),
    ],
)
def test_the_busiest_sample_gives_the_pcie_link(
    readings: list[tuple[Int, Int, Int]], expected: tuple[Int, Int, Int]
) -> None:
    gpu = GpuBuilder(0)
    samples = [sampled(utilization=busy, generation=speed, width=lanes) for busy, speed, lanes in readings]
    sampling.fill(gpu, samples, seconds=1)
    pcie = gpu.pcie.value
    assert (pcie.generation, pcie.width, pcie.utilization) == expected


def test_something_may_be_done_between_samples() -> None:
    clock, done = Clock(per_sample=0.001), []
    nvml = cast(Nvml, Driver(clock))
    gpus = [(Device(n, None), GpuBuilder(n)) for n in range(2)]
    sampling.watch(
        nvml, gpus, seconds=1, hz=4, between=lambda: done.append(1), clock=clock, sleep=clock.sleep
    )
    assert len(done) == 5
