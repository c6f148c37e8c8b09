"""Every fault shows through pynvml or sysfs, is refused where it cannot be, and can be healed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.machines import busy, snapshot
from testbed import profiles
from testbed.hardware import FAULTS, HardwareError, cooling, plug
from testbed.hardware.machine import Machine
from testbed.wait import wait_for

CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("rtx3090-nv4-2", "weak-supply", {}),
    ("titan-rtx-nv2", "p2p-refused", {}),
    ("titan-rtx-nv2", "p2p-refused", {"kind": "read"}),
    ("titan-rtx-nv2", "p2p-refused", {"kind": "write", "gpu": 1}),
    ("titan-rtx-nv2", "p2p-refused", {"kind": "nvlink"}),
    ("titan-rtx-nv2", "link-down", {"gpu": "1", "link": "1"}),
    ("dgx1-v100-8", "gpu-links-down", {"gpu": 2}),
    ("h100-sxm-8", "fabric-not-completed", {}),
    ("h100-sxm-8", "fabric-failed", {}),
    ("h100-sxm-8", "fabric-failed", {"kind": "status", "status": "15"}),
    ("h100-sxm-8", "fabric-failed", {"kind": "health"}),
    ("pcie-phb-2", "gpu-lost", {"gpu": 1}),
    ("pcie-phb-2", "gpu-lost", {"gpu": 1, "nvml": "absent", "pci": "gone"}),
    ("pcie-phb-2", "reset-required", {"gpu": 1}),
    ("pcie-phb-2", "insufficient-power", {"gpu": 1}),
    ("pcie-phb-2", "undersized-power-source", {}),
    ("pcie-phb-2", "driver-mismatch", {}),
    ("pcie-phb-2", "hung-call", {}),
    ("pcie-phb-2", "hot", {"celsius": "91"}),
    ("hgx-a100-4", "hot-memory", {}),
    ("pcie-phb-2", "gpus-hidden", {}),
    ("titan-rtx-nv2", "thermal-slowdown", {}),
    ("titan-rtx-nv2", "thermal-slowdown", {"kind": "hw", "celsius": 94}),
    ("titan-rtx-nv2", "power-brake", {}),
    ("titan-rtx-nv2", "hw-slowdown", {}),
    ("titan-rtx-nv2", "sw-power-cap", {}),
    ("titan-rtx-nv2", "power-cap-low", {}),
    ("titan-rtx-nv2", "slow-clock", {}),
    ("titan-rtx-nv2", "application-clocks", {}),
    ("titan-rtx-nv2", "pcie-width-halved", {}),
    ("rtx4000ada-1", "recovery-action", {"action": 2}),
    ("hgx-a100-4", "row-remap", {}),
    ("hgx-a100-4", "row-remap", {"state": "failed"}),
    ("dgx1-v100-8", "page-pending", {}),
    ("h100-sxm-8", "sram-threshold", {}),
    ("dgx1-v100-8", "nic-slow", {}),
    ("pcie-phb-2", "xid", {"number": 48}),
]
"""Faults that leave nothing behind when they are healed."""

LASTING: list[tuple[str, str, dict[str, Any]]] = [
    ("hgx-a100-4", "ecc-uncorrectable", {}),
    ("hgx-a100-4", "ecc-correctable", {}),
    ("titan-rtx-nv2", "nvlink-errors", {}),
    ("titan-rtx-nv2", "nvlink-errors", {"kind": "replay"}),
    ("titan-rtx-nv2", "nvlink-errors", {"kind": "recovery"}),
    ("titan-rtx-nv2", "pcie-replays", {}),
    ("h100-sxm-8", "pcie-replays", {"kind": "correctable"}),
    ("h100-sxm-8", "pcie-replays", {"kind": "recoveries"}),
    ("dgx1-v100-8", "nic-errors", {}),
]
"""Faults that were counted, and stay so."""

ELSEWHERE = {
    *("fan-stopped", "psu-alarm", "rail-out-of-range", "nic-down", "repair-pending", "memory-unrepairable"),
    *("clock-step", "counters-restarted"),
    *("supply-failed", "supply-input-lost", "supply-removed", "chassis-fan-stopped", "inlet-hot", "leak"),
    "airflow-blocked",
}
"""Tried in test_faults_apart on machines that are made for it, in test_driver_time, and by the BMC's reader
in test_simulated_bmc; heat in test_power_and_cooling."""

OF_NCCL = {name for name, fault in FAULTS.items() if fault.module in ("faults_nccl", "faults_load")}
"""Tried in test_faults_nccl, test_simulated_nccl_probe and tests/probes/test_load.py: no reading of NVML
shows them."""


@pytest.fixture(autouse=True)
def light_heat_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that drew less for a moment is as warm as before a few seconds later, not a minute."""
    monkeypatch.setattr(cooling, "TAU_SECONDS", 1)


