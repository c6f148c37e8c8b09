"""What a probe does before it can do anything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nodegauge_probes

SOURCES = Path(nodegauge_probes.__file__).parent.parent
STUCK = """
import pathlib, time
pathlib.Path({mark!r}).touch()
time.sleep(60)
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
        end = time.monotonic() + 30
        while not mark.exists() and time.monotonic() < end:
            time.sleep(0.01)
        assert mark.exists(), "it never came to its imports"
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(timeout=20) == 128 + signal.SIGTERM
        finally:
            process.kill()
