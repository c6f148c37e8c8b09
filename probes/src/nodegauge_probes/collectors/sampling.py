"""The sampling window: what changes from moment to moment, read a few times a second for a few seconds.

One sample says little (a clocks event may stand for milliseconds), so the bits are counted with their longest
run, and utilisation, temperatures, power, SM clock and P-state keep their smallest, median and largest value.
The PCIe link rests while nobody uses it, so its generation and width are those of the busiest sample.
The window is written into the draft after every sample: a run that is ended in the middle has what it saw.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from nodegauge_contract import Int, ReasonSeen, Span, Unavailable, Window
from nodegauge_probes.collectors.telemetry import CLOCK_SM, gpu_temperature, memory_temperature
from nodegauge_probes.nvml.library import Device, Nvml
from nodegauge_probes.result_builder import GpuDraft, first_reason

SPANS = ("utilization", "temperature", "power_mw", "sm_mhz", "pstate", "memory_temperature")


class Sample(Struct, frozen=True, kw_only=True):
    """One GPU at one moment."""

    reasons: Int
    utilization: Int
    temperature: Int
    power_mw: Int
    sm_mhz: Int
    pstate: Int
    memory_temperature: Int
    generation: Int
    width: Int


def supported_reasons(nvml: Nvml, device: Device, gpu: GpuDraft) -> None:
    """The reasons that this driver can report at all."""
    older = (("nvmlDeviceGetSupportedClocksThrottleReasons",),)
    gpu.events["supported"] = nvml.integer(
        device, "nvmlDeviceGetSupportedClocksEventReasons", otherwise=older
    )


def sample(nvml: Nvml, device: Device) -> Sample:
    older = (("nvmlDeviceGetCurrentClocksThrottleReasons",),)
    return Sample(
        reasons=nvml.integer(device, "nvmlDeviceGetCurrentClocksEventReasons", otherwise=older),
        utilization=nvml.integer(device, "nvmlDeviceGetUtilizationRates", pick=lambda rates: rates.gpu),
        temperature=gpu_temperature(nvml, device),
        power_mw=nvml.integer(device, "nvmlDeviceGetPowerUsage"),
        sm_mhz=nvml.integer(device, "nvmlDeviceGetClockInfo", CLOCK_SM),
        pstate=nvml.integer(device, "nvmlDeviceGetPerformanceState"),
        memory_temperature=memory_temperature(nvml, device),
        generation=nvml.integer(device, "nvmlDeviceGetCurrPcieLinkGeneration"),
        width=nvml.integer(device, "nvmlDeviceGetCurrPcieLinkWidth"),
    )


def watch(
    nvml: Nvml,
    gpus: list[tuple[Device, GpuDraft]],
    *,
    seconds: float,
    hz: float,
    between: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Sample every GPU `hz` times a second for `seconds`, at both ends of the window too; at least once.

    `between` is called after every round of samples.
    """
    taken: list[list[Sample]] = [[] for _ in gpus]
    start = clock()
    while True:
        for samples, (device, gpu) in zip(taken, gpus, strict=True):
            samples.append(sample(nvml, device))
            fill(gpu, samples, seconds=clock() - start)
        between()
        elapsed = clock() - start
        due = (int(elapsed * hz) + 1) / hz
        if due > seconds + 0.5 / hz:
            return
        sleep(max(0.0, due - elapsed))


def fill(gpu: GpuDraft, samples: list[Sample], *, seconds: float) -> None:
    """Write what the samples so far come to."""
    masks = [taken.reasons for taken in samples]
    readable = sum(isinstance(mask, int) for mask in masks)
    gpu.events["read"] = readable or first_reason(masks, default="not read")
    gpu.events["seen"] = reasons_seen(masks)
    gpu.pcie.update(link_at_work(samples))
    spans: dict[str, Any] = {name: span([getattr(taken, name) for taken in samples]) for name in SPANS}
    gpu.window = Window(seconds=round(seconds, 3), samples=len(samples), **spans)


def link_at_work(samples: list[Sample]) -> dict[str, Int]:
    """PCIe generation and width of the busiest sample, and how busy it was; the faster link among equals."""
    busiest = max(samples, key=lambda one: tuple(map(_or_less, (one.utilization, one.generation, one.width))))
    return {
        "generation": busiest.generation,
        "width": busiest.width,
        "utilization": busiest.utilization,
    }


def _or_less(value: Int) -> int:
    return -1 if isinstance(value, Unavailable) else value


def reasons_seen(masks: list[Int]) -> list[ReasonSeen]:
    """Per bit: samples in which it stood, and how many of them in a row; an unreadable sample ends a row."""
    found = []
    for bit in sorted(
        {1 << n for mask in masks if isinstance(mask, int) for n in range(63) if mask >> n & 1}
    ):
        total = longest = row = 0
        for mask in masks:
            row = row + 1 if isinstance(mask, int) and mask & bit else 0
            total += row > 0
            longest = max(longest, row)
        found.append(ReasonSeen(bit=bit, samples=total, longest=longest))
    return found


def span(values: list[Int]) -> Span | None:
    """Smallest, median and largest; None where nothing could be read."""
    numbers = sorted(value for value in values if not isinstance(value, Unavailable))
    if not numbers:
        return None
    middle = len(numbers) // 2
    low, high = numbers[middle if len(numbers) % 2 else middle - 1], numbers[middle]
    median = (low + high) / 2
    return Span(min=numbers[0], median=int(median) if median == int(median) else median, max=numbers[-1])
