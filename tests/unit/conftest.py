"""Machines that several modules of these tests begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.driver.client import NvmlClient
from testbed.hardware import Hardware, plug


@pytest.fixture
def h100(tmp_path: Path) -> Hardware:
    """Eight H100 on NVSwitches, whole and idle."""
    return plug("h100-sxm-8", tmp_path / "h100")


@pytest.fixture
def nvml(h100: Hardware) -> Iterator[NvmlClient]:
    """A client of its driver."""
    with NvmlClient(h100.env()) as client:
        yield client
