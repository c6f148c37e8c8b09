"""What a probe does before it can do anything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import nodegauge_probes
from testbed.wait import DEADLINE_SECONDS, wait_for

SOURCES = Path(nodegauge_probes.__file__).parent.parent
STUCK = """
import pathlib, time
pathlib.Path({mark!r}).touch()
time.sleep(600)
"""


def test_a_probe_that_is_told_to_go_while_it_starts_goes_at_once(tmp_path: Path) -> None:
    """The first process of a container has no default answer to SIGTERM: it must have one of its own before
    its libraries are loaded, which takes a while on a busy node."""
    mark = tmp_path / "importing"
    (tmp_path / "msgspec.py").write_text(STUCK.format(mark=str(mark)), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCES}"}
    with subprocess.Popen(
        [sys.executable, "-m", "nodegauge_probes", "health"], env=environment, stderr=subprocess.PIPE
    ) as process:
        wait_for(mark.exists, what="the probe comes to its imports")
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(timeout=DEADLINE_SECONDS) == 128 + signal.SIGTERM
        finally:
            process.kill()
