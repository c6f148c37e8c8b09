"""One GPU of `nvidia-smi -q` as a `Gpu`: which of its lines is which value, in which unit.

A key is `section/name` of the text form or of the XML form, of every driver generation that was seen, or
`*/name` where no two sections share the name; the first that is there counts.  "N/A" and other words instead
of a number are kept as the reason why there is no value.  Source: outputs of drivers 396 to 595 and the
nvidia-smi manual page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from nodegauge_contract.gpu import (
    Clocks,
    ClocksEvents,
    Counters,
    Ecc,
    Fabric,
    Gpu,
    Pcie,
    Power,
    ReasonSeen,
    Repair,
    Span,
    Temperature,
    Window,
)
from nodegauge_contract.pasted.query import GpuText
from nodegauge_contract.values import NOT_READ, Int, Text, Unavailable

Values = Mapping[str, str]
Keys = tuple[str, ...]

_YES_NO = {"yes": 1, "no": 0, "enabled": 1, "disabled": 0}
_RECOVERY = {
    "none": 0, "reset": 1, "gpu reset": 1, "reboot": 2, "node reboot": 2, "drain p2p": 3,
    "drain and reset": 4,
}  # fmt: skip
_FABRIC_STATES = {"not supported": 0, "not started": 1, "in progress": 2, "completed": 3}
_FABRIC_HEALTH = {"not supported": 0, "healthy": 1, "unhealthy": 2, "limited capacity": 3}
_FABRIC_BITS = {
    "bandwidth": 0, "route_recovery_in_progress": 2, "route_unhealthy": 4, "access_timeout_recovery": 6,
}  # fmt: skip
_FABRIC_FAILED = 999
"""NVML_ERROR_UNKNOWN, for a status of the fabric that is not Success."""
_VIRTUALIZATION = {"none": 0, "pass-through": 1, "vgpu": 2, "host vgpu": 3, "vsga": 4, "host vsga": 4}
_ARCHITECTURES = {
    "kepler": 2, "maxwell": 3, "pascal": 4, "volta": 5, "turing": 6, "ampere": 7, "ada lovelace": 8, "ada": 8,
    "hopper": 9, "blackwell": 10, "rubin": 13,
}  # fmt: skip
"""NVML_DEVICE_ARCH_*."""

_REASONS = {
    "idle": 0x1, "gpu_idle": 0x1, "applications_clocks_setting": 0x2, "sw_power_cap": 0x4,
    "sw_power_capping": 0x4, "hw_slowdown": 0x8, "sync_boost": 0x10, "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40, "hw_power_brake_slowdown": 0x80, "hw_power_braking": 0x80,
    "display_clock_setting": 0x100, "display_clocks_setting": 0x100,
}  # fmt: skip
"""nvmlClocksEventReasons by the end of the name."""
_REASON_SECTIONS = ("clocks_throttle_reasons", "clocks_event_reasons")

_TEMPERATURE: dict[str, Keys] = {
    "gpu": ("temperature/gpu_current_temp", "temperature/gpu_temp"),
    "memory": ("temperature/memory_current_temp", "temperature/memory_temp"),
    "shutdown": ("temperature/gpu_shutdown_temp", "temperature/gpu_temp_max_threshold"),
    "slowdown": ("temperature/gpu_slowdown_temp", "temperature/gpu_temp_slow_threshold"),
    "memory_max": ("temperature/memory_max_operating_temp", "temperature/gpu_temp_max_mem_threshold"),
    "gpu_max": ("temperature/gpu_max_operating_temp", "temperature/gpu_temp_max_gpu_threshold"),
    "margin": ("temperature/gpu_t_limit_temp", "temperature/gpu_temp_tlimit"),
    "tlimit_shutdown": ("temperature/gpu_shutdown_t_limit_temp", "temperature/gpu_temp_max_tlimit_threshold"),
    "tlimit_slowdown": (
        "temperature/gpu_slowdown_t_limit_temp",
        "temperature/gpu_temp_slow_tlimit_threshold",
    ),
    "tlimit_memory_max": (
        "temperature/memory_max_operating_t_limit_temp",
        "temperature/gpu_temp_max_mem_tlimit_threshold",
    ),
    "tlimit_gpu_max": (
        "temperature/gpu_max_operating_t_limit_temp",
        "temperature/gpu_temp_max_gpu_tlimit_threshold",
    ),
}
_CLOCKS: dict[str, Keys] = {
    "sm_mhz": ("clocks/sm", "clocks/sm_clock"),
    "memory_mhz": ("clocks/memory", "clocks/mem_clock"),
    "max_sm_mhz": ("max_clocks/sm", "max_clocks/sm_clock"),
    "max_memory_mhz": ("max_clocks/memory", "max_clocks/mem_clock"),
}
_POWER: dict[str, Keys] = {
    "usage_mw": ("power_draw",),
    "average_mw": ("average_power_draw",),
    "instant_mw": ("instantaneous_power_draw", "instant_power_draw"),
    "enforced_limit_mw": ("enforced_power_limit", "current_power_limit", "power_limit"),
    "default_limit_mw": ("default_power_limit",),
    "min_limit_mw": ("min_power_limit",),
    "max_limit_mw": ("max_power_limit",),
}
_POWER_SECTIONS = ("gpu_power_readings", "power_readings")
_PCIE: dict[str, Keys] = {
    "generation": ("pcie_generation/current", "pcie_gen/current_link_gen"),
    "max_generation": ("pcie_generation/max", "pcie_gen/max_link_gen"),
    "card_generation": ("pcie_generation/device_max", "pcie_gen/max_device_link_gen"),
    "width": ("link_width/current", "link_widths/current_link_width"),
    "max_width": ("link_width/max", "link_widths/max_link_width"),
    "replays": ("bridge_chip/replays_since_reset", "pci/replays_since_reset", "pci/replay_counter"),
    "replay_rollovers": (
        "bridge_chip/replay_number_rollovers",
        "pci/replay_number_rollovers",
        "pci/replay_rollover_counter",
    ),
}
_REPAIR: dict[str, Keys] = {
    "rows_corrected": ("remapped_rows/correctable_error", "remapped_rows/remapped_row_corr"),
    "rows_uncorrected": ("remapped_rows/uncorrectable_error", "remapped_rows/remapped_row_unc"),
    "pages_single_bit": ("retired_pages/single_bit_ecc", "multiple_single_bit_retirement/retired_count"),
    "pages_double_bit": ("retired_pages/double_bit_ecc", "double_bit_retirement/retired_count"),
}
_REPAIR_FLAGS: dict[str, Keys] = {
    "rows_pending": ("remapped_rows/pending", "remapped_rows/remapped_row_pending"),
    "rows_failed": ("remapped_rows/remapping_failure_occurred", "remapped_rows/remapped_row_failure"),
    "pages_pending": (
        "retired_pages/pending_page_blacklist",
        "retired_pages/pending",
        "retired_pages/pending_retirement",
        "retired_pages/pending_blacklist",
    ),
    "channels_pending": ("ecc_errors/channel_repair_pending", "aggregate/channel_repair_pending"),
    "tpcs_pending": ("ecc_errors/tpc_repair_pending", "aggregate/tpc_repair_pending"),
    "unrepairable": ("ecc_errors/unrepairable_memory", "aggregate/unrepairable_memory"),
}
_COUNTERS: dict[str, Keys] = {
    "sw_power_cap_ns": ("sw_power_capping", "clocks_event_reasons_counters_sw_power_cap"),
    "sync_boost_ns": ("sync_boost", "clocks_event_reasons_counters_sync_boost"),
    "sw_thermal_ns": ("sw_thermal_slowdown", "clocks_event_reasons_counters_sw_therm_slowdown"),
    "hw_thermal_ns": ("hw_thermal_slowdown", "clocks_event_reasons_counters_hw_therm_slowdown"),
    "power_brake_ns": ("hw_power_braking", "clocks_event_reasons_counters_hw_power_brake"),
}
_UNCORRECTED = (
    "sram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_sec_ded",
    "sram_uncorrectable_secded",
    "dram_uncorrectable", "double_bit/total",
)  # fmt: skip
_CORRECTED = ("sram_correctable", "dram_correctable", "single_bit/total")


def gpu(index: int, text: GpuText) -> Gpu:
    """The GPU's readings; what its text lacks is "not read"."""
    values, events = text.values, _events(text.values)
    return Gpu(
        index=index,
        uuid=_text(values, ("*/gpu_uuid", "*/uuid")),
        name=_text(values, ("*/product_name",)),
        pci=pci(text.pci) if text.pci else NOT_READ,
        vbios=_text(values, ("*/vbios_version",)),
        architecture=_word(values, ("*/product_architecture",), _ARCHITECTURES),
        memory_mib=_number(values, ("fb_memory_usage/total",)),
        mig=_mig(values),
        pcie=Pcie(**_group(values, _PCIE)),
        fabric=_fabric(values),
        temperature=Temperature(**_group(values, _TEMPERATURE)),
        power=Power(**_in_sections(values, _POWER, _POWER_SECTIONS)),
        clocks=Clocks(**_group(values, _CLOCKS), pstate=_number(values, ("*/performance_state",))),
        events=events,
        counters=Counters(**_in_sections(values, _COUNTERS, ("clocks_event_reasons_counters",))),
        ecc=_ecc(values),
        repair=Repair(
            **_group(values, _REPAIR),
            **{name: _word(values, keys, _YES_NO) for name, keys in _REPAIR_FLAGS.items()},
            action=_word(values, ("*/gpu_recovery_action",), _RECOVERY),
        ),
        window=_window(values, events),
        virtualization=_word(values, ("gpu_virtualization_mode/virtualization_mode",), _VIRTUALIZATION),
    )


