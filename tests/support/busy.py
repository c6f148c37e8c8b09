"""The same machine with every reading different: what compresses worst, to see whether a message holds it.

Only members that the machine's driver answered are filled, with numbers as large as a node under load for
months shows them; hwmon is that of a server with four supplies, each with eight sensors.
"""

from __future__ import annotations

import json
from typing import Any

from nodegauge_contract import Result, decode, encode

FILLED: dict[str, dict[str, tuple[int, int]]] = {
    "pcie": {
        "utilization": (50, 100),
        "replays": (0, 5_000),
        "replay_rollovers": (0, 5),
        "correctable": (0, 5_000),
        "recoveries": (0, 5_000),
    },
    "temperature": {"gpu": (45, 90), "memory": (45, 95), "margin": (1, 40)},
    "power": {
        "usage_mw": (300_000, 700_000),
        "average_mw": (300_000, 700_000),
        "instant_mw": (300_000, 700_000),
        "energy_mj": (10**9, 10**12),
    },
    "clocks": {"sm_mhz": (1_200, 1_980)},
    "counters": dict.fromkeys(
        (
            "sw_power_cap_ns",
            "sync_boost_ns",
            "sw_thermal_ns",
            "hw_thermal_ns",
            "power_brake_ns",
            "thermal_violation_ns",
            "low_utilization_ns",
        ),
        (10**9, 10**14),
    ),
    "link_errors": dict.fromkeys(("replay", "recovery", "crc_flit", "crc_data"), (0, 5_000)),
    "ecc": {
        "volatile_corrected": (0, 5_000),
        "volatile_uncorrected": (0, 3),
        "aggregate_corrected": (0, 50_000),
        "aggregate_uncorrected": (0, 50),
    },
    "repair": {
        "rows_corrected": (0, 9),
        "rows_uncorrected": (0, 9),
        "pages_single_bit": (0, 60),
        "pages_double_bit": (0, 60),
    },
}
SAMPLES = 13
SPANS = {
    "utilization": (20, 100),
    "temperature": (50, 90),
    "power_mw": (300_000, 700_000),
    "sm_mhz": (1_200, 1_980),
    "memory_temperature": (50, 95),
}
GROWN = {
    **dict.fromkeys(
        ("sw_power_cap_ns", "sw_thermal_ns", "hw_thermal_ns", "power_brake_ns", "thermal_violation_ns"),
        (10**6, 3 * 10**9),
    ),
    "energy_mj": (10**6, 2 * 10**6),
    "elapsed_ms": (3_010, 3_100),
}
SUPPLY = (
    ("power1", "pin", 1_500_000_000, None, 3_300_000_000),
    ("power2", "pout1", 1_400_000_000, None, 3_000_000_000),
    ("in1", "vin", 230_000, 180_000, 264_000),
    ("in2", "vout1", 12_000, 11_000, 13_000),
    ("curr1", "iin", 8_000, None, 16_000),
    ("curr2", "iout1", 120_000, None, 250_000),
    ("fan1", "", 9_000, None, None),
    ("temp1", "", 35_000, None, 65_000),
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


def busy(result: Result, *, supplies: int = 4) -> Result:
    """The machine under load, no two numbers alike."""
    plain, noise = json.loads(encode(result)), _Noise()
    for gpu in (gpu for gpu in plain["gpus"] if gpu["window"] is not None):
        for group, members in FILLED.items():
            _fill(gpu[group], members, noise)
        gpu["serial"] = str(noise(10**12, 2 * 10**12))
        gpu["events"]["seen"] = [
            {"bit": bit, "samples": noise(1, SAMPLES), "longest": noise(1, 9)} for bit in (4, 32)
        ]
        gpu["xids"]["seen"] = [noise(13, 145)] if noise(0, 3) == 0 else []
        gpu["xids"]["counts"] = [
            {"count": noise(1, 9), "first": noise(10**6, 10**6 + 60), "last": noise(10**6 + 60, 10**6 + 600)}
            for _ in gpu["xids"]["seen"]
        ]
        gpu["events"]["read"] = gpu["window"]["samples"] = SAMPLES
        for name, (low, high) in SPANS.items():
            gpu["window"][name] = dict(
                zip(("min", "median", "max"), sorted(noise(low, high) for _ in range(3)), strict=True)
            )
        _fill(gpu["window"]["growth"], GROWN, noise)
    for port in plain["nics"]["ports"]:
        for name in ("link_downed", "symbol_errors", "receive_errors"):
            port[name] = noise(0, 5_000)
    plain["sensors"] = [_sensor(*sensor, noise) for sensor in SUPPLY for _ in range(supplies)]
    return decode(json.dumps(plain))


def _fill(group: dict[str, Any], members: dict[str, tuple[int, int]], noise: _Noise) -> None:
    for name, (low, high) in members.items():
        if not isinstance(group[name], dict):
            group[name] = noise(low, high)


def _sensor(name: str, label: str, value: int, low: int | None, high: int | None, noise: _Noise) -> Any:
    none = {"unavailable": "the chip has no such limit"}
    return {
        "chip": "dps800",
        "name": name,
        "label": label,
        "value": noise(value, value + value // 8),
        "alarm": 0,
        "low": none if low is None else low,
        "high": none if high is None else high,
    }
