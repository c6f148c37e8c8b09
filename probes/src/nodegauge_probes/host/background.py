"""What is read from sysfs while the sampling window sleeps: network ports and sensors.

A sensor behind a slow bus takes milliseconds, a network card whose firmware died takes a minute, and neither
may cost the GPUs' result anything.  So they are read in a thread of their own, value by value into the draft;
what is not there when the window and the counters are done stays away, and nobody waits for it.
"""

from __future__ import annotations

import threading
from pathlib import Path

from nodegauge_probes.host.hwmon import sensors
from nodegauge_probes.host.rdma import ports
from nodegauge_probes.result_builder import Draft

PORTS, SENSORS = "nics.ports", "sensors"
PATIENCE_S = 0.5
"""How long the end of a run waits for readings that are still under way."""


class Aside:
    """Reading beside the window."""

    def __init__(self, draft: Draft, *, sysfs: Path) -> None:
        self._draft = draft
        self._sysfs = sysfs
        self._thread = threading.Thread(target=self._read, daemon=True, name="aside")

    def start(self) -> None:
        self._draft.late = [PORTS, SENSORS]
        self._thread.start()

    def finish(self) -> None:
        """Give it a moment; a reading that hangs is left behind, and the draft says what is not complete."""
        self._thread.join(PATIENCE_S)

    def _read(self) -> None:
        ports(self._sysfs, list(self._draft.nics.names), self._draft.ports.append)
        self._draft.late = [SENSORS]
        sensors(self._sysfs, self._draft.sensors.append)
        self._draft.late = []
