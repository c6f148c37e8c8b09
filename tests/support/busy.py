"""The same machine with every reading different and as large as a node under load for months shows it: what
is longest."""

from __future__ import annotations

from typing import Any

import msgspec

from nodegauge_contract import Result

LINK_ERRORS = ("replay", "recovery", "crc_flit", "crc_data")
THROTTLED = ("sw_power_cap_ns", "sw_thermal_ns", "hw_thermal_ns", "power_brake_ns", "thermal_violation_ns")
GROUPS = ("pcie", "temperature", "power", "clocks", "counters", "link_errors", "ecc", "repair")
FILLED: dict[tuple[int, int], tuple[str, ...]] = {
    (0, 3): ("volatile_uncorrected",),
    (0, 5): ("replay_rollovers",),
    (0, 9): ("rows_corrected", "rows_uncorrected"),
    (0, 50): ("aggregate_uncorrected",),
    (0, 60): ("pages_single_bit", "pages_double_bit"),
    (0, 5_000): ("replays", "correctable", "recoveries", "volatile_corrected", *LINK_ERRORS),
    (0, 50_000): ("aggregate_corrected",),
    (1, 40): ("margin",),
    (45, 90): ("gpu",),
    (45, 95): ("memory",),
    (50, 100): ("utilization",),
    (1_200, 1_980): ("sm_mhz",),
    (300_000, 700_000): ("usage_mw", "average_mw", "instant_mw"),
    (10**9, 10**12): ("energy_mj",),
    (10**9, 10**14): ("sync_boost_ns", "low_utilization_ns", *THROTTLED),
}
SAMPLES = 13
SPANS = {
    "utilization": (20, 100),
    "temperature": (50, 90),
    "power_mw": (300_000, 700_000),
    "sm_mhz": (1_200, 1_980),
    "memory_temperature": (50, 95),
}
GROWN: dict[tuple[int, int], tuple[str, ...]] = {
    (10**6, 3 * 10**9): THROTTLED,
    (10**6, 2 * 10**6): ("energy_mj",),
    (3_010, 3_100): ("elapsed_ms",),
}
SUPPLIES = 4
NONE = {"unavailable": "the chip has no such limit"}
SUPPLY: tuple[tuple[str, str, int, Any, Any], ...] = (
    ("power1", "pin", 1_500_000_000, NONE, 3_300_000_000),
    ("power2", "pout1", 1_400_000_000, NONE, 3_000_000_000),
    ("in1", "vin", 230_000, 180_000, 264_000),
    ("in2", "vout1", 12_000, 11_000, 13_000),
    ("curr1", "iin", 8_000, NONE, 16_000),
    ("curr2", "iout1", 120_000, NONE, 250_000),
    ("fan1", "", 9_000, NONE, NONE),
    ("temp1", "", 35_000, NONE, 65_000),
)


class _Noise:
    """xorshift: the same numbers on every machine and in every release."""

    def __init__(self) -> None:
        self._state = 88172645463325252

    def __call__(self, low: int, high: int) -> int:
        self._state = (self._state ^ self._state << 13) % 2**64
        self._state ^= self._state >> 7
        self._state = (self._state ^ self._state << 17) % 2**64
        return low + self._state % (high - low + 1)


def busy(result: Result) -> Result:
    plain, noise = msgspec.to_builtins(result), _Noise()
    for gpu in (gpu for gpu in plain["gpus"] if gpu["window"] is not None):
        for group in GROUPS:
            _fill(gpu[group], FILLED, noise)
        gpu["serial"] = str(noise(10**12, 2 * 10**12))
        times = [{"samples": noise(1, SAMPLES), "longest": noise(1, 9)} for _ in range(2)]
        gpu["events"]["seen"] = [{"bit": 4} | times[0], {"bit": 32} | times[1]]
        gpu["xids"]["seen"] = [noise(13, 145)] if noise(0, 3) == 0 else []
        gpu["xids"]["counts"] = [
            {"count": noise(1, 9), "first": noise(10**6, 10**6 + 60), "last": noise(10**6 + 60, 10**6 + 600)}
            for _ in gpu["xids"]["seen"]
        ]
        gpu["events"]["read"] = gpu["window"]["samples"] = SAMPLES
        for name, span in SPANS.items():
            low, median, high = sorted(noise(*span) for _ in range(3))
            gpu["window"][name] = {"min": low, "median": median, "max": high}
        _fill(gpu["window"]["growth"], GROWN, noise)
    for port in plain["nics"]["ports"]:
        for name in ("link_downed", "symbol_errors", "receive_errors"):
            port[name] = noise(0, 5_000)
    plain["sensors"] = [
        {"chip": "dps800", "name": name, "label": label, "low": low, "high": high}
        | {"value": noise(value, value + value // 8), "alarm": 0}
        for name, label, value, low, high in SUPPLY
        for _ in range(SUPPLIES)
    ]
    return msgspec.convert(plain, Result)


def _fill(group: dict[str, Any], spans: dict[tuple[int, int], tuple[str, ...]], noise: _Noise) -> None:
    for span, names in spans.items():
        for name in names:
            if name in group and not isinstance(group[name], dict):
                group[name] = noise(*span)
