"""A simulated machine feels what living processes announce, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from testbed.hardware import plug
from testbed.hardware.loads import announcements, follow_once, following
from testbed.hardware.plugged import LOADS, Hardware
from testbed.wait import wait_for


def loads(hardware: Hardware) -> list[int]:
    return [points[-1][1] if points else 0 for points in hardware.condition().loads]


def test_the_last_word_of_a_living_process_counts(tmp_path: Path) -> None:
    """Of several processes on one GPU the largest; a dead one says nothing."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    parent = os.getppid()
    log = tmp_path / "loads"
    log.write_text(
        f"1 GPU-a {os.getpid()} 100\n2 GPU-a {os.getpid()} 10\n3 GPU-a {parent} 40\n4 GPU-b {dead.pid} 100\n"
    )
    assert announcements(log) == {"GPU-a": 40}
    assert announcements(tmp_path / "none") == {}


def test_a_machine_follows_and_rests_afterwards(tmp_path: Path) -> None:
    """Only what changed is written; a load that somebody set otherwise stays where nothing was announced."""
    hardware = plug("pcie-phb-2", tmp_path / "machine", seed="nodegauge")
    hardware.load(55, gpu=1)
    assert follow_once(hardware, {}) == {}
    announced = hardware.directory / LOADS
    announced.write_text(f"1 {hardware.uuids[0]} {os.getpid()} 100\n")
    last = follow_once(hardware, {})
    assert (last, loads(hardware)) == ({0: 100, 1: 0}, [100, 55])
    announced.write_text(f"1 {hardware.uuids[0]} {os.getpid()} 0\n")
    follow_once(hardware, last)
    assert loads(hardware) == [0, 55]


def test_following_ends_with_nothing_running(tmp_path: Path) -> None:
    """Also where a process still lives when the test is over."""
    hardware = plug("pcie-phb-2", tmp_path / "machine", seed="nodegauge")
    with following(hardware):
        (hardware.directory / LOADS).write_text(f"1 {hardware.uuids[0]} {os.getpid()} 100\n")
        wait_for(lambda: loads(hardware) == [100, 0], seconds=30, what="the announced load")
    assert loads(hardware) == [0, 0]
