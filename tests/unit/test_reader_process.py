"""The BMC reader as a process: from its environment to objects, stopped by SIGTERM, its memory its own."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from fleet.load import bmc
from nodegauge_operator.reader.settings import parse
from nodegauge_operator.settings import SettingsError


async def test_a_round_over_every_recorded_tree(capfd: pytest.CaptureFixture[str]) -> None:
    """The load test with twelve BMCs: all are read over TLS and written, and SIGTERM ends it well."""
    arguments = argparse.Namespace(bmcs=12, latency=0.0, concurrency=8, interval=10.0, limit=60.0)
    code = await bmc.main(arguments)
    output = capfd.readouterr()
    assert code == 0, output
    assert "12 of 12 BMCs read" in output.out
    assert "of the load test" not in output.err, "the password"


def test_its_memory_is_its_own() -> None:
    """No core dump, and only root may look into it (prctl(2), PR_GET_DUMPABLE)."""
    code = (
        "import ctypes, resource; from nodegauge_operator.reader.__main__ import keep_memory_private; "
        "keep_memory_private(); "
        "print(resource.getrlimit(resource.RLIMIT_CORE), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(0, 0) 0"


def test_wrong_settings_are_listed_together() -> None:
    """Each with what to set."""
    with pytest.raises(SettingsError) as caught:
        parse({"NODEGAUGE_BMC_INTERVAL": "1s", "NODEGAUGE_BMC_CONCURRENCY": "many"})
    for name in ("NODEGAUGE_BMC_INVENTORY", "NODEGAUGE_BMC_INTERVAL", "NODEGAUGE_BMC_CONCURRENCY"):
        assert name in str(caught.value)
