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