def test_every_fault_is_tried() -> None:
    """A new fault needs a case here."""
    assert {name for _, name, _ in (*CASES, *LASTING)} | ELSEWHERE | OF_NCCL == FAULTS.keys()


def test_the_first_page_counts_the_faults_right() -> None:
    """Whoever reads of so many finds so many."""
    page = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    assert f"the {len(FAULTS)} faults" in page


@pytest.mark.parametrize(("profile", "name", "parameters"), CASES)
def test_a_fault_shows_and_healing_leaves_no_trace(
    tmp_path: Path, profile: str, name: str, parameters: dict[str, Any]
) -> None:
    """Something is different while it is on and the machine works; all is as before when it is off."""
    hardware = busy(profile, tmp_path)
    before = snapshot(hardware)

    hardware.fault(name, **parameters)
    assert hardware.faults() == [name]
    assert snapshot(hardware) != before

    hardware.heal(name)
    assert hardware.faults() == []
    wait_for(lambda: snapshot(hardware) == before, what="everything as before, also the heat")


@pytest.mark.parametrize(("profile", "name", "parameters"), LASTING)
def test_what_was_counted_stays_counted(
    tmp_path: Path, profile: str, name: str, parameters: dict[str, Any]
) -> None:
    """A counter grows while the fault is on, and stands still when it is off, where it has come to."""
    hardware = busy(profile, tmp_path)
    before = snapshot(hardware)

    hardware.fault(name, **parameters)
    during = snapshot(hardware)
    hardware.heal()
    after = snapshot(hardware)

    assert during != before
    changed = {key for key in after if after[key] != before[key]}
    assert changed
    assert changed == {key for key in during if during[key] != before[key]}
    assert snapshot(hardware) == after


@pytest.mark.parametrize("profile", profiles.names())
def test_a_fault_either_fits_a_machine_or_is_refused_in_words(profile: str) -> None:
    """Every fault on every kind of hardware changes the machine, or the error names the hardware."""
    result = profiles.load(profile)
    refused = 0
    for name, fault in FAULTS.items():
        machine = Machine.healthy(result)
        try:
            fault.on(machine, {})
        except HardwareError as error:
            refused += profile in str(error)
        else:
            assert machine != Machine.healthy(result) or name in UNREADABLE, name
            refused += 1
    assert refused == len(FAULTS)


UNREADABLE = {"row-remap"}
"""With MIG on, nobody can read it."""


@pytest.mark.parametrize(
    ("profile", "name", "parameters", "reported"),
    [
        ("pcie-phb-2", "fire", {}, "no fault 'fire'.*gpu-lost"),
        ("pcie-phb-2", "hot", {"gpu": 2}, "no GPU 2: they are 0 to 1"),
        ("pcie-phb-2", "hot", {"gpu": "first"}, "gpu is 'first'"),
        ("pcie-phb-2", "hot", {"degrees": 3}, "no parameter degrees: it has gpu, celsius"),
        ("pcie-phb-2", "hot", {"celsius": "warm"}, "celsius is 'warm'"),
        ("pcie-phb-2", "link-down", {}, "it has none"),
        ("pcie-phb-2", "gpu-links-down", {}, "no NVLinks"),
        ("pcie-phb-2", "fabric-not-completed", {}, "no GPU fabric"),
        ("titan-rtx-nv2", "link-down", {"link": 2}, "no NVLink 2: they are 0, 1"),
        ("titan-rtx-nv2", "p2p-refused", {"kind": "some"}, "choose one of all, read, write, nvlink"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    tmp_path: Path, profile: str, name: str, parameters: dict[str, Any], reported: str
) -> None:
    """The error says what there is, and the machine stays as it was."""
    hardware = plug(profile, tmp_path)
    state = Path(hardware.env()["NODEGAUGE_SIM_HARDWARE"])
    before = state.read_bytes()

    with pytest.raises(HardwareError, match=reported):
        hardware.fault(name, **parameters)

    assert (hardware.faults(), state.read_bytes()) == ([], before)