def pci(address: str) -> str:
    """`00000000:3B:00.0` in sysfs form, `0000:3b:00.0`."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _mig(values: Values) -> Int:
    """MIG mode; a GPU that has none says N/A and is off."""
    mode = _raw(values, ("mig_mode/current", "mig_mode/current_mig"))
    return 0 if mode == "N/A" else _word(values, ("mig_mode/current", "mig_mode/current_mig"), _YES_NO)


def _events(values: Values) -> ClocksEvents:
    """The clocks event reasons of one moment, as one sample."""
    states: dict[int, bool] = {}
    for section in _REASON_SECTIONS:
        for key, value in values.items():
            if not key.startswith(f"{section}/"):
                continue
            name = key.rpartition("/")[2]
            name = re.sub(r"^clocks_(?:throttle|event)_reason_", "", name)
            state = re.match(r"(Not )?Active\b", value)
            if name in _REASONS and state is not None:
                states[_REASONS[name]] = state[1] is None
    if not states:
        return ClocksEvents()
    seen = [ReasonSeen(bit=bit, samples=1, longest=1) for bit, active in sorted(states.items()) if active]
    return ClocksEvents(supported=sum(states), read=1, seen=seen)


def _window(values: Values, events: ClocksEvents) -> Window | None:
    """A window of one sample: the reasons, the utilisation and the P-state of that moment."""
    used = _span(_number(values, ("utilization/gpu", "utilization/gpu_util")))
    pstate = _span(_number(values, ("*/performance_state",)))
    if used is None and pstate is None and not isinstance(events.read, int):
        return None
    return Window(seconds=0, samples=1, utilization=used, pstate=pstate)


def _span(value: Int) -> Span | None:
    return Span(min=value, median=value, max=value) if isinstance(value, int) else None


def _fabric(values: Values) -> Fabric:
    status = _raw(values, ("fabric/status",))
    known: Int = NOT_READ
    if status is not None and status != "N/A":
        known = 0 if status.lower() == "success" else _FABRIC_FAILED
    return Fabric(
        state=_word(values, ("fabric/state",), _FABRIC_STATES),
        status=known,
        health_mask=_fabric_mask(values),
        health_summary=_word(values, ("fabric/summary", "health/summary"), _FABRIC_HEALTH),
    )


def _fabric_mask(values: Values) -> Int:
    """What the lines below the summary say, in the bits of NVML_GPU_FABRIC_HEALTH_MASK_*."""
    texts = {name: _raw(values, (f"health/{name}", f"fabric/{name}")) for name in _FABRIC_BITS}
    if all(value in (None, "N/A") for value in texts.values()):
        return NOT_READ
    return sum(1 << _FABRIC_BITS[name] for name, value in texts.items() if value in ("True", "Degraded"))


def _ecc(values: Values) -> Ecc:
    return Ecc(
        mode=_word(values, ("ecc_mode/current", "ecc_mode/current_ecc"), _YES_NO),
        volatile_corrected=_sum(values, "volatile", _CORRECTED),
        volatile_uncorrected=_sum(values, "volatile", _UNCORRECTED),
        aggregate_corrected=_sum(values, "aggregate", _CORRECTED),
        aggregate_uncorrected=_sum(values, "aggregate", _UNCORRECTED),
        sram_threshold=_word(
            values, ("aggregate/sram_threshold_exceeded", "ecc_errors/sram_threshold_exceeded"), _YES_NO
        ),
    )


def _sum(values: Values, section: str, names: Keys) -> Int:
    """Errors of every kind of memory; unavailable if one of them is neither a number nor N/A."""
    counts = [_number(values, (f"{section}/{name}",)) for name in names if f"{section}/{name}" in values]
    numbers = [count for count in counts if isinstance(count, int)]
    unread = [count for count in counts if isinstance(count, Unavailable) and count.unavailable != "N/A"]
    if unread or not numbers:
        return unread[0] if unread else counts[0] if counts else NOT_READ
    return sum(numbers)


def _group(values: Values, keys: dict[str, Keys]) -> dict[str, Any]:
    return {name: _number(values, aliases) for name, aliases in keys.items()}


def _in_sections(values: Values, keys: dict[str, Keys], sections: Keys) -> dict[str, Any]:
    """Thousandths of values that have the same names in one of several sections."""
    return {
        name: _number(values, tuple(f"{section}/{alias}" for section in sections for alias in aliases), 1000)
        for name, aliases in keys.items()
    }


def _raw(values: Values, keys: Keys) -> str | None:
    return next((values[key] for key in keys if key in values), None)


def _text(values: Values, keys: Keys) -> Text:
    value = _raw(values, keys)
    return NOT_READ if not value else Unavailable(value) if value == "N/A" else value[:128]


def _number(values: Values, keys: Keys, factor: int = 1) -> Int:
    """A whole number of the unit's `factor`: `68.30 W` is 68300 with 1000, `16x` is 16, `P0` is 0."""
    value = _raw(values, keys)
    if not value:
        return NOT_READ
    match = re.match(r"P?(-?\d{1,18}(?:\.\d{1,6})?)(?![\d:.])", value)
    return round(float(match[1]) * factor) if match is not None else Unavailable(value[:80])


def _word(values: Values, keys: Keys, meanings: Mapping[str, int]) -> Int:
    value = _raw(values, keys)
    if not value:
        return NOT_READ
    meaning = meanings.get(value.lower())
    return meaning if meaning is not None else Unavailable(value[:80])
