"""A plugged machine is a folder: several processes break, load and restart it at once, and none is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from testbed.driver.client import GPU, NvmlClient
from testbed.hardware import Hardware, attach


def test_another_process_can_break_a_machine(h100: Hardware, nvml: NvmlClient) -> None:
    """Everything is in the folder: who attaches to it changes what a running client sees."""
    script = "import sys; from pathlib import Path; from testbed.hardware import attach; "
    script += "attach(Path(sys.argv[1])).fault('hot', gpu='5', celsius='88')"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    subprocess.run([sys.executable, "-c", script, str(h100.directory)], env=env, check=True)

    assert nvml.ask("nvmlDeviceGetTemperature", GPU(5), 0) == 88
    assert attach(h100.directory).faults() == ["hot"]


def test_changes_from_many_processes_are_all_kept(h100: Hardware) -> None:
    """Four processes add five faults each at once: twenty are on in the end."""
    script = "import sys; from pathlib import Path; from testbed.hardware import attach\n"
    script += "for n in range(5): attach(Path(sys.argv[1])).fault('hot', gpu=n, celsius=80 + n)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    command = [sys.executable, "-c", script, str(h100.directory)]
    running = [subprocess.Popen(command, env=env) for _ in range(4)]

    assert [process.wait() for process in running] == [0] * 4
    assert len(h100.faults()) == 20


def test_a_reboot_is_a_new_boot_of_the_same_machine(h100: Hardware) -> None:
    """Another boot id and counters from 0; the same GPUs, with the same faults."""
    boot = Path(h100.env()["NODEGAUGE_PROCFS"]) / "sys/kernel/random/boot_id"
    h100.fault("hot", gpu=0)
    h100.load(100)
    old, uuids = boot.read_text(), h100.uuids

    with NvmlClient(h100.env()) as nvml:
        before = nvml.ask("nvmlDeviceGetTotalEnergyConsumption", GPU(0))
        h100.reboot()
        assert nvml.ask("nvmlDeviceGetTotalEnergyConsumption", GPU(0)) < before
        assert nvml.ask("nvmlDeviceGetUtilizationRates", GPU(0))["gpu"] == 0
    assert boot.read_text() != old
    assert (h100.uuids, h100.faults()) == (uuids, ["hot"])
