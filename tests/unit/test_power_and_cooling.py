"""The testbed's models of supplies and heat: what holds for every machine and every load."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.machines import SECOND
from testbed import profiles
from testbed.driver.client import GPU, NvmlClient
from testbed.hardware import Hardware, cooling, plug, power
from testbed.hardware.plugged import boottime_ns
from testbed.hardware.power import Trouble

SM_CLOCK = 1
WARM = [name for name in profiles.names() if cooling.sink(profiles.load(name).model) is not None]
draws = st.floats(0, 30_000)
counts = st.integers(1, 8)
troubles = st.dictionaries(
    st.integers(0, 7), st.tuples(st.sampled_from(Trouble), st.floats(0.05, 1.0)), max_size=8
)


@given(draw=draws, count=counts, troubles=troubles)
def test_no_watt_is_lost_or_made(draw: float, count: int, troubles: dict[int, tuple[Trouble, float]]) -> None:
    """The supplies give together what the machine draws, or it is off; none gives more than it can."""
    supplies = power.share(draw, count=count, watts=3000, troubles=troubles)
    given_watts = sum(one.output_watts for one in supplies)
    assert given_watts == pytest.approx(draw if power.is_on(supplies) else 0)
    assert all(one.output_watts <= 3000 for one in supplies)
    assert all(one.output_watts <= one.input_watts for one in supplies)
    assert all(one.output_watts == 0 for one in supplies if one.trouble not in (None, Trouble.WEAK))


@given(draw=st.floats(0, 3000), more=st.floats(0, 3000), count=st.integers(2, 8))
def test_twelve_volts_fall_with_the_load(draw: float, more: float, count: int) -> None:
    """Never up, and a healthy group stays within what ATX allows."""
    before, after = (
        power.rail(power.share(watts, count=count, watts=3000, troubles={})) for watts in (draw, draw + more)
    )
    assert 11.4 <= after <= before


def test_a_lost_input_moves_its_load_to_the_others() -> None:
    """Six supplies under 6 kW: 1,000 W each, and 1,200 W without one."""
    supplies = power.share(6000, count=6, watts=3300, troubles={2: (Trouble.NO_INPUT, 0.0)})
    assert [round(one.output_watts) for one in supplies] == [1200, 1200, 0, 1200, 1200, 1200]


def test_a_weak_supply_sags_and_then_gives_up() -> None:
    """Its own output falls below 11.4 V first; above its capacity the other carries all."""
    weak = {0: (Trouble.WEAK, 0.6)}
    idle, sagging, gone = (
        power.share(watts, count=2, watts=3000, troubles=weak) for watts in (400, 2400, 3700)
    )
    assert idle[0].volts > 11.4 > sagging[0].volts > 0
    assert (gone[0].gave_up, gone[1].output_watts) == (True, 0.0), "the other cannot carry 3.7 kW either"
    assert not power.is_on(gone)


@pytest.mark.parametrize("profile", WARM)
def test_a_healthy_gpu_is_as_warm_as_its_profile_says_and_never_slows_down(profile: str) -> None:
    """At idle and at full load; warmer air and less flow make it warmer."""
    model = profiles.load(profile).model
    sink = cooling.sink(model)
    assert sink is not None
    assert model.temperature is not None
    idle, full = model.power.idle / 1000, model.power.full / 1000
    assert sink.steady(idle) == pytest.approx(model.temperature.idle)
    assert sink.steady(full) == pytest.approx(model.temperature.full)
    assert cooling.slowed(model, sink, watts=full) == (0, 0)
    for worse in (cooling.sink(model, warmer=5), cooling.sink(model, blocked=1.5)):
        assert worse is not None
        assert worse.steady(full) > sink.steady(full)


@given(blocked=st.floats(1, 6), more=st.floats(0, 3))
def test_the_more_a_gpu_is_blocked_the_more_it_slows_down(blocked: float, more: float) -> None:
    """Both reasons, software first."""
    model = profiles.load("h100-sxm-8").model
    one, two = (cooling.sink(model, blocked=times) for times in (blocked, blocked + more))
    assert one is not None
    assert two is not None
    (sw, hw), (more_sw, more_hw) = (cooling.slowed(model, sink, watts=690) for sink in (one, two))
    assert sw <= more_sw <= 1000
    assert hw <= more_hw <= 1000
    assert sw == 1000 or not hw


def test_a_blocked_gpu_warms_up_and_then_slows_down(tmp_path: Path) -> None:
    """It was loaded 6 s ago: warmer than its sibling, not yet slow, and it will be."""
    start = boottime_ns()
    hardware = plug("h100-sxm-8", tmp_path, clock=lambda: start - 200 * SECOND)
    Hardware(tmp_path, clock=lambda: start - 7 * SECOND).fault("airflow-blocked", gpu=1)
    Hardware(tmp_path, clock=lambda: start - 6 * SECOND).load(100)
    with NvmlClient(hardware.env()) as nvml:
        calm, hot = (nvml.ask("nvmlDeviceGetTemperature", GPU(gpu), 0) for gpu in (0, 1))
    assert 33 < calm < hot < 87
    reasons = hardware.condition().reasons
    [(since, per_mille)] = reasons[1]["sw_thermal"]
    assert (since > start - 6 * SECOND, per_mille) == (True, 1000)
    assert "sw_thermal" not in reasons[0]


def test_a_slowed_gpu_stays_at_its_threshold_and_recovers(tmp_path: Path) -> None:
    """After 200 s its clock is low and its temperature is the limit; freed, it cools down by the same law."""
    start = boottime_ns()
    hardware = plug("h100-sxm-8", tmp_path, clock=lambda: start - 300 * SECOND)
    Hardware(tmp_path, clock=lambda: start - 200 * SECOND).fault("airflow-blocked", gpu=1)
    Hardware(tmp_path, clock=lambda: start - 200 * SECOND).load(100)
    with NvmlClient(hardware.env()) as nvml:
        assert nvml.ask("nvmlDeviceGetTemperature", GPU(1), 0) == pytest.approx(87, abs=1)
        assert nvml.ask("nvmlDeviceGetPowerUsage", GPU(1)) < 690_000
        Hardware(tmp_path, clock=lambda: start - 40 * SECOND).heal()
        assert 66 <= nvml.ask("nvmlDeviceGetTemperature", GPU(1), 0) < 72
        assert nvml.ask("nvmlDeviceGetClockInfo", GPU(1), SM_CLOCK) == 1980


def test_what_heat_would_have_done_later_is_forgotten_when_something_changes(tmp_path: Path) -> None:
    """Healed before it became too hot, it never slows down."""
    hardware = plug("h100-sxm-8", tmp_path)
    hardware.fault("airflow-blocked", gpu=1)
    hardware.load(100)
    assert hardware.condition().reasons[1]["sw_thermal"]
    hardware.heal()
    assert hardware.condition().reasons[1]["sw_thermal"] == []
