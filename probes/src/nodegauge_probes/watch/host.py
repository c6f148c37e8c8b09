"""What the watch probe compares outside the driver: GPUs on the bus, network ports, alarms of the hardware
monitor.

Read in a thread of its own, because a network card with dead firmware takes a minute and a sensor may hang:
that must not delay the GPUs.  A reading that hangs leaves the last values; the next full reading names it.
"""

from __future__ import annotations

import threading
from pathlib import Path

from nodegauge_contract import Port, Sensor, Unavailable
from nodegauge_probes.host import hwmon, pci, rdma

FIRST_WAIT_S = 0.5


class Host:
    """`latest`: the newest values by name, replaced as a whole."""

    def __init__(self, *, sysfs: Path, procfs: Path, every: float) -> None:
        self.latest: dict[str, int | str] = {}
        self._sysfs, self._procfs, self._every = sysfs, procfs, every
        self._once = threading.Event()
        self._never = threading.Event()

    def start(self) -> None:
        """Read now and then from now on; returns after the first time, or without it if that is slow."""
        threading.Thread(target=self._work, daemon=True, name="host").start()
        self._once.wait(FIRST_WAIT_S)

    def _work(self) -> None:
        while True:
            self.latest = read(self._sysfs, procfs=self._procfs)
            self._once.set()
            self._never.wait(self._every)


def read(sysfs: Path, *, procfs: Path) -> dict[str, int | str]:
    """Every value that could be read, by name."""
    values: dict[str, int | str] = {}
    bus = pci.bus(sysfs, procfs=procfs)
    if not isinstance(bus.gpus, Unavailable):
        values["GPUs on the bus"] = len(bus.gpus)
        values["silent GPUs"] = " ".join(bus.silent)
    nics = rdma.nics(sysfs, [])
    values["network cards"] = " ".join(nics.names)
    ports: list[Port] = []
    rdma.ports(sysfs, list(nics.names), ports.append)
    for port in ports:
        parts = (port.state, port.physical, port.rate_gbps)
        texts = ["-" if isinstance(part, Unavailable) else str(part) for part in parts]
        values[f"port {nics.names[port.nic]}/{port.port}"] = " ".join(texts)
    sensors: list[Sensor] = []
    hwmon.sensors(sysfs, sensors.append)
    for number, sensor in enumerate(sensors):
        if isinstance(sensor.alarm, int):
            values[f"alarm {sensor.chip} {sensor.name} ({number})"] = sensor.alarm
    return values
