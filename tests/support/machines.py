"""Simulated machines for tests of the driver and of hardware: other drivers."""

from pathlib import Path

import msgspec

from testbed import profiles
from testbed.hardware import Hardware, plug

SECOND = 10**9


def with_driver(version: str, directory: Path) -> Hardware:
    chosen = profiles.load("h100-sxm-8")
    driver = msgspec.structs.replace(chosen.driver, version=version)
    return plug(msgspec.structs.replace(chosen, driver=driver), directory)
