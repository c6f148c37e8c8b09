"""What the health probe brings home from machines that answer, against recordings where there are any."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from nodegauge_contract import Unavailable, render_matrix
from nodegauge_contract.nvlink import lanes
from nodegauge_judge import judge_health
from support.probing import Healthy, On, table_cells
from testbed import profiles

TOO_OLD = Unavailable("NVML_ERROR_FUNCTION_NOT_FOUND")


def test_switches_are_found_where_the_driver_does_not_know_them(probe: On) -> None:
    """DGX-2 under driver 450: no field 147, no call for far ends; NV6 between all pairs, as under 460."""
    dgx2 = profiles.load("dgx2-v100-16")
    result = probe(replace(dgx2, driver=replace(dgx2.driver, version="450.80.02"))).result()
    assert all(isinstance(gpu.switch_links, Unavailable) for gpu in result.gpus)
    counted = lanes(result)
    assert (counted.switched, counted.sums, counted.unresolved) == (True, (6,) * 16, ())
    assert {n for row in counted.pair for n in row} == {0, 6}


@pytest.mark.parametrize("profile", profiles.names())
def test_every_profile_is_read_without_a_problem(machine: On, healthy: Healthy, profile: str) -> None:
    """All GPUs with identity, index, links, condition, window and counters; run and node echoed."""
    on, result = machine(profile), healthy(profile)
    assert (result.problem, result.probe, result.run, result.node) == (None, "health", "run-1", "node-1")
    shown, model = profiles.load(profile).visible, profiles.load(profile).model
    assert len(result.gpus) == (on.hardware.gpu_count if shown is None else shown)
    assert {gpu.name for gpu in result.gpus} == {on.hardware.gpu_product}
    assert len({gpu.uuid for gpu in result.gpus}) == len(result.gpus)
    boot = Path(on.env()["NODEGAUGE_PROCFS"]) / "sys/kernel/random/boot_id"
    assert result.host.boot_id == boot.read_text().strip()
    for gpu in result.gpus:
        assert gpu.error is None
        assert isinstance(gpu.temperature.gpu, int) is (model.temperature is not None)
        assert isinstance(gpu.power.usage_mw, int) is (model.temperature is not None)
        assert isinstance(gpu.events.supported, int)
        assert gpu.events.read == gpu.window.samples > 0
        assert gpu.window.sm_mhz is not None
    assert isinstance(result.host.boottime_ms, int)


def test_an_nvswitch_machine_has_its_links_and_its_fabric(healthy: Healthy) -> None:
    """H100: every GPU's 18 links to switches at their raw rate, the fabric's state, T.Limit distances."""
    for gpu in healthy("h100-sxm-8").gpus:
        assert sorted(link for group in gpu.links for link in group.links) == list(range(18))
        assert {(g.state, g.p2p, g.remote_type, g.mbps, g.version) for g in gpu.links} == {
            (1, 1, 2, 26562, 6)
        }
        assert gpu.switch_links == 18
        assert (gpu.fabric.state, gpu.fabric.status) == (3, 0)
        assert (gpu.temperature.tlimit_slowdown, gpu.temperature.tlimit_shutdown) == (-2, -8)
        assert (gpu.architecture, gpu.counters.sync_boost_ns) == (9, 0)
        assert gpu.power.average_mw == pytest.approx(72_020, rel=0.1)
        assert isinstance(gpu.temperature.gpu_max, Unavailable)


@pytest.mark.parametrize(
    ("profile", "mode"), [("h100-sxm-8", 0), ("a100-sxm-8", 1), ("pcie-phb-2", 2), ("rtx3090-nv4-2", 3)]
)
def test_the_virtualization_mode_is_read(probe: On, profile: str, mode: int) -> None:
    """Bare metal, passed through, a vGPU, a vGPU host: NVML's nvmlGpuVirtualizationMode_t, on every GPU."""
    machine = profiles.load(profile)
    result = probe(replace(machine, model=replace(machine.model, virtualization=mode))).result()
    assert {gpu.virtualization for gpu in result.gpus} == {mode}


def test_an_old_driver_is_asked_by_its_old_names(healthy: Healthy) -> None:
    """418 has no T.Limit, MIG or memory affinity: reasons; temperature, CPUs and event reasons are values."""
    gpu = healthy("dgx1-v100-8").gpus[0]
    assert gpu.mig == gpu.memory_nodes == gpu.temperature.margin == gpu.fabric.state == TOO_OLD
    assert gpu.cpus == "0-19,40-59"
    assert isinstance(gpu.temperature.gpu, int)
    assert isinstance(gpu.events.read, int)
    assert gpu.memory_mib == 16130


