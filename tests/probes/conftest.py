"""Machines for the probe's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from builders.probing import Probe
from testbed.hardware import plug
from testbed.profiles import Profile


@pytest.fixture
def probe(tmp_path: Path) -> Callable[[str | Profile], Probe]:
    """`probe("h100-sxm-8")`: that machine, plugged in, and the probe on it."""

    def on(profile: str | Profile) -> Probe:
        return Probe(hardware=plug(profile, tmp_path / "machine", seed="nodegauge"), folder=tmp_path)

    return on
