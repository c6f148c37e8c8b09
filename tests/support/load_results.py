"""Documents of load runs on eight like GPUs that do well, and ways to spoil one of them."""

from typing import Any

from msgspec.structs import replace

import support.results as made
from nodegauge_contract import Gpu, LoadGpu, LoadReason, LoadResult, Pcie, Result, Temperature

SECONDS, SAMPLES = 30.0, 120
"""Of a default run at 4 Hz."""


def gpu(index: int, **more: Any) -> LoadGpu:
    known: dict[str, Any] = {
        "seconds": SECONDS,
        "samples": SAMPLES,
        "limit_mw": 700_000,
        "idle_mw": 70_000,
        "steady_mw": 690_000,
        "max_mw": 702_000,
        "reached_ms": 2_500,
        "start_c": 32,
        "steady_c": 62,
        "max_c": 63,
        "slope_c_per_min": 2.0,
        "memory_steady_c": 70,
        "memory_max_c": 71,
        "margin_c": 22,
        "stop_margin_c": 3,
        "sm_mhz": 1_410,
        "sm_mhz_min": 1_365,
        "memory_mhz": 2_619,
        "generation": 5,
        "width": 16,
        "reasons_read": SAMPLES,
        "reasons": [LoadReason(bit=0x4, samples=115, longest=115, first_ms=1_000)],
        "kernel": "f16-m16n8k16",
        "tflops": 610.0,
        "tflops_first": 640.0,
        "memory_gbps": 2_900.0,
        "h2d_gbps": 54.0,
        "d2h_gbps": 53.0,
        "h2d_all_gbps": 52.0,
        "d2h_all_gbps": 51.0,
        "checksum": "c0ffee",
        "expected": "c0ffee",
        "checks": 1_000,
        "mismatches": 0,
        "memory_mismatches": 0,
    }
    return LoadGpu(index=index, **known | more)


def card(index: int, name: str = "NVIDIA H100 80GB HBM3") -> Gpu:
    link = Pcie(generation=1, width=16, max_generation=5, max_width=16)
    limits = Temperature(gpu_max=87, memory_max=95)
    return made.gpu(index, name=name, serial=f"16549220{index:05d}", pcie=link, temperature=limits)


def loaded(*gpus: LoadGpu, **more: Any) -> Result:
    gpus = gpus or tuple(gpu(index) for index in range(8))
    known: dict[str, Any] = {"seconds": SECONDS, "loaded_seconds": SECONDS, "hz": 4.0}
    cards = [card(one.index) for one in gpus]
    load = LoadResult(**known | {"gpus": list(gpus), "expected": len(gpus)} | more)
    return replace(made.h100(), probe="load", gpus=cards, load=load)


def spoilt(index: int = 3, *, of: int = 8, **values: Any) -> Result:
    return loaded(*(gpu(n, **values) if n == index else gpu(n) for n in range(of)))


def everywhere(*, of: int = 8, **values: Any) -> Result:
    return loaded(*(gpu(n, **values) for n in range(of)))


def reason(bit: int, *, samples: int, first_ms: int = 1_000, longest: int | None = None) -> list[LoadReason]:
    in_a_row = samples if longest is None else longest
    return [LoadReason(bit=bit, samples=samples, longest=in_a_row, first_ms=first_ms)]
