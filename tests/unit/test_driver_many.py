"""Calls that hang, many threads, machines side by side: every client sees whole states of its own."""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.driver.client import GPU, NvmlClient
from testbed.hardware import Hardware, plug

LIBRARY_NOT_FOUND = 12


def test_a_hung_call_hangs_its_caller_and_nobody_else(h100: Hardware, nvml: NvmlClient) -> None:
    """The named call does not return, for the named GPU; other calls do, and so do other processes."""
    h100.fault("hung-call", call="nvmlDeviceGetPowerUsage", gpu=3)
    assert nvml.ask("nvmlDeviceGetPowerUsage", GPU(2)) == 72020

    nvml.send("nvmlDeviceGetPowerUsage", GPU(3))

    assert nvml.silent(seconds=0.5)
    with NvmlClient(h100.env()) as other:
        assert other.ask("nvmlDeviceGetName", GPU(3)) == "NVIDIA H100 80GB HBM3"
    h100.heal()
    assert nvml.silent(seconds=0.2)  # a call that hangs has hung for good


HAMMER = """
import ctypes, sys, threading
import pynvml as n
n.nvmlInit()
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(4)]
wrong, done = [], threading.Event()

def hammer(handle):
    energy = 0
    while not done.is_set():
        celsius = n.nvmlDeviceGetTemperature(handle, 0)
        now = n.nvmlDeviceGetTotalEnergyConsumption(handle)
        value = n.nvmlDeviceGetFieldValues(handle, [83])[0].value.ullVal
        if celsius not in (33, 91) or not energy <= now <= value:
            wrong.append((celsius, energy, now, value))
        energy = value

threads = [threading.Thread(target=hammer, args=(h,)) for h in handles]
for t in threads: t.start()
print("ready", flush=True)
sys.stdin.read()
done.set()
for t in threads: t.join()
print(wrong)
"""


def test_threads_see_whole_states_while_hardware_changes(h100: Hardware) -> None:
    """Threads read while the state is replaced: GPUs are healthy or hot, and energy never goes back."""
    process = subprocess.Popen(
        [sys.executable, "-c", HAMMER],
        env={**os.environ, **h100.env()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for turn in range(10):
            h100.fault("hot", gpu=turn % 4, celsius=91)
            h100.heal()
        reported, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert reported == "[]\n"


def test_two_machines_stand_side_by_side(tmp_path: Path) -> None:
    """Two processes with different hardware each see their own, and its faults alone."""
    first, second = plug("h100-sxm-8", tmp_path / "one"), plug("titan-rtx-nv2", tmp_path / "two")

    with NvmlClient(first.env()) as one, NvmlClient(second.env()) as two:
        second.fault("hot", gpu=0, celsius=92)
        assert one.ask("nvmlDeviceGetName", GPU(0)) == "NVIDIA H100 80GB HBM3"
        assert two.ask("nvmlDeviceGetName", GPU(0)) == "TITAN RTX"
        assert one.ask("nvmlDeviceGetTemperature", GPU(0), 0) == 33
        assert two.ask("nvmlDeviceGetTemperature", GPU(0), 0) == 92


def test_without_the_library_pynvml_says_so(tmp_path: Path) -> None:
    """Nothing but the loader's path connects a process with the hardware."""
    if ctypes.util.find_library("nvidia-ml"):
        pytest.skip("this machine has a driver of its own")
    with NvmlClient({"LD_LIBRARY_PATH": str(tmp_path)}, initialise=False) as client:
        assert client.refusal("nvmlInit") == LIBRARY_NOT_FOUND
