"""The field ids of the throttle counters by driver, and their growth."""

from __future__ import annotations

import pytest

from nodegauge_contract import Counters, Growth, Int, Unavailable
from nodegauge_probes.collectors.counters import Snapshot, choose, growth

NO = Unavailable("NVML_ERROR_NOT_SUPPORTED")
SILENT = [NO, NO, NO]
OLD, NEW = [1, 2, 3], [11, 12, 13]


@pytest.mark.parametrize(
    ("driver", "old", "new", "trio", "values"),
    [
        ("595.84", SILENT, NEW, "269-271", NEW),
        ("595.84", OLD, NEW, "269-271", NEW),
        ("590.44.01", OLD, [11, NO, 13], "269-271", [11, NO, 13]),
        ("580.82.07", SILENT, NEW, "269-271", NEW),
        ("580.65.06", OLD, SILENT, "251-253", OLD),
        ("580.65.06", OLD, [0, NO, 0], "251-253", OLD),
        ("575.57.08", OLD, SILENT, "251-253", OLD),
    ],
)
def test_counter_ids_follow_drivers(
    driver: str, old: list[int], new: list[int], trio: str, values: list[int]
) -> None:
    """Past 580 the new ids; from 575 to 580 the set of ids that answers where the other does not."""
    assert choose(driver, old=old, new=new) == (trio, values)


@pytest.mark.parametrize(
    ("driver", "old", "new"),
    [
        ("570.124.06", OLD, NEW),
        ("418.87", SILENT, SILENT),
        ("580.65.06", OLD, NEW),
        ("575.57.08", SILENT, SILENT),
        (Unavailable("NVML_ERROR_UNKNOWN"), OLD, NEW),
        ("unknown", OLD, NEW),
    ],
)
def test_an_ambiguous_driver_has_no_counters(driver: str, old: list[int], new: list[int]) -> None:
    """Older drivers, unknown drivers, and both or neither set answering: a reason in all four members."""
    trio, values = choose(driver, old=old, new=new)
    assert isinstance(trio, Unavailable)
    assert values == [trio] * 3


def test_a_value_of_another_type_rules_its_set_out() -> None:
    """With drivers that may use either set."""
    trio, values = choose("580.65.06", old=[1, 2, 3], new=[0.5, 1, 2])
    assert (trio, values) == ("251-253", [1, 2, 3])


def snapshot(began_ms: int, energy: Int = 0, *, took_ms: int = 0, **values: Int) -> Snapshot:
    """A reading of the counters; those that are not named are not supported."""
    counters = Counters(**dict.fromkeys(Counters.__struct_fields__, NO) | values)
    return Snapshot(began_ms, began_ms + took_ms, counters, energy)


def test_growth_is_what_was_added_between_two_readings() -> None:
    """With the time by CLOCK_BOOTTIME from before the first one to after the second, for the probe may stand
    still within either."""
    grown = growth(
        snapshot(1_000, 5_000, took_ms=300, sw_thermal_ns=10, power_brake_ns=7),
        snapshot(4_000, 905_000, took_ms=12, sw_thermal_ns=1_500_000_010, power_brake_ns=7),
    )
    assert grown == Growth(
        elapsed_ms=3_012,
        sw_power_cap_ns=NO,
        sw_thermal_ns=1_500_000_000,
        hw_thermal_ns=NO,
        power_brake_ns=0,
        thermal_violation_ns=NO,
        energy_mj=900_000,
    )


def test_a_reading_that_stood_still_for_long_has_no_growth() -> None:
    """Ten minutes within one: the slowdown of the window would be a small share of them, and pass."""
    after = snapshot(700_000, sw_thermal_ns=5 * 10**9)
    assert growth(snapshot(0, took_ms=600_000, sw_thermal_ns=0), after) == Growth()
    late = snapshot(0, took_ms=1_000, sw_thermal_ns=0)
    assert growth(late, snapshot(4_000, sw_thermal_ns=5 * 10**8)).sw_thermal_ns == 5 * 10**8


def test_a_counter_that_decreased_has_no_growth() -> None:
    """It was reset in between; the same applies to one that could be read only once."""
    grown = growth(snapshot(0, sw_thermal_ns=9, hw_thermal_ns=5), snapshot(1, sw_thermal_ns=8))
    assert grown.sw_thermal_ns == Unavailable("the counter decreased: it was reset")
    assert grown.hw_thermal_ns == NO
