"""Simulated machines for tests of the driver and of hardware: other drivers, busy ones, what they show."""

from __future__ import annotations

from pathlib import Path

import msgspec

from testbed import profiles
from testbed.hardware import Hardware, plug
from testbed.hardware.plugged import boottime_ns

SECOND = 10**9
WARMED_UP = 600 * SECOND
"""By then every temperature is where it will stay."""


def with_driver(version: str, directory: Path) -> Hardware:
    chosen = profiles.load("h100-sxm-8")
    driver = msgspec.structs.replace(chosen.driver, version=version)
    return plug(msgspec.structs.replace(chosen, driver=driver), directory)


def busy(profile: str, directory: Path) -> Hardware:
    start = boottime_ns()
    hardware = plug(profile, directory, clock=lambda: start - 2 * WARMED_UP)
    Hardware(directory, clock=lambda: start - WARMED_UP).load(100)
    return Hardware(hardware.directory)


def sysfs(hardware: Hardware) -> Path:
    return Path(hardware.env()["NODEGAUGE_SYSFS"])