@pytest.mark.parametrize("kind", ["read", "all"])
def test_refused_p2p_is_reported_beside_links_that_are_up(probe: On, kind: str) -> None:
    """Each grid says its own; the matrix still counts links: judging that is not the probe's."""
    on = probe("h100-sxm-8")
    on.hardware.fault("p2p-refused", kind=kind)
    result = on.result()
    for name in ("read", "write", "nvlink"):
        grid = getattr(result.pairs, name)
        refused = 5 if kind in (name, "all") else 0
        assert {grid[i][j] for i in range(8) for j in range(8) if i != j} == {refused}
    assert table_cells(render_matrix(result))[1][2] == "NV18"


def test_a_link_that_is_down_is_a_group_of_its_own(probe: On) -> None:
    """And the matrix counts one less, on both ends."""
    on = probe("titan-rtx-nv2")
    on.hardware.fault("link-down", gpu=0, link=1)
    result = on.result()
    assert [(group.links, group.state) for group in result.gpus[0].links[:2]] == [([0], 1), ([1], 0)]
    assert [row[1:3] for row in table_cells(render_matrix(result))[1:]] == [["X", "NV1"], ["NV1", "X"]]


@pytest.mark.parametrize("profile", ["h100-sxm-8", "dgx2-v100-16", "pcie-phb-2"])
def test_the_bus_shows_what_the_driver_shows(healthy: Healthy, profile: str) -> None:
    """The same GPUs, whatever order NVML has them in."""
    result = healthy(profile)
    assert sorted(result.bus.gpus) == sorted(str(gpu.pci) for gpu in result.gpus)
    assert result.bus.silent == []
    assert result.bus.drivers == ["nvidia"] * len(result.gpus)


def test_gpus_of_another_driver_are_on_the_bus_with_its_name(healthy: Healthy) -> None:
    """One that is passed to a virtual machine, and a display card."""
    result = healthy("titan-rtx-vfio-4")
    assert result.bus.gpus == ["0000:08:00.0", "0000:0a:00.0", "0000:41:00.0", "0000:42:00.0"]
    assert result.bus.drivers == ["nvidia", "nouveau", "nvidia", "vfio-pci"]
    assert [finding.code for finding in judge_health(result).findings] == ["foreign-gpus"]


def test_a_lost_gpu_is_still_on_the_bus_and_silent(probe: On) -> None:
    """NVML answers nothing for it, sysfs shows it, and its configuration space is all ones."""
    on = probe("h100-sxm-8")
    address = profiles.load("h100-sxm-8").gpus[2].address
    on.hardware.fault("gpu-lost", gpu=2)
    result = on.result()
    assert result.gpus[2].error is not None
    assert address in result.bus.gpus
    assert result.bus.silent == [address]


def test_ports_of_network_cards_are_read(healthy: Healthy) -> None:
    """Every port with state, link, rate and counters, by the card's index in the list."""
    nics = healthy("h100-sxm-8").nics
    assert [port.nic for port in nics.ports] == list(range(len(nics.names)))
    assert {(port.state, port.physical, port.rate_gbps, port.link_layer) for port in nics.ports} == {
        ("ACTIVE", "LinkUp", 200, "Ethernet")
    }
    assert all(port.link_downed == 0 for port in nics.ports)


def test_counters_have_a_growth_within_the_window(probe: On) -> None:
    """Beside the time between their two readings, which is the window and a little more."""
    on = probe("h100-sxm-8")
    result = on.result("--window", "0.5")
    for gpu in result.gpus:
        assert gpu.window.growth.sw_power_cap_ns == 0
        assert 490 <= gpu.window.growth.elapsed_ms <= 10_000
        assert isinstance(gpu.window.growth.energy_mj, int)
        assert isinstance(gpu.window.growth.sw_thermal_ns, Unavailable)


def test_application_clocks_are_read(probe: On) -> None:
    """A setting of one GPU, beside the maximum that its model has."""
    on = probe("titan-rtx-nv2")
    on.hardware.fault("application-clocks", gpu=1, percent=50)
    first, second = (gpu.clocks for gpu in on.result("--window", "0").gpus)
    assert first.app_sm_mhz == first.max_sm_mhz
    assert first.app_memory_mhz == second.app_memory_mhz == first.max_memory_mhz
    assert second.app_sm_mhz < first.app_sm_mhz


def test_an_old_driver_has_reasons_where_it_has_no_calls(healthy: Healthy) -> None:
    """418 knows no rows, no repairs and no recovery action, and none of that is a zero."""
    gpu = healthy("dgx1-v100-8").gpus[0]
    assert gpu.repair.rows_failed == gpu.repair.unrepairable == gpu.ecc.sram_threshold == TOO_OLD
    assert isinstance(gpu.repair.action, Unavailable)
    assert isinstance(gpu.pcie.replays, int)
    assert isinstance(gpu.link_errors.replay, int)
    assert gpu.pcie.card_generation == TOO_OLD
